/* Ranks that are threads of one daemon. A collective is: every rank publishes what it calls and its
 * pointers, all meet, each copies what it needs out of the others' memory with its own device, all
 * meet again. Only the first meeting waits for ranks that may never come, so only that one can be
 * aborted or time out, and whether it came about is decided by one compare-and-swap: after it
 * every rank copies and the second meeting is sure. Hence nobody leaves a collective while another
 * still reads its memory. Floor F2. */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/comm/comm.h"
#include "daemon/comm/comm_impl.h"

/* Some tens of microseconds: ranks of equal speed meet within it, a late one is worth a sleep. */
#define SPIN_ROUNDS 600

#define ABORTED 1u /* bit 0 of `phase` */
#define PHASE 2u   /* one meeting that came about */

typedef struct group group;

/* What one rank publishes. Written before it comes to a meeting, read by others after it. */
typedef struct slot {
    _Alignas(64) shd_comm_call call;
    const uint32_t *members; /* split */
    uint32_t n;
    group *child;             /* split: made by the first member */
    _Atomic uint64_t entered; /* number of the last collective that the rank came to */
} slot;

struct group {
    _Alignas(64) _Atomic uint32_t phase; /* meetings * PHASE | ABORTED; the futex */
    _Alignas(64) _Atomic uint32_t arrived;
    _Atomic uint32_t refs; /* handles */
    uint32_t size;
    int spin;
    shd_comm_family *family; /* one reference */
    group *prev, *next;      /* under the family's mutex */
    void *memory;            /* what was allocated: this, before alignment */
    slot slots[];
};

typedef struct local_comm {
    shd_comm base;
    group *group; /* one reference */
    uint64_t entered;
} local_comm;

static const shd_comm_vtable local_vtable;

static void wake_all(group *g)
{
    syscall(SYS_futex, &g->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- groups ---- */

static group *group_create(shd_comm_family *family, uint32_t size)
{
    const size_t bytes = sizeof(group) + size * sizeof(slot);
    void *memory = shd_calloc(1, bytes + _Alignof(group));
    const uintptr_t past = (uintptr_t)memory % _Alignof(group);
    group *g = (group *)((char *)memory + (past != 0 ? _Alignof(group) - past : 0));
    g->memory = memory;
    g->size = size;
    g->spin = size <= (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    g->family = shd_comm_family_ref(family);
    atomic_init(&g->refs, size);

    pthread_mutex_lock(&family->mutex);
    const int aborted = atomic_load_explicit(&family->code, memory_order_relaxed) != 0;
    atomic_init(&g->phase, aborted ? ABORTED : 0);
    g->next = family->groups;
    if (g->next != NULL) {
        g->next->prev = g;
    }
    family->groups = g;
    pthread_mutex_unlock(&family->mutex);
    return g;
}

static void group_unref(group *g)
{
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    pthread_mutex_lock(&g->family->mutex);
    if (g->prev != NULL) {
        g->prev->next = g->next;
    } else {
        g->family->groups = g->next;
    }
    if (g->next != NULL) {
        g->next->prev = g->prev;
    }
    pthread_mutex_unlock(&g->family->mutex);
    shd_comm_family_unref(g->family);
    free(g->memory);
}

static void family_abort(shd_comm_family *family, int code, const char *message)
{
    pthread_mutex_lock(&family->mutex);
    shd_comm_family_set(family, code, message);
    for (group *g = family->groups; g != NULL; g = g->next) {
        atomic_fetch_or_explicit(&g->phase, ABORTED, memory_order_release);
        wake_all(g);
    }
    pthread_mutex_unlock(&family->mutex);
}

/* ---- meetings ---- */

static int met(uint32_t word, uint32_t seen)
{
    return (word & ~ABORTED) != (seen & ~ABORTED);
}

/* Waits until the meeting that `seen` was read before has come about, or, when `abortable`, the
 * group is aborted, or deadline_ns (0: none) has passed. Returns the last word read. */
static uint32_t wait_phase(group *g, uint32_t seen, int abortable, uint64_t deadline_ns)
{
    for (int i = 0; g->spin && i < SPIN_ROUNDS; i++) {
        const uint32_t word = atomic_load_explicit(&g->phase, memory_order_acquire);
        if (met(word, seen) || (abortable && (word & ABORTED))) {
            return word;
        }
        __builtin_ia32_pause();
    }
    for (;;) {
        const uint32_t word = atomic_load_explicit(&g->phase, memory_order_acquire);
        if (met(word, seen) || (abortable && (word & ABORTED))) {
            return word;
        }
        struct timespec left, *timeout = NULL;
        if (deadline_ns != 0) {
            const uint64_t now = shd_comm_now_ns();
            if (now >= deadline_ns) {
                return word;
            }
            left.tv_sec = (time_t)((deadline_ns - now) / 1000000000u);
            left.tv_nsec = (long)((deadline_ns - now) % 1000000000u);
            timeout = &left;
        }
        syscall(SYS_futex, &g->phase, FUTEX_WAIT_PRIVATE, word, timeout, NULL, 0);
    }
}

/* The second meeting: all ranks passed the first, so all come. */
static void meet_again(group *g)
{
    const uint32_t seen = atomic_load_explicit(&g->phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&g->arrived, 1, memory_order_acq_rel) + 1 == g->size) {
        atomic_store_explicit(&g->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&g->phase, PHASE, memory_order_acq_rel);
        wake_all(g);
        return;
    }
    wait_phase(g, seen, 0, 0);
}

/* Time is over: aborts, naming the first rank that has not come. */
static void abort_missing(local_comm *comm, const shd_comm_call *call)
{
    char what[128], message[SHD_ERROR_MESSAGE_MAX];
    group *g = comm->group;

    shd_comm_call_describe(call, what, sizeof(what));
    for (uint32_t i = 0; i < g->size; i++) {
        if (atomic_load_explicit(&g->slots[i].entered, memory_order_acquire) < comm->entered) {
            snprintf(message, sizeof(message),
                     "rank %u of %u did not come to %s within %u ms; rank %u waited", i, g->size,
                     what, comm->base.timeout_ms, comm->base.rank);
            family_abort(g->family, SHD_ETIMEOUT, message);
            return;
        }
    }
    /* The last one came at this very moment. */
}

/* Every rank sees the same slots, so that all come to the same verdict. */
static int check_match(group *g, shd_error *err)
{
    const shd_comm_call *a = &g->slots[0].call;
    for (uint32_t i = 1; i < g->size; i++) {
        const shd_comm_call *b = &g->slots[i].call;
        if (a->op != b->op || a->kind != b->kind || a->bytes != b->bytes || a->root != b->root) {
            char what_a[128], what_b[128], message[SHD_ERROR_MESSAGE_MAX];
            shd_comm_call_describe(a, what_a, sizeof(what_a));
            shd_comm_call_describe(b, what_b, sizeof(what_b));
            snprintf(message, sizeof(message),
                     "collectives do not match: rank 0 calls %s, rank %u calls %s", what_a, i,
                     what_b);
            family_abort(g->family, SHD_ECOMM, message);
            return shd_comm_family_check(g->family, err);
        }
    }
    return 0;
}

/* The first meeting: publishes `call` and waits until every rank has come with a matching one. On
 * success every rank is bound to meet_again. */
static int meet(local_comm *comm, const shd_comm_call *call, const uint32_t *members, uint32_t n,
                shd_error *err)
{
    group *g = comm->group;
    slot *own = &g->slots[comm->base.rank];
    const uint32_t seen = atomic_load_explicit(&g->phase, memory_order_acquire);

    if (seen & ABORTED) {
        return shd_comm_family_check(g->family, err);
    }
    own->call = *call;
    own->members = members;
    own->n = n;
    comm->entered++;
    atomic_store_explicit(&own->entered, comm->entered, memory_order_release);
    if (atomic_fetch_add_explicit(&g->arrived, 1, memory_order_acq_rel) + 1 == g->size) {
        uint32_t expected = seen;
        atomic_store_explicit(&g->arrived, 0, memory_order_relaxed);
        if (!atomic_compare_exchange_strong_explicit(&g->phase, &expected, seen + PHASE,
                                                     memory_order_acq_rel, memory_order_acquire)) {
            return shd_comm_family_check(g->family, err);
        }
        wake_all(g);
        return check_match(g, err);
    }

    const uint32_t ms = comm->base.timeout_ms;
    uint32_t word =
        wait_phase(g, seen, 1, ms == 0 ? 0 : shd_comm_now_ns() + (uint64_t)ms * 1000000u);
    if (!met(word, seen) && !(word & ABORTED)) {
        abort_missing(comm, call);
        word = wait_phase(g, seen, 1, 0);
    }
    return met(word, seen) ? check_match(g, err) : shd_comm_family_check(g->family, err);
}

/* ---- operations ---- */

static void copy(shd_device *dev, void *dst, const void *src, size_t bytes)
{
    if (dst == src || bytes == 0) {
        return;
    }
    if (dev != NULL) {
        shd_device_to_device(dev, dst, src, bytes);
    } else {
        memcpy(dst, src, bytes);
    }
}

static int local_call(shd_comm *base, const shd_comm_call *call, shd_device *dev, shd_error *err)
{
    local_comm *comm = (local_comm *)base;
    group *g = comm->group;

    if (base->size == 1) {
        SHD_TRY(shd_comm_family_check(base->family, err));
        if (call->op != SHD_COMM_OP_BROADCAST && call->op != SHD_COMM_OP_BARRIER) {
            copy(dev, call->recv, call->send, call->bytes);
        }
        return 0;
    }
    SHD_TRY(meet(comm, call, NULL, 0, err));
    if (call->op == SHD_COMM_OP_BARRIER) {
        meet_again(g); /* the others have looked at what this rank called */
        return 0;
    }
    if (call->op == SHD_COMM_OP_BROADCAST) {
        copy(dev, call->recv, g->slots[call->root].call.send, call->bytes);
        meet_again(g);
        return 0;
    }
    /* Each rank begins with its own part, so that not all read the same memory at once. */
    for (uint32_t k = 0; k < base->size; k++) {
        const uint32_t from = (base->rank + k) % base->size;
        const shd_comm_call *theirs = &g->slots[from].call;
        const char *src = theirs->send;
        if (call->op == SHD_COMM_OP_ALL_TO_ALL && call->bytes > 0) {
            src += (size_t)base->rank * theirs->stride;
        }
        copy(dev, (char *)call->recv + (size_t)from * call->bytes, src, call->bytes);
    }
    meet_again(g);
    return 0;
}

static local_comm *handle_create(group *g, uint32_t rank, const shd_comm *parent)
{
    local_comm *comm = shd_calloc(1, sizeof(*comm));
    shd_comm_init(&comm->base, &local_vtable, g->family, rank, g->size, parent);
    comm->group = g;
    return comm;
}

void shd_comm_local_create(uint32_t size, shd_comm **out)
{
    shd_comm_family *family = shd_comm_family_create();
    group *g = group_create(family, size);
    shd_comm_family_unref(family);
    for (uint32_t i = 0; i < size; i++) {
        out[i] = &handle_create(g, i, NULL)->base;
    }
}

/* Place of `rank` in the list that rank `owner` gave, or the list's length. */
static uint32_t place_in(const group *g, uint32_t owner, uint32_t rank)
{
    const slot *s = &g->slots[owner];
    uint32_t i = 0;
    while (i < s->n && s->members[i] != rank) {
        i++;
    }
    return i;
}

/* Every rank checks every list, so that all come to the same verdict. */
static int check_split(const group *g, shd_error *err)
{
    for (uint32_t r = 0; r < g->size; r++) {
        const slot *own = &g->slots[r];
        if (place_in(g, r, r) == own->n) {
            return shd_fail(err, SHD_ECOMM, "split: rank %u is not in its own group", r);
        }
        for (uint32_t i = 0; i < own->n; i++) {
            const uint32_t m = own->members[i];
            if (m >= g->size || place_in(g, r, m) != i) {
                return shd_fail(err, SHD_ECOMM, "split: rank %u names member %u of %u ranks%s", r,
                                m, g->size, m < g->size ? " twice" : "");
            }
            const slot *other = &g->slots[m];
            if (other->n != own->n ||
                memcmp(other->members, own->members, own->n * sizeof(*own->members)) != 0) {
                return shd_fail(err, SHD_ECOMM, "split: ranks %u and %u do not give the same group",
                                r, m);
            }
        }
    }
    return 0;
}

static int local_split(shd_comm *base, const uint32_t *members, uint32_t n, shd_comm **out,
                       shd_error *err)
{
    const shd_comm_call call = {.op = SHD_COMM_OP_SPLIT, .kind = SHD_COMM_CONTROL};
    local_comm *comm = (local_comm *)base;
    group *g = comm->group;
    shd_error verdict;

    SHD_TRY(meet(comm, &call, members, n, err));
    const int rc = check_split(g, &verdict);
    if (rc == 0 && members[0] == base->rank) {
        g->slots[base->rank].child = group_create(g->family, n);
    }
    meet_again(g);
    if (rc < 0) {
        family_abort(g->family, rc, verdict.message);
        return shd_comm_family_check(g->family, err);
    }
    *out =
        &handle_create(g->slots[members[0]].child, place_in(g, base->rank, base->rank), base)->base;
    meet_again(g);
    return 0;
}

static void local_abort(shd_comm *base, int code, const char *message)
{
    family_abort(base->family, code, message);
}

static void local_fini(shd_comm *base)
{
    group_unref(((local_comm *)base)->group);
}

static const shd_comm_vtable local_vtable = {
    .call = local_call,
    .split = local_split,
    .abort = local_abort,
    .fini = local_fini,
};
