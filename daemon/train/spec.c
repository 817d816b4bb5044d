/* Checking a job's specification; see spec.h. Floor F4; pure. */
#include "daemon/train/spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

enum { MAX_SEQUENCES = 1 << 20 };

#define MAX_STEPS UINT64_C(1000000000)

static int check_name(const char *name, shd_error *err)
{
    const size_t len = strlen(name);
    if (len > 64) {
        return shd_fail(err, SHD_EINVAL, "--name has %zu characters; at most 64 are allowed", len);
    }
    if (strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != len) {
        return shd_fail(err, SHD_EINVAL,
                        "--name '%s': only letters, digits, '.', '_' and '-' are allowed", name);
    }
    return 0;
}

/* A setting that has one value here and more in other versions. */
static int only(const char *flag, const char *value, const char *accepted, shd_error *err)
{
    if (value[0] == '\0' || strcmp(value, accepted) == 0) {
        return 0;
    }
    return shd_fail(err, SHD_EUNSUPPORTED, "--%s '%s' is not available in this version; use '%s'",
                    flag, value, accepted);
}

static int whole(const char *flag, uint64_t value, uint64_t least, uint64_t most, shd_error *err)
{
    if (value < least || value > most) {
        return shd_fail(err, SHD_EINVAL, "--%s %llu: must be %llu to %llu", flag,
                        (unsigned long long)value, (unsigned long long)least,
                        (unsigned long long)most);
    }
    return 0;
}

/* least <= value <= most; a NaN fails. */
static int real(const char *flag, double value, double least, double most, shd_error *err)
{
    if (!(value >= least && value <= most)) {
        return shd_fail(err, SHD_EINVAL, "--%s %.9g: must be %.9g to %.9g", flag, value, least,
                        most);
    }
    return 0;
}

static int check_unsupported(const Shard__V1__JobSpec *in, shd_error *err)
{
    SHD_TRY(only("tokenizer", in->tokenizer, "bytes", err));
    SHD_TRY(only("optimizer", in->optimizer, "adamw", err));
    SHD_TRY(only("dtype", in->dtype, "fp32", err));
    SHD_TRY(only("reduce-dtype", in->reduce_dtype, "fp32", err));
    SHD_TRY(only("activation-checkpointing", in->activation_checkpointing, "none", err));
    SHD_TRY(only("offload-optimizer", in->offload_optimizer, "none", err));
    SHD_TRY(only("offload-params", in->offload_params, "none", err));
    SHD_TRY(only("init-from", in->init_from, "random", err));
    if (strcmp(in->determinism, "run") != 0) { /* the level strategy holds all of run's promises */
        SHD_TRY(only("determinism", in->determinism, "strategy", err));
    }
    if (in->has_checkpoint_every_case && in->checkpoint_every != 0) {
        return shd_fail(err, SHD_EUNSUPPORTED,
                        "--checkpoint-every %llu: checkpoints are not available in this version; "
                        "leave it out",
                        (unsigned long long)in->checkpoint_every);
    }
    return 0;
}

static int resolve_model(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    if (in->model[0] == '\0') {
        return shd_fail(err, SHD_EINVAL, "--model is missing; give a preset: %s",
                        shd_model_presets());
    }
    if (strchr(in->model, '/') != NULL) {
        return shd_fail(err, SHD_EUNSUPPORTED,
                        "--model '%s': model directories are not available in this version; give "
                        "a preset: %s",
                        in->model, shd_model_presets());
    }
    SHD_TRY(shd_model_preset(in->model, &out->model, err));
    strncpy(out->model_name, in->model, sizeof out->model_name - 1);
    return 0;
}

static int resolve_batch(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    const uint32_t world = out->strategy.world;
    out->micro_batch = in->has_micro_batch_case ? in->micro_batch : 8;
    SHD_TRY(whole("micro-batch", out->micro_batch, 1, MAX_SEQUENCES, err));
    const uint64_t round = (uint64_t)out->micro_batch * world;
    const uint64_t global = in->has_global_batch_case ? in->global_batch : round;
    SHD_TRY(whole("global-batch", global, 1, MAX_SEQUENCES, err));
    if (global % round != 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--global-batch %llu does not divide over --ranks %u with --micro-batch "
                        "%u; give a multiple of %llu, for example %llu",
                        (unsigned long long)global, world, out->micro_batch,
                        (unsigned long long)round,
                        (unsigned long long)((global / round + 1) * round));
    }
    out->global_batch = (uint32_t)global;
    out->accumulation = (uint32_t)(global / round);
    out->seq_len = in->has_seq_len_case ? in->seq_len : (uint32_t)out->model.context;
    SHD_TRY(whole("seq-len", out->seq_len, 1, UINT32_MAX, err));
    if ((int64_t)out->seq_len > out->model.context) {
        return shd_fail(
            err, SHD_EINVAL,
            "--seq-len %u is longer than the model's context of %lld; give at most that",
            out->seq_len, (long long)out->model.context);
    }
    if (in->has_reduction_width_case && in->reduction_width != world) {
        return shd_fail(err, SHD_EUNSUPPORTED,
                        "--reduction-width %u: this version reduces over exactly the ranks of the "
                        "job (%u)",
                        in->reduction_width, world);
    }
    return 0;
}

static int resolve_optimizer(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    const int client_driven = out->data_path == NULL;
    out->steps = in->has_steps_case ? in->steps : client_driven ? 0 : 1000;
    SHD_TRY(whole("steps", out->steps, client_driven ? 0 : 1, MAX_STEPS, err));
    shd_schedule *s = &out->schedule;
    SHD_TRY(shd_schedule_parse(in->schedule, &s->kind, err));
    if (out->steps == 0) {
        if (in->schedule[0] != '\0' && s->kind != SHD_SCHEDULE_CONSTANT) {
            return shd_fail(err, SHD_EINVAL,
                            "--schedule %s needs an end: give --steps, or --schedule constant",
                            in->schedule);
        }
        s->kind = SHD_SCHEDULE_CONSTANT;
    }
    s->steps = out->steps;
    s->lr = in->has_lr_case ? in->lr : 3e-4;
    SHD_TRY(real("lr", s->lr, 0, SHD_SPEC_LR_MAX, err));
    s->lr_min = in->has_lr_min_case ? in->lr_min : s->lr / 10;
    SHD_TRY(real("lr-min", s->lr_min, 0, SHD_SPEC_LR_MAX, err));
    s->warmup = in->has_warmup_case ? in->warmup : 0;
    SHD_TRY(whole("warmup", s->warmup, 0, out->steps > 0 ? out->steps : MAX_STEPS, err));
    out->weight_decay = in->has_weight_decay_case ? in->weight_decay : 0.1;
    SHD_TRY(real("weight-decay", out->weight_decay, 0, SHD_SPEC_WEIGHT_DECAY_MAX, err));
    out->beta1 = in->has_beta1_case ? in->beta1 : 0.9;
    SHD_TRY(real("beta1", out->beta1, 0, 0.9999999, err));
    out->beta2 = in->has_beta2_case ? in->beta2 : 0.95;
    SHD_TRY(real("beta2", out->beta2, 0, 0.9999999, err));
    out->eps = in->has_eps_case ? in->eps : 1e-8;
    SHD_TRY(real("eps", out->eps, 1e-30, 1, err));
    out->clip = in->has_clip_case ? in->clip : 1.0;
    SHD_TRY(real("clip", out->clip, 0, SHD_SPEC_CLIP_MAX, err));
    return 0;
}

static int resolve_eval(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    out->eval_every = in->has_eval_every_case ? in->eval_every : 0;
    SHD_TRY(whole("eval-every", out->eval_every, 0, MAX_STEPS, err));
    out->eval_batches = in->has_eval_batches_case ? in->eval_batches : 64;
    SHD_TRY(whole("eval-batches", out->eval_batches, 0, MAX_SEQUENCES, err));
    if (out->data_path == NULL) {
        if (out->eval_every > 0 || in->eval_data[0] != '\0' ||
            (in->has_eval_split_case && in->eval_split != 0)) {
            return shd_fail(err, SHD_EINVAL,
                            "--eval-every, --eval-data and --eval-split need --data; a job that "
                            "clients drive is evaluated by Forward");
        }
        return 0;
    }
    if (in->eval_data[0] != '\0') {
        if (in->has_eval_split_case && in->eval_split != 0) {
            return shd_fail(err, SHD_EINVAL,
                            "--eval-data and --eval-split %g were both given; give one",
                            in->eval_split);
        }
        out->eval_path = shd_strdup(in->eval_data);
        return 0;
    }
    out->eval_split = in->has_eval_split_case ? in->eval_split : out->eval_every > 0 ? 0.1 : 0;
    SHD_TRY(real("eval-split", out->eval_split, 0, 0.9, err));
    if (out->eval_every > 0 && out->eval_split == 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--eval-every %llu needs something to evaluate on: give --eval-data or an "
                        "--eval-split above 0",
                        (unsigned long long)out->eval_every);
    }
    return 0;
}

static int resolve(const Shard__V1__JobSpec *in, uint32_t max_ranks, shd_spec *out, shd_error *err)
{
    SHD_TRY(check_name(in->name, err));
    strncpy(out->name, in->name, sizeof out->name - 1);
    SHD_TRY(check_unsupported(in, err));
    SHD_TRY(resolve_model(in, out, err));
    const uint32_t ranks = in->has_ranks_case ? in->ranks : max_ranks;
    SHD_TRY(whole("ranks", ranks, 1, SHD_MAX_WORLD, err));
    if (ranks > max_ranks) {
        return shd_fail(err, SHD_EINVAL,
                        "--ranks %u: the daemon has %u; ask for at most that, or start the daemon "
                        "with more",
                        ranks, max_ranks);
    }
    SHD_TRY(shd_strategy_make(in->strategy, in->shard_degrees, (uint32_t)in->n_shard_degrees, ranks,
                              &out->strategy, err));
    if (in->data[0] != '\0') {
        out->data_path = shd_strdup(in->data);
    }
    const int rc = shd_data_format_parse(in->data_format, &out->data_format, err);
    if (rc < 0) {
        return shd_error_prefix(err, rc, "--data-format");
    }
    SHD_TRY(resolve_batch(in, out, err));
    SHD_TRY(resolve_optimizer(in, out, err));
    SHD_TRY(resolve_eval(in, out, err));
    out->seed = in->has_seed_case ? in->seed : 1;
    out->priority = in->has_priority_case ? in->priority : 10;
    return whole("priority", out->priority, 1, 100, err);
}

int shd_spec_resolve(const Shard__V1__JobSpec *in, uint32_t max_ranks, shd_spec *out,
                     shd_error *err)
{
    *out = (shd_spec){0};
    const int rc = resolve(in, max_ranks, out, err);
    if (rc < 0) {
        shd_spec_fini(out);
    }
    return rc;
}

void shd_spec_copy(shd_spec *out, const shd_spec *in)
{
    *out = *in;
    out->data_path = in->data_path != NULL ? shd_strdup(in->data_path) : NULL;
    out->eval_path = in->eval_path != NULL ? shd_strdup(in->eval_path) : NULL;
}

void shd_spec_fini(shd_spec *spec)
{
    free(spec->data_path);
    free(spec->eval_path);
    *spec = (shd_spec){0};
}

#define SET(field, Case, value)                                                                    \
    do {                                                                                           \
        out->has_##field##_case = SHARD__V1__JOB_SPEC__HAS_##Case;                                 \
        out->field = (value);                                                                      \
    } while (0)

Shard__V1__JobSpec *shd_spec_to_proto(const shd_spec *spec)
{
    Shard__V1__JobSpec *out = shd_malloc(sizeof *out);
    shard__v1__job_spec__init(out);
    out->name = shd_strdup(spec->name);
    out->model = shd_strdup(spec->model_name);
    out->data = shd_strdup(spec->data_path != NULL ? spec->data_path : "");
    out->tokenizer = shd_strdup(spec->data_path == NULL ? "" : "bytes");
    out->strategy = shd_strdup(shd_strategy_name(&spec->strategy));
    out->n_shard_degrees = 3;
    out->shard_degrees = shd_calloc(3, sizeof *out->shard_degrees);
    out->shard_degrees[0] = spec->strategy.p;
    out->shard_degrees[1] = spec->strategy.g;
    out->shard_degrees[2] = spec->strategy.o;
    out->optimizer = shd_strdup("adamw");
    out->schedule = shd_strdup(shd_schedule_name(spec->schedule.kind));
    out->dtype = shd_strdup("fp32");
    out->reduce_dtype = shd_strdup("fp32");
    out->activation_checkpointing = shd_strdup("none");
    out->offload_optimizer = shd_strdup("none");
    out->offload_params = shd_strdup("none");
    out->determinism = shd_strdup("strategy");
    out->eval_data = shd_strdup(spec->eval_path != NULL ? spec->eval_path : "");
    out->init_from = shd_strdup("random");
    out->data_format = shd_strdup(shd_data_format_name(spec->data_format));
    SET(ranks, RANKS_RANKS, spec->strategy.world);
    SET(steps, STEPS_STEPS, spec->steps);
    SET(micro_batch, MICRO_BATCH_MICRO_BATCH, spec->micro_batch);
    SET(global_batch, GLOBAL_BATCH_GLOBAL_BATCH, spec->global_batch);
    SET(seq_len, SEQ_LEN_SEQ_LEN, spec->seq_len);
    SET(lr, LR_LR, spec->schedule.lr);
    SET(lr_min, LR_MIN_LR_MIN, spec->schedule.lr_min);
    SET(warmup, WARMUP_WARMUP, spec->schedule.warmup);
    SET(weight_decay, WEIGHT_DECAY_WEIGHT_DECAY, spec->weight_decay);
    SET(beta1, BETA1_BETA1, spec->beta1);
    SET(beta2, BETA2_BETA2, spec->beta2);
    SET(eps, EPS_EPS, spec->eps);
    SET(clip, CLIP_CLIP, spec->clip);
    SET(reduction_width, REDUCTION_WIDTH_REDUCTION_WIDTH, spec->strategy.world);
    SET(seed, SEED_SEED, spec->seed);
    SET(checkpoint_every, CHECKPOINT_EVERY_CHECKPOINT_EVERY, 0);
    SET(eval_split, EVAL_SPLIT_EVAL_SPLIT, spec->eval_split);
    SET(eval_every, EVAL_EVERY_EVAL_EVERY, spec->eval_every);
    SET(eval_batches, EVAL_BATCHES_EVAL_BATCHES, spec->eval_batches);
    SET(priority, PRIORITY_PRIORITY, spec->priority);
    return out;
}
