/* Which strategies fit a machine, and which of them is the cheapest. Floor F4; any thread. */
#ifndef SHD_DAEMON_TRAIN_ADVISE_H
#define SHD_DAEMON_TRAIN_ADVISE_H

#include <stdint.h>

#include "daemon/train/machine.h"
#include "daemon/train/plan.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_advice {
    shd_strategy strategy;
    shd_checkpointing checkpointing;
    uint64_t bytes;      /* that a rank needs */
    uint64_t comm_bytes; /* sent by a rank and step */
    uint64_t between;    /* of these, to other nodes */
    double step_s;       /* 0: no estimate */
    int fits;
} shd_advice;

#define SHD_ADVISE_ANY UINT64_MAX

/* Plans `spec` under every preset, those with groups under the smallest three sizes of a node, two,
 * four... nodes that can hold the model's states, each with the least checkpointing of activations
 * that fits in `memory` bytes of a rank (SHD_ADVISE_ANY: as the spec says, and everything fits).
 * Whose model states alone are too large is left out. *out gets those that fit, at most `most`, the
 * cheapest first: by the time of a step, where the machine's rates are known, else by the bytes
 * that leave a node, then by all that are sent; equals by memory. When none fits it gets the one
 * that needs least. Freed with free(). */
int shd_advise(const shd_spec *spec, int threads_per_rank, const shd_machine *machine,
               uint64_t memory, uint32_t most, shd_advice **out, uint32_t *n, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
