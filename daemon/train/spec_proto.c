/* A specification as the message that would make the same job; see spec.h. Floor F4; pure. */
#include "daemon/base/mem.h"
#include "daemon/train/spec.h"

#define SET(field, Case, value)                                                                    \
    do {                                                                                           \
        out->has_##field##_case = SHARD__V1__JOB_SPEC__HAS_##Case;                                 \
        out->field = (value);                                                                      \
    } while (0)

static void set_schedule(const shd_spec *spec, Shard__V1__JobSpec *out)
{
    const shd_schedule *s = &spec->schedule;
    if (shd_schedule_ends(s->kind)) {
        SET(lr_min, LR_MIN_LR_MIN, s->lr_min);
    }
    if (s->kind == SHD_SCHEDULE_WSD) {
        SET(decay_steps, DECAY_STEPS_DECAY_STEPS, s->decay_steps);
    }
}

static void set_optimizer(const shd_spec *spec, Shard__V1__JobSpec *out)
{
    const shd_optim *o = &spec->optim;
    if (o->kind == SHD_OPTIM_SGD) {
        SET(momentum, MOMENTUM_MOMENTUM, o->momentum);
        out->nesterov = o->nesterov;
        return;
    }
    SET(beta1, BETA1_BETA1, o->beta1);
    SET(beta2, BETA2_BETA2, o->beta2);
    if (o->kind != SHD_OPTIM_LION) {
        SET(eps, EPS_EPS, o->eps);
    }
}

static void set_scaler(const shd_spec *spec, Shard__V1__JobSpec *out)
{
    const shd_scaler_config *c = &spec->scaler;
    if (!c->enabled) {
        return;
    }
    SET(loss_scale, LOSS_SCALE_LOSS_SCALE, c->loss_scale);
    if (c->loss_scale > 0) {
        return;
    }
    SET(initial_scale_power, INITIAL_SCALE_POWER_INITIAL_SCALE_POWER, c->initial_scale_power);
    SET(loss_scale_window, LOSS_SCALE_WINDOW_LOSS_SCALE_WINDOW, c->loss_scale_window);
    SET(hysteresis, HYSTERESIS_HYSTERESIS, c->hysteresis);
    SET(min_loss_scale, MIN_LOSS_SCALE_MIN_LOSS_SCALE, c->min_loss_scale);
}

static void set_pipeline(const shd_spec *spec, Shard__V1__JobSpec *out)
{
    const shd_pipeline_settings *p = &spec->pipeline;
    SET(prefetch, PREFETCH_PREFETCH, p->prefetch);
    SET(max_gathered, MAX_GATHERED_MAX_GATHERED, p->max_gathered);
    SET(bucket_bytes, BUCKET_BYTES_BUCKET_BYTES, p->bucket_bytes);
    SET(overlap, OVERLAP_OVERLAP, p->overlap);
    SET(persist_below, PERSIST_BELOW_PERSIST_BELOW, p->persist_below);
}

Shard__V1__JobSpec *shd_spec_to_proto(const shd_spec *spec)
{
    Shard__V1__JobSpec *out = shd_malloc(sizeof *out);
    shard__v1__job_spec__init(out);
    out->name = shd_strdup(spec->name);
    out->model = shd_strdup(spec->model_name != NULL ? spec->model_name : "");
    out->data = shd_strdup(spec->data_path != NULL ? spec->data_path : "");
    out->tokenizer = shd_strdup(spec->tokenizer != NULL ? spec->tokenizer : "");
    out->strategy = shd_strdup(shd_strategy_name(&spec->strategy));
    out->n_shard_degrees = 3;
    out->shard_degrees = shd_calloc(3, sizeof *out->shard_degrees);
    out->shard_degrees[0] = spec->strategy.p;
    out->shard_degrees[1] = spec->strategy.g;
    out->shard_degrees[2] = spec->strategy.o;
    char reshard[SHD_STRATEGY_RESHARD_LEN];
    out->reshard_after_forward = shd_strdup(shd_strategy_reshard(&spec->strategy, reshard));
    const uint32_t group = shd_strategy_shard_group(&spec->strategy);
    if (group > 0) {
        SET(shard_group, SHARD_GROUP_SHARD_GROUP, group);
    }
    out->optimizer = shd_strdup(shd_optim_name(spec->optim.kind));
    out->schedule = shd_strdup(shd_schedule_name(spec->schedule.kind));
    out->dtype = shd_strdup(shd_dtype_name(spec->dtype));
    out->reduce_dtype = shd_strdup(shd_dtype_name(spec->reduce_dtype));
    out->activation_checkpointing = shd_strdup(shd_checkpointing_name(spec->checkpointing));
    out->offload_optimizer = shd_strdup("none");
    out->offload_params = shd_strdup("none");
    out->determinism = shd_strdup(shd_determinism_name(spec->determinism));
    out->eval_data = shd_strdup(spec->eval_path != NULL ? spec->eval_path : "");
    out->init_from = shd_strdup(spec->init_from != NULL ? spec->init_from : "");
    out->data_format = shd_strdup(shd_data_format_name(spec->data_format));
    SET(ranks, RANKS_RANKS, spec->strategy.world);
    SET(steps, STEPS_STEPS, spec->steps);
    SET(micro_batch, MICRO_BATCH_MICRO_BATCH, spec->micro_batch);
    SET(global_batch, GLOBAL_BATCH_GLOBAL_BATCH, spec->global_batch);
    SET(seq_len, SEQ_LEN_SEQ_LEN, spec->seq_len);
    SET(lr, LR_LR, spec->schedule.lr);
    SET(warmup, WARMUP_WARMUP, spec->schedule.warmup);
    SET(weight_decay, WEIGHT_DECAY_WEIGHT_DECAY, spec->weight_decay);
    out->decay_all = spec->decay_all;
    SET(clip, CLIP_CLIP, spec->clip);
    SET(reduction_width, REDUCTION_WIDTH_REDUCTION_WIDTH, spec->reduction_width);
    SET(seed, SEED_SEED, spec->seed);
    SET(checkpoint_every, CHECKPOINT_EVERY_CHECKPOINT_EVERY, 0);
    SET(eval_split, EVAL_SPLIT_EVAL_SPLIT, spec->eval_split);
    SET(eval_every, EVAL_EVERY_EVAL_EVERY, spec->eval_every);
    if (spec->eval_every > 0) {
        SET(eval_batches, EVAL_BATCHES_EVAL_BATCHES, spec->eval_batches);
    }
    SET(priority, PRIORITY_PRIORITY, spec->priority);
    if (spec->data_path != NULL) {
        SET(packing, PACKING_PACKING, spec->packing);
    }
    SET(dropout, DROPOUT_DROPOUT, spec->dropout);
    if (spec->n_freeze > 0) {
        out->freeze = shd_calloc(spec->n_freeze, sizeof *out->freeze);
        for (uint32_t k = 0; k < spec->n_freeze; k++) {
            out->freeze[out->n_freeze++] = shd_strdup(spec->freeze[k]);
        }
    }
    set_pipeline(spec, out);
    set_schedule(spec, out);
    set_optimizer(spec, out);
    set_scaler(spec, out);
    return out;
}
