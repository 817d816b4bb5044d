/* Collectives among the ranks of a job. A communicator is what a rank knows of the others.
 * Floor F2; each rank calls its own handle from its own thread; all ranks make the same calls in
 * the same order. Backends: comm_local.c (ranks are threads of one daemon), comm_null.c (counts). */
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

/* A handle of rank `rank` among `size` that moves nothing and counts as the others do. */
shd_comm *shd_comm_null_create(uint32_t rank, uint32_t size);

void shd_comm_free(shd_comm *comm); /* NULL is fine */

uint32_t shd_comm_rank(const shd_comm *comm);
uint32_t shd_comm_size(const shd_comm *comm);

/* A communicator of some ranks of this one: members[0..n) are ranks of `comm`, the caller among
 * them; the caller's new rank is its place in the list. Every rank of `comm` calls it at the same
 * point, each with its own group (groups are disjoint). Counts go to the parent's counters.
 * The child must be freed before the parent. */
int shd_comm_split(shd_comm *comm, const uint32_t *members, uint32_t n, shd_comm **out,
                   shd_error *err);

/* recv[i*bytes ..] = send of rank i, for every i. `send` may be the caller's own place in recv.
 * Sends bytes * (size - 1). */
int shd_comm_all_gather(shd_comm *comm, shd_comm_kind kind, shd_device *dev, const void *send,
                        void *recv, size_t bytes, shd_error *err);

/* recv[i*bytes ..] = block `rank` of rank i's send, that is send_i + rank*stride; every rank
 * sends block i (at send + i*stride) to rank i. Sends bytes * (size - 1). */
int shd_comm_all_to_all(shd_comm *comm, shd_comm_kind kind, shd_device *dev, const void *send,
                        size_t stride, void *recv, size_t bytes, shd_error *err);

/* Copies rank root's buf to every rank's. The root sends bytes * (size - 1). */
int shd_comm_broadcast(shd_comm *comm, shd_comm_kind kind, shd_device *dev, void *buf,
                       size_t bytes, uint32_t root, shd_error *err);

/* The same for small host values. */
int shd_comm_all_gather_host(shd_comm *comm, shd_comm_kind kind, const void *send, void *recv,
                             size_t bytes, shd_error *err);

int shd_comm_barrier(shd_comm *comm, shd_error *err);

/* Makes every present and future collective of this communicator, its relatives and all their
 * ranks fail with `code` and `message`. Any thread. The first abort wins. */
void shd_comm_abort(shd_comm *comm, int code, const char *message);

/* Copies of the counters; any thread. */
void shd_comm_counts(const shd_comm *comm, shd_comm_count out[SHD_COMM_KIND_COUNT]);

#ifdef __cplusplus
}
#endif
#endif
