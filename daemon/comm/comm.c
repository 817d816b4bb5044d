/* What is the same for every communicator: checks of arguments, counting, the fate of a family.
 * Floor F2. */
#include "daemon/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/mem.h"
#include "daemon/comm/comm_impl.h"

const char *shd_comm_kind_name(shd_comm_kind kind)
{
    static const char *const names[SHD_COMM_KIND_COUNT] = {
        "all_gather", "reduce_scatter", "all_reduce", "norm", "control", "reshard"};
    return (unsigned)kind < SHD_COMM_KIND_COUNT ? names[kind] : "?";
}

void shd_comm_call_describe(const shd_comm_call *call, char *buf, size_t len)
{
    static const char *const names[SHD_COMM_OP_COUNT] = {
        "all_gather", "all_to_all", "broadcast", "all_gather_host", "barrier", "split"};
    const char *name = names[call->op];
    const char *kind = shd_comm_kind_name(call->kind);

    switch (call->op) {
    case SHD_COMM_OP_BARRIER:
    case SHD_COMM_OP_SPLIT:
        snprintf(buf, len, "%s", name);
        break;
    case SHD_COMM_OP_BROADCAST:
        snprintf(buf, len, "%s of %zu bytes from rank %u (%s)", name, call->bytes, call->root,
                 kind);
        break;
    default:
        snprintf(buf, len, "%s of %zu bytes (%s)", name, call->bytes, kind);
        break;
    }
}

shd_comm_family *shd_comm_family_create(void)
{
    shd_comm_family *family = shd_calloc(1, sizeof(*family));
    atomic_init(&family->refs, 1);
    atomic_init(&family->code, 0);
    pthread_mutex_init(&family->mutex, NULL);
    return family;
}

shd_comm_family *shd_comm_family_ref(shd_comm_family *family)
{
    atomic_fetch_add_explicit(&family->refs, 1, memory_order_relaxed);
    return family;
}

void shd_comm_family_unref(shd_comm_family *family)
{
    if (atomic_fetch_sub_explicit(&family->refs, 1, memory_order_acq_rel) == 1) {
        pthread_mutex_destroy(&family->mutex);
        free(family);
    }
}

void shd_comm_family_set(shd_comm_family *family, int code, const char *message)
{
    if (atomic_load_explicit(&family->code, memory_order_relaxed) != 0) {
        return;
    }
    snprintf(family->message, sizeof(family->message), "%s", message);
    atomic_store_explicit(&family->code, code < 0 ? code : SHD_ECOMM, memory_order_release);
}

int shd_comm_family_check(const shd_comm_family *family, shd_error *err)
{
    const int code = atomic_load_explicit(&family->code, memory_order_acquire);
    return code == 0 ? 0 : shd_fail(err, code, "%s", family->message);
}

void shd_comm_init(shd_comm *comm, const shd_comm_vtable *vtable, shd_comm_family *family,
                   uint32_t rank, uint32_t size, const shd_comm *parent)
{
    comm->vtable = vtable;
    comm->family = shd_comm_family_ref(family);
    comm->rank = rank;
    comm->size = size;
    comm->timeout_ms = parent != NULL ? parent->timeout_ms : 0;
    comm->owns_counters = parent == NULL;
    comm->counters = parent != NULL ? parent->counters
                                    : shd_calloc(SHD_COMM_KIND_COUNT, sizeof(*comm->counters));
}

void shd_comm_free(shd_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    comm->vtable->fini(comm);
    shd_comm_family_unref(comm->family);
    if (comm->owns_counters) {
        free(comm->counters);
    }
    free(comm);
}

uint32_t shd_comm_rank(const shd_comm *comm)
{
    return comm->rank;
}

uint32_t shd_comm_size(const shd_comm *comm)
{
    return comm->size;
}

void shd_comm_set_timeout(shd_comm *comm, uint32_t ms)
{
    comm->timeout_ms = ms;
}

int shd_comm_split(shd_comm *comm, const uint32_t *members, uint32_t n, shd_comm **out,
                   shd_error *err)
{
    return comm->vtable->split(comm, members, n, out, err);
}

static _Thread_local uint64_t thread_ns;

uint64_t shd_comm_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t shd_comm_thread_ns(void)
{
    return thread_ns;
}

static int run(shd_comm *comm, const shd_comm_call *call, shd_device *dev, uint64_t sent,
               shd_error *err)
{
    const uint64_t began = shd_comm_now_ns();
    const int rc = comm->vtable->call(comm, call, dev, err);
    thread_ns += shd_comm_now_ns() - began;
    SHD_TRY(rc);
    shd_comm_counter *counter = &comm->counters[call->kind];
    atomic_fetch_add_explicit(&counter->bytes, sent, memory_order_relaxed);
    atomic_fetch_add_explicit(&counter->calls, 1, memory_order_relaxed);
    return 0;
}

int shd_comm_all_gather(shd_comm *comm, shd_comm_kind kind, shd_device *dev, const void *send,
                        void *recv, size_t bytes, shd_error *err)
{
    const shd_comm_call call = {
        .op = SHD_COMM_OP_ALL_GATHER, .kind = kind, .send = send, .recv = recv, .bytes = bytes};
    return run(comm, &call, dev, (uint64_t)bytes * (comm->size - 1), err);
}

int shd_comm_all_to_all(shd_comm *comm, shd_comm_kind kind, shd_device *dev, const void *send,
                        size_t stride, void *recv, size_t bytes, shd_error *err)
{
    const shd_comm_call call = {.op = SHD_COMM_OP_ALL_TO_ALL,
                                .kind = kind,
                                .send = send,
                                .recv = recv,
                                .bytes = bytes,
                                .stride = stride};
    if (stride < bytes) {
        return shd_fail(err, SHD_EINVAL, "all_to_all: stride %zu is below the block's %zu bytes",
                        stride, bytes);
    }
    return run(comm, &call, dev, (uint64_t)bytes * (comm->size - 1), err);
}

int shd_comm_broadcast(shd_comm *comm, shd_comm_kind kind, shd_device *dev, void *buf, size_t bytes,
                       uint32_t root, shd_error *err)
{
    const shd_comm_call call = {.op = SHD_COMM_OP_BROADCAST,
                                .kind = kind,
                                .send = buf,
                                .recv = buf,
                                .bytes = bytes,
                                .root = root};
    if (root >= comm->size) {
        return shd_fail(err, SHD_EINVAL, "broadcast: root %u is not one of %u ranks", root,
                        comm->size);
    }
    return run(comm, &call, dev, comm->rank == root ? (uint64_t)bytes * (comm->size - 1) : 0, err);
}

int shd_comm_all_gather_host(shd_comm *comm, shd_comm_kind kind, const void *send, void *recv,
                             size_t bytes, shd_error *err)
{
    const shd_comm_call call = {.op = SHD_COMM_OP_ALL_GATHER_HOST,
                                .kind = kind,
                                .send = send,
                                .recv = recv,
                                .bytes = bytes};
    return run(comm, &call, NULL, (uint64_t)bytes * (comm->size - 1), err);
}

int shd_comm_barrier(shd_comm *comm, shd_error *err)
{
    const shd_comm_call call = {.op = SHD_COMM_OP_BARRIER, .kind = SHD_COMM_CONTROL};
    return run(comm, &call, NULL, 0, err);
}

void shd_comm_abort(shd_comm *comm, int code, const char *message)
{
    comm->vtable->abort(comm, code, message);
}

int shd_comm_check(const shd_comm *comm, shd_error *err)
{
    return shd_comm_family_check(comm->family, err);
}

void shd_comm_counts(const shd_comm *comm, shd_comm_count out[SHD_COMM_KIND_COUNT])
{
    for (int i = 0; i < SHD_COMM_KIND_COUNT; i++) {
        out[i].bytes = atomic_load_explicit(&comm->counters[i].bytes, memory_order_relaxed);
        out[i].calls = atomic_load_explicit(&comm->counters[i].calls, memory_order_relaxed);
    }
}
