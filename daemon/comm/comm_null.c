/* A communicator without others: waits for nobody and moves nothing, for planning; counts what its
 * collectives would take. Floor F2. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/comm/comm.h"
#include "daemon/comm/comm_impl.h"

/* Shared by a handle and all that are split from it. */
typedef struct null_nodes {
    uint32_t world, ranks_per_node; /* 0 a node: costs are not counted */
    shd_comm_cost costs[SHD_COMM_KIND_COUNT];
} null_nodes;

typedef struct null_comm {
    shd_comm base;
    null_nodes *nodes; /* owned by the handle without parent */
    int owns_nodes;
    uint32_t *ranks;      /* [size] in the world; owned */
    uint32_t least, most; /* ranks that a node has in a group like this one, where it has any */
    uint32_t n_nodes;     /* over which such a group lies, at most */
} null_comm;

static const shd_comm_vtable null_vtable;

/* ---- where a group lies ---- */

/* Counts the members {first + i * stride} node by node. */
static void count_group(null_comm *c, uint32_t first, uint32_t stride)
{
    const uint32_t per = c->nodes->ranks_per_node;
    uint32_t nodes = 0, run = 0;
    for (uint32_t i = 0; i < c->base.size; i++) {
        const uint32_t node = (first + i * stride) / per;
        run++;
        if (i + 1 == c->base.size || (first + (i + 1) * stride) / per != node) {
            c->least = run < c->least ? run : c->least;
            c->most = run > c->most ? run : c->most;
            nodes++;
            run = 0;
        }
    }
    c->n_nodes = nodes > c->n_nodes ? nodes : c->n_nodes;
}

/* Every rank has a group: those of this shape divide the world, so that the worst placed one can be
 * found from the caller's own. */
static void place(null_comm *c)
{
    const uint32_t n = c->base.size, world = c->nodes->world;
    uint32_t low = c->ranks[0], high = low;
    for (uint32_t i = 1; i < n; i++) {
        low = c->ranks[i] < low ? c->ranks[i] : low;
        high = c->ranks[i] > high ? c->ranks[i] : high;
    }
    const uint32_t stride = n > 1 ? (high - low) / (n - 1) : 1, block = n * stride;
    c->least = n;
    c->most = c->n_nodes = 1;
    for (uint32_t first = 0; first + block <= world; first += block) {
        for (uint32_t k = 0; k < stride; k++) {
            count_group(c, first + k, stride);
        }
    }
}

/* ---- handles ---- */

static null_comm *create(shd_comm_family *family, uint32_t rank, uint32_t size,
                         const null_comm *parent)
{
    null_comm *c = shd_calloc(1, sizeof(*c));
    shd_comm_init(&c->base, &null_vtable, family, rank, size,
                  parent != NULL ? &parent->base : NULL);
    c->nodes = parent != NULL ? parent->nodes : shd_calloc(1, sizeof(*c->nodes));
    c->owns_nodes = parent == NULL;
    c->ranks = shd_calloc(size, sizeof(*c->ranks));
    return c;
}

shd_comm *shd_comm_null_create_nodes(uint32_t rank, uint32_t size, uint32_t ranks_per_node)
{
    shd_comm_family *family = shd_comm_family_create();
    null_comm *c = create(family, rank, size, NULL);
    shd_comm_family_unref(family);
    *c->nodes = (null_nodes){.world = size, .ranks_per_node = ranks_per_node};
    for (uint32_t i = 0; i < size; i++) {
        c->ranks[i] = i;
    }
    if (ranks_per_node > 0) {
        place(c);
    }
    return &c->base;
}

shd_comm *shd_comm_null_create(uint32_t rank, uint32_t size)
{
    return shd_comm_null_create_nodes(rank, size, 0);
}

void shd_comm_null_costs(const shd_comm *comm, shd_comm_cost out[SHD_COMM_KIND_COUNT])
{
    memset(out, 0, SHD_COMM_KIND_COUNT * sizeof(*out));
    if (comm->vtable == &null_vtable) {
        memcpy(out, ((const null_comm *)comm)->nodes->costs, SHD_COMM_KIND_COUNT * sizeof(*out));
    }
}

/* ---- calls ---- */

static void count(const null_comm *c, const shd_comm_call *call)
{
    shd_comm_cost *cost = &c->nodes->costs[call->kind];
    const uint64_t n = c->base.size, bytes = call->bytes;
    if (c->nodes->ranks_per_node == 0 || n == 1) {
        return;
    }
    const uint64_t sent =
        call->op == SHD_COMM_OP_BROADCAST && c->base.rank != call->root ? 0 : bytes * (n - 1);
    uint64_t between = 0;
    if (c->n_nodes > 1 && sent > 0) {
        const int ring =
            call->op == SHD_COMM_OP_ALL_GATHER || call->op == SHD_COMM_OP_ALL_GATHER_HOST;
        between = ring ? (sent + c->least - 1) / c->least : bytes * (n - c->least);
    }
    cost->between += between;
    cost->inside += sent - between;
    cost->node_hops += log2(c->most);
    cost->net_hops += log2(c->n_nodes);
}

static int null_call(shd_comm *comm, const shd_comm_call *call, shd_device *dev, shd_error *err)
{
    (void)dev;
    SHD_TRY(shd_comm_family_check(comm->family, err));
    if (call->op == SHD_COMM_OP_ALL_GATHER_HOST && call->bytes > 0) {
        for (uint32_t i = 0; i < comm->size; i++) {
            memmove((char *)call->recv + i * call->bytes, call->send, call->bytes);
        }
    }
    count((const null_comm *)comm, call);
    return 0;
}

static int null_split(shd_comm *comm, const uint32_t *members, uint32_t n, shd_comm **out,
                      shd_error *err)
{
    const null_comm *parent = (const null_comm *)comm;
    SHD_TRY(shd_comm_family_check(comm->family, err));
    uint32_t rank = n;
    for (uint32_t i = 0; i < n; i++) {
        rank = members[i] == comm->rank ? i : rank;
        if (members[i] >= comm->size) {
            return shd_fail(err, SHD_ECOMM, "split: rank %u is not one of %u", members[i],
                            comm->size);
        }
    }
    if (rank == n) {
        return shd_fail(err, SHD_ECOMM, "split: rank %u is not in its own group", comm->rank);
    }
    null_comm *c = create(comm->family, rank, n, parent);
    for (uint32_t i = 0; i < n; i++) {
        c->ranks[i] = parent->ranks[members[i]];
    }
    if (c->nodes->ranks_per_node > 0) {
        place(c);
    }
    *out = &c->base;
    return 0;
}

static void null_abort(shd_comm *comm, int code, const char *message)
{
    pthread_mutex_lock(&comm->family->mutex);
    shd_comm_family_set(comm->family, code, message);
    pthread_mutex_unlock(&comm->family->mutex);
}

static void null_fini(shd_comm *comm)
{
    null_comm *c = (null_comm *)comm;
    free(c->ranks);
    if (c->owns_nodes) {
        free(c->nodes);
    }
}

static const shd_comm_vtable null_vtable = {
    .call = null_call,
    .split = null_split,
    .abort = null_abort,
    .fini = null_fini,
};
