#include "kernels/cpu/gemm_bf16.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Preparing a product takes the library as long as a small one runs, so that each thread keeps what
 * it prepared: SETS × WAYS shapes, found by their hash; in a full set the oldest makes room. */
enum { SETS = 64, WAYS = 4 };

typedef struct shape {
    int64_t M, N, K, lda, ldb, ldc;
    int64_t trans_a, trans_b, add;
} shape;

typedef struct product {
    shape shape; /* M == 0: free */
    dnnl_primitive_t run;
    dnnl_memory_t a, b, c;
} product;

typedef struct products {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    product of[SETS][WAYS];
    unsigned next[SETS]; /* way that makes room */
} products;

static pthread_key_t kept; /* of each thread: its products */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void check(dnnl_status_t rc, const char *what, const shape *s)
{
    if (rc != dnnl_success) {
        fprintf(stderr, "oneDNN cannot %s (bf16, %lld x %lld x %lld): status %d\n", what,
                (long long)s->M, (long long)s->N, (long long)s->K, (int)rc);
        abort();
    }
}

static void forget(product *p)
{
    if (p->shape.M != 0) {
        dnnl_memory_destroy(p->a);
        dnnl_memory_destroy(p->b);
        dnnl_memory_destroy(p->c);
        dnnl_primitive_destroy(p->run);
    }
    p->shape.M = 0;
}

static void forget_all(void *arg)
{
    products *all = arg;
    for (int set = 0; set < SETS; set++) {
        for (int way = 0; way < WAYS; way++) {
            forget(&all->of[set][way]);
        }
    }
    dnnl_stream_destroy(all->stream);
    dnnl_engine_destroy(all->engine);
    free(all);
}

static void make_key(void)
{
    if (pthread_key_create(&kept, forget_all) != 0) {
        fputs("no thread-specific key is left for the products in bf16\n", stderr);
        abort();
    }
}

static products *of_thread(const shape *s)
{
    pthread_once(&once, make_key);
    products *all = pthread_getspecific(kept);
    if (all == NULL) {
        all = calloc(1, sizeof(*all));
        if (all == NULL || pthread_setspecific(kept, all) != 0) {
            fputs("out of memory for the products in bf16\n", stderr);
            abort();
        }
        /* As in gemm.c: our threads are the rank's, the library's must be one. */
        omp_set_num_threads(1);
        check(dnnl_engine_create(&all->engine, dnnl_cpu, 0), "make an engine", s);
        check(dnnl_stream_create(&all->stream, all->engine, dnnl_stream_in_order), "make a stream",
              s);
    }
    return all;
}

static dnnl_memory_desc_t matrix(int64_t rows, int64_t cols, int64_t ld, int64_t trans,
                                 dnnl_data_type_t type, const shape *s)
{
    const dnnl_dims_t sides = {rows, cols};
    const dnnl_dims_t strides = {trans ? 1 : ld, trans ? ld : 1};
    dnnl_memory_desc_t d;
    check(dnnl_memory_desc_init_by_strides(&d, 2, sides, type, strides), "describe a matrix", s);
    return d;
}

/* The library's implementation over its BLAS-like product: it takes operands where they lie and,
 * with results in fp32, no scratch. Others are left out, so that planned memory is all there is. */
static dnnl_primitive_desc_t plain(dnnl_primitive_desc_iterator_t it, const shape *s)
{
    do {
        dnnl_primitive_desc_t d = dnnl_primitive_desc_iterator_fetch(it);
        const char *name = "";
        check(d != NULL ? dnnl_success : dnnl_out_of_memory, "describe a product", s);
        check(dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, &name), "name a product",
              s);
        const dnnl_memory_desc_t *scratch =
            dnnl_primitive_desc_query_md(d, dnnl_query_scratchpad_md, 0);
        if (strncmp(name, "gemm", 4) == 0 && dnnl_memory_desc_get_size(scratch) == 0) {
            return d;
        }
        dnnl_primitive_desc_destroy(d);
    } while (dnnl_primitive_desc_iterator_next(it) == dnnl_success);
    check(dnnl_unimplemented, "multiply without scratch", s);
    return NULL;
}

static void prepare(products *all, product *p, const shape *s)
{
    const dnnl_memory_desc_t a = matrix(s->M, s->K, s->lda, s->trans_a, dnnl_bf16, s);
    const dnnl_memory_desc_t b = matrix(s->K, s->N, s->ldb, s->trans_b, dnnl_bf16, s);
    const dnnl_memory_desc_t c = matrix(s->M, s->N, s->ldc, 0, dnnl_f32, s);
    dnnl_matmul_desc_t matmul;
    check(dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c), "describe a product", s);
    dnnl_primitive_attr_t attr;
    check(dnnl_primitive_attr_create(&attr), "make attributes", s);
    check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
          "give scratch away", s);
    if (s->add) {
        dnnl_post_ops_t ops;
        check(dnnl_post_ops_create(&ops), "make a sum", s);
        check(dnnl_post_ops_append_sum(ops, 1.0f), "make a sum", s);
        check(dnnl_primitive_attr_set_post_ops(attr, ops), "make a sum", s);
        dnnl_post_ops_destroy(ops);
    }
    dnnl_primitive_desc_iterator_t it;
    check(dnnl_primitive_desc_iterator_create(&it, &matmul, attr, all->engine, NULL),
          "find a product", s);
    dnnl_primitive_desc_t d = plain(it, s);
    check(dnnl_primitive_create(&p->run, d), "prepare a product", s);
    check(dnnl_memory_create(&p->a, &a, all->engine, DNNL_MEMORY_NONE), "name memory", s);
    check(dnnl_memory_create(&p->b, &b, all->engine, DNNL_MEMORY_NONE), "name memory", s);
    check(dnnl_memory_create(&p->c, &c, all->engine, DNNL_MEMORY_NONE), "name memory", s);
    p->shape = *s;
    dnnl_primitive_desc_destroy(d);
    dnnl_primitive_desc_iterator_destroy(it);
    dnnl_primitive_attr_destroy(attr);
}

static unsigned set_of(const shape *s)
{
    const int64_t parts[] = {s->M,   s->N,   s->K,   s->lda,
                             s->ldb, s->ldc, s->add, 2 * s->trans_a + s->trans_b};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        h = (h ^ (uint64_t)parts[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (unsigned)(h % SETS);
}

static product *find(products *all, const shape *s)
{
    const unsigned set = set_of(s);
    for (int way = 0; way < WAYS; way++) {
        if (memcmp(&all->of[set][way].shape, s, sizeof(*s)) == 0) {
            return &all->of[set][way];
        }
    }
    product *p = &all->of[set][all->next[set]++ % WAYS];
    forget(p);
    prepare(all, p, s);
    return p;
}

void shd_cpu_gemm_bf16(int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, const uint16_t *a,
                       int64_t lda, const uint16_t *b, int64_t ldb, int add, float *c, int64_t ldc)
{
    const shape s = {M, N, K, lda, ldb, ldc, trans_a != 0, trans_b != 0, add != 0};
    products *all = of_thread(&s);
    product *p = find(all, &s);
    check(dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)a), "read", &s);
    check(dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)b), "read", &s);
    check(dnnl_memory_set_data_handle(p->c, c), "write", &s);
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c}};
    check(dnnl_primitive_execute(p->run, all->stream, 3, args), "multiply", &s);
    check(dnnl_stream_wait(all->stream), "multiply", &s);
}

shd_bf16_kind shd_cpu_bf16_kind(void)
{
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    const unsigned avx512 = dnnl_cpu_isa_avx512_core_bf16, amx = dnnl_cpu_isa_avx512_core_amx;
    if ((isa & avx512) != avx512) {
        return SHD_BF16_WIDENED;
    }
    return (isa & amx) == amx ? SHD_BF16_AMX : SHD_BF16_AVX512;
}
