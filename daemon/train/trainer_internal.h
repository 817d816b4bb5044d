/* What the files of the trainer share: the trainer, and the crew that carries it. Floor F4; private
 * to daemon/train. */
#ifndef SHD_DAEMON_TRAIN_TRAINER_INTERNAL_H
#define SHD_DAEMON_TRAIN_TRAINER_INTERNAL_H

#include <stdatomic.h>
#include <time.h>

#include "daemon/train/reshard.h"
#include "daemon/train/train_data.h"
#include "daemon/train/trainer.h"
#include "daemon/train/worker.h"

typedef struct shd_crew_slot {
    shd_trainer *trainer;
    shd_rank *rank; /* borrowed */
    shd_worker *worker;
    shd_work result;
} shd_crew_slot;

/* The workers of a job under one plan. A job has one crew and, while it is resharded, the next. */
typedef struct shd_crew {
    shd_spec spec;
    shd_plan plan;
    shd_worker_shared shared; /* data, windows and model are the trainer's */
    shd_crew_slot *slots;     /* [world] */
} shd_crew;

typedef enum shd_pace {
    SHD_PACE_FORWARD = 0,
    SHD_PACE_GRADIENTS,
    SHD_PACE_FIRST_VALUES,
    SHD_PACE_EXPORT,
    SHD_PACE_RESHARD,
    SHD_PACE_COUNT
} shd_pace;

struct shd_trainer {
    shd_crew *crew;
    shd_reshard *reshard; /* under way, or NULL */
    shd_model *model;
    shd_param_source from;
    shd_train_data *data;                               /* NULL: none */
    shd_comm_count (*comm_before)[SHD_COMM_KIND_COUNT]; /* [n_before] of crews before, by rank */
    uint32_t n_before;
    shd_work *work;                  /* in flight, or NULL */
    shd_work *unfinished;            /* had a turn and waits for the next, or NULL */
    uint64_t turn;                   /* rounds of the present turn */
    double round_ms[SHD_PACE_COUNT]; /* of the last turn; 0: not known yet */
    _Atomic(double) loss_scale;      /* of the next step */
    struct timespec started;
    atomic_uint remaining;
};

/* Workers for `spec` on `ranks`, with what the trainer has of model and data; nothing is allocated
 * on the ranks. */
int shd_crew_create(shd_trainer *trainer, const shd_spec *spec, const shd_plan *plan,
                    shd_rank *const *ranks, shd_crew **out, shd_error *err);
void shd_crew_free(shd_crew *crew); /* when idle; NULL is fine */

/* Called by each rank of the item in flight when its turn is over; the last one's ends the turn. */
void shd_trainer_rank_done(shd_trainer *trainer);

/* ---- reshard.c ---- */

/* Posts the item in flight to all ranks that take part. */
void shd_reshard_post(shd_reshard *reshard);
/* What came of the turn: rc, err, more, step, samples of `work`. */
void shd_reshard_result(const shd_reshard *reshard, shd_work *work);
void shd_reshard_abort(shd_reshard *reshard, int code, const char *message);

#endif
