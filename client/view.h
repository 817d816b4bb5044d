/* Jobs, memory and communication as tables and as JSON: what status, plan and jobs share. */
#ifndef SHD_CLIENT_VIEW_H
#define SHD_CLIENT_VIEW_H

#include "client/buf.h"
#include "client/jsonout.h"
#include "client/term.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The strategy by name, or its degrees where the name is empty; "-" without either. Returns out. */
const char *shc_view_strategy(shc_buf *out, const char *name, const uint32_t *degrees, size_t n);

/* "hybrid_shard p,g,o 4,4,4 of 8 ranks, reshard-after-forward no" ("yes" goes without saying), and,
 * where `asked` names another preset that has these degrees, that it is this here. Returns out. */
const char *shc_view_degrees(shc_buf *out, const char *name, const uint32_t *degrees, size_t n,
                             const char *reshard, const char *asked);

/* Bytes by tag, ranks with equal figures once ("per rank, 2 ranks"), others apart. measured: with
 * the columns now and peak beside planned. */
void shc_view_memory(shc_buf *out, const shc_term *term, Shard__V1__RankMemory *const *memory,
                     size_t n, int measured);
/* Bytes sent by one rank, by kind. measured: with last step, total and calls beside planned; else
 * with those that leave its node, if any do. */
void shc_view_comm(shc_buf *out, const shc_term *term, Shard__V1__CommStats *const *comm, size_t n,
                   int measured);

/* A byte figure: {"planned", "now", "peak"}, null for what is not known (SHC_UNKNOWN). */
#define SHC_UNKNOWN UINT64_MAX
void shc_json_bytes(shc_json *json, const char *key, uint64_t planned, uint64_t now, uint64_t peak);
/* Members "memory" and "comm", arrays. measured: 0 leaves now and peak null. */
void shc_json_memory(shc_json *json, Shard__V1__RankMemory *const *memory, size_t n, int measured);
void shc_json_comm(shc_json *json, Shard__V1__CommStats *const *comm, size_t n, int measured);
/* The members of a job, into an open object. */
void shc_json_job(shc_json *json, const Shard__V1__Job *job);
/* Member "spec": the specification under the names of the flags. */
void shc_json_spec(shc_json *json, const Shard__V1__JobSpec *spec);

#ifdef __cplusplus
}
#endif
#endif
