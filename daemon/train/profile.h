/* What the instructions of a dry run would take on a machine, and the step that they make. Floor
 * F4; private to daemon/train; one thread. */
#ifndef SHD_DAEMON_TRAIN_PROFILE_H
#define SHD_DAEMON_TRAIN_PROFILE_H

#include "daemon/shard/pipeline.h"
#include "daemon/train/machine.h"
#include "daemon/train/plan.h"

/* Counts one step on a null device and a null communicator, instruction by instruction. */
typedef struct shd_profile {
    const shd_machine *machine;      /* borrowed */
    shd_op_work work;                /* given to the device; everything so far */
    const shd_comm *comm;            /* borrowed; of shd_comm_null_create_nodes */
    shd_pipeline_hooks hooks;        /* given to the pipeline */
    const shd_program *program;      /* borrowed; of training */
    int counting;                    /* the step is under way */
    uint32_t rounds;                 /* micro-batches of it that have begun */
    shd_sim_cost *first, *later;     /* [program->n], of the first and of the last of them */
    double flops_first, flops_later; /* of one, without what is computed again */
    /* of the step, its instructions left out: ops, and collectives by kind */
    double rest;
    shd_comm_cost rest_comm[SHD_COMM_KIND_COUNT];
    uint64_t comm_between[SHD_COMM_KIND_COUNT]; /* bytes of the whole step */
    /* when the step began, and when the instruction at hand did */
    shd_op_work step_work, instr_work;
    shd_comm_cost step_comm[SHD_COMM_KIND_COUNT], instr_comm[SHD_COMM_KIND_COUNT];
} shd_profile;

/* hooks and work can be given away before `comm` and `program` are known. */
void shd_profile_init(shd_profile *profile, const shd_machine *machine);
void shd_profile_fini(shd_profile *profile);

/* Around the one step that is counted; `program` is that of its micro-batches. */
void shd_profile_begin(shd_profile *profile, const shd_comm *comm, const shd_program *program);
void shd_profile_end(shd_profile *profile);

/* The step of `spec`, whose micro-batches after the first are all as the last that was counted. */
void shd_profile_estimate(const shd_profile *profile, const shd_spec *spec, shd_estimate *out);

/* Its first micro-batch. */
void shd_profile_schedule(const shd_profile *profile, shd_plan_schedule *out);

#endif
