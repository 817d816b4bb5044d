/* Collectives among the ranks of a job. A communicator is what a rank knows of the others.
 * Floor F2; each rank calls its own handle from its own thread; all ranks make the same calls in
 * the same order. Backends: comm_local.c (ranks are threads of one daemon), comm_null.c (counts).
 */
#ifndef SHD_DAEMON_COMM_COMM_H
#define SHD_DAEMON_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a collective is for; bytes are counted under it. */
typedef enum shd_comm_kind {
    SHD_COMM_ALL_GATHER = 0, /* parameters */
    SHD_COMM_REDUCE_SCATTER, /* gradients */
    SHD_COMM_ALL_REDUCE,     /* the gathering half of an all-reduce of gradients */
    SHD_COMM_NORM,           /* block sums of squares */
    SHD_COMM_CONTROL,        /* losses, flags, barriers */
    SHD_COMM_RESHARD,        /* parameters and optimizer state on their way to other ranks */
    SHD_COMM_KIND_COUNT
} shd_comm_kind;

/* "all_gather", "reduce_scatter", ... Static storage. */
const char *shd_comm_kind_name(shd_comm_kind kind);

typedef struct shd_comm_count {
    uint64_t bytes; /* sent by this rank to others */
    uint64_t calls;
} shd_comm_count;

typedef struct shd_comm shd_comm;

/* Makes `size` handles that reach each other within this process; out[i] is rank i's. Each is
 * freed by shd_comm_free. */
void shd_comm_local_create(uint32_t size, shd_comm **out);

/* A handle of rank `rank` among `size` that waits for nobody, moves nothing and counts as the
 * others do. Receive buffers are left as they are; all_gather_host puts the caller's own value at
 * every place. */
shd_comm *shd_comm_null_create(uint32_t rank, uint32_t size);

/* What the collectives of a null handle would take on nodes of `ranks_per_node` consecutive ranks,
 * counted per kind. Of the bytes that a rank sends, `between` leave its node:
 *  - all-gather: a ring that passes through node after node (Thakur, Rabenseifner & Gropp 2005,
 *    section 4.1; NCCL's rings). n - 1 parts leave every node; its ranks share that, so that one of
 *    the m that a node has in the group sends (n - 1) / m of them out.
 *  - all-to-all and broadcast: straight to each of the n - m ranks of other nodes.
 * Where nodes have unequal shares of a group, or groups lie unequally on nodes, m is the least. */
typedef struct shd_comm_cost {
    uint64_t inside, between; /* bytes; together those of shd_comm_count */
    double node_hops,
        net_hops; /* log2 of the ranks of a node, and of the nodes, summed over calls */
} shd_comm_cost;

/* shd_comm_null_create, and costs are counted. ranks_per_node >= 1. */
shd_comm *shd_comm_null_create_nodes(uint32_t rank, uint32_t size, uint32_t ranks_per_node);

/* The costs of the handle, of those it was split from and of all split from these; zero when it is
 * none of shd_comm_null_create_nodes. */
void shd_comm_null_costs(const shd_comm *comm, shd_comm_cost out[SHD_COMM_KIND_COUNT]);

void shd_comm_free(shd_comm *comm); /* NULL is fine */

uint32_t shd_comm_rank(const shd_comm *comm);
uint32_t shd_comm_size(const shd_comm *comm);

/* How long a collective of this handle, and of those split from it afterwards, waits for the other
 * ranks to come, in milliseconds; 0 (the default) is for ever. When the time is over the group is
 * aborted with SHD_ETIMEOUT and a message that names the collective and the missing rank. */
void shd_comm_set_timeout(shd_comm *comm, uint32_t ms);

/* Every call below: a rank that fails for its own reasons must abort, because the others wait for
 * it. Calls that do not match (another collective, kind, size or root on another rank) abort the
 * group with SHD_ECOMM naming both. A call that succeeds adds 1 to `calls` of its kind and what it
 * sent to `bytes`, on every rank and at every size; a barrier counts as SHD_COMM_CONTROL, a split
 * is not counted. Buffers are free for use on return, also after an error. */

/* A communicator of some ranks of this one: members[0..n) are ranks of `comm`, the caller among
 * them; the caller's new rank is its place in the list. Every rank of `comm` calls it at the same
 * point, each with its own group (groups are disjoint). Counts go to the parent's counters.
 * The child must be freed before the parent. SHD_ECOMM (and abort) for lists that do not fit. */
int shd_comm_split(shd_comm *comm, const uint32_t *members, uint32_t n, shd_comm **out,
                   shd_error *err);

/* recv[i*bytes ..] = send of rank i, for every i. `send` may be the caller's own place in recv.
 * Sends bytes * (size - 1). */
int shd_comm_all_gather(shd_comm *comm, shd_comm_kind kind, shd_device *dev, const void *send,
                        void *recv, size_t bytes, shd_error *err);

/* recv[i*bytes ..] = block `rank` of rank i's send, that is send_i + rank*stride; every rank
 * sends block i (at send + i*stride) to rank i. stride >= bytes (SHD_EINVAL); send and recv do not
 * overlap. Sends bytes * (size - 1). */
int shd_comm_all_to_all(shd_comm *comm, shd_comm_kind kind, shd_device *dev, const void *send,
                        size_t stride, void *recv, size_t bytes, shd_error *err);

/* Copies rank root's buf to every rank's. The root sends bytes * (size - 1).
 * SHD_EINVAL when root >= size. */
int shd_comm_broadcast(shd_comm *comm, shd_comm_kind kind, shd_device *dev, void *buf, size_t bytes,
                       uint32_t root, shd_error *err);

/* The same for small host values. */
int shd_comm_all_gather_host(shd_comm *comm, shd_comm_kind kind, const void *send, void *recv,
                             size_t bytes, shd_error *err);

int shd_comm_barrier(shd_comm *comm, shd_error *err);

/* Makes every present and future collective of this communicator, its relatives (split from it, or
 * it from them) and all their ranks fail with `code` (< 0) and `message`; only one whose ranks have
 * all arrived still completes. Any thread. The first abort wins. */
void shd_comm_abort(shd_comm *comm, int code, const char *message);

/* 0, or what the communicator was aborted with: for long work between collectives. Any thread. */
int shd_comm_check(const shd_comm *comm, shd_error *err);

/* Nanoseconds that the calling thread has spent in collectives, its waits for other ranks among
 * them, since it started. */
uint64_t shd_comm_thread_ns(void);

/* Copies of the counters; any thread. */
void shd_comm_counts(const shd_comm *comm, shd_comm_count out[SHD_COMM_KIND_COUNT]);

#ifdef __cplusplus
}
#endif
#endif
