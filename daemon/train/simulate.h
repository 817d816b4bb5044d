/* How long the instructions of a micro-batch take on a machine, and in which order what happens.
 * Floor F4; pure.
 *
 * The model. There are three lanes: compute (the rank's thread), gather and reduce. Each works in
 * order, one instruction at a time. The rank's thread reaches one instruction after another: what
 * is of another lane it queues there at no cost; at a wait it stands until the instruction that is
 * named is done; everything else it does itself. An instruction takes its latency, then its bytes
 * move, within the node and between nodes at once, then its ops run. Bytes of two lanes on their
 * way at once over the same kind of link get half of its bandwidth each. Compute is not slowed down
 * by communication, and all ranks are alike, so that none waits for another. */
#ifndef SHD_DAEMON_TRAIN_SIMULATE_H
#define SHD_DAEMON_TRAIN_SIMULATE_H

#include <stdint.h>

#include "daemon/shard/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of one instruction; zero for what takes no time. */
typedef struct shd_sim_cost {
    double seconds;         /* of ops */
    double latency;         /* seconds */
    double inside, between; /* bytes that a rank sends within its node, and out of it */
} shd_sim_cost;

/* Bytes per second of a rank; 0: no limit. */
typedef struct shd_sim_links {
    double inside, between;
} shd_sim_links;

/* When the work of an instruction was done, or a wait stood. Seconds from the beginning. */
typedef struct shd_sim_event {
    uint32_t instruction;
    shd_lane lane;
    double begin, end;
} shd_sim_event;

typedef struct shd_sim_result {
    double seconds; /* from the first instruction to the last, lanes idle again */
    double compute; /* of these, ops on the compute lane */
    double exposed; /* and the rest: compute waited for communication */
} shd_sim_result;

/* Runs instrs[n], whose costs are costs[n]. events (NULL: not wanted) [n] are filled in the order
 * in which they begin; of those that begin together, in the order of instructions. */
shd_sim_result shd_simulate(const shd_instr *instrs, uint32_t n, const shd_sim_cost *costs,
                            const shd_sim_links *links, shd_sim_event *events);

/* Seconds of a cost with nothing beside it. */
double shd_sim_seconds(const shd_sim_cost *cost, const shd_sim_links *links);

#ifdef __cplusplus
}
#endif
#endif
