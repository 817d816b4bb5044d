/* Checking a job's specification; see spec.h. Floor F4; pure. */
#include "daemon/train/spec.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

enum { MAX_SEQUENCES = 1 << 20, MAX_PATTERNS = 1000, MAX_UNITS = 1 << 20 };

#define MAX_BYTES (UINT64_C(1) << 50)

#define MAX_STEPS UINT64_C(1000000000)

static const char *const checkpointings[] = {"none", "selective", "full"};
static const char *const levels[] = {"strategy", "run", "world"};

const char *shd_checkpointing_name(shd_checkpointing checkpointing)
{
    return checkpointings[checkpointing];
}

const char *shd_determinism_name(shd_determinism level)
{
    return levels[level];
}

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

/* One of `n` words ("" is the first); *out is its index. */
static int choice(const char *flag, const char *value, const char *const *words, int n, int *out,
                  shd_error *err)
{
    char all[128] = "";
    for (int i = 0; i < n; i++) {
        if (value[0] == '\0' || strcmp(value, words[i]) == 0) {
            *out = i;
            return 0;
        }
        const size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s",
                 i == 0       ? ""
                 : i == n - 1 ? " or "
                              : ", ",
                 words[i]);
    }
    return shd_fail(err, SHD_EINVAL, "--%s '%s' is not known; choose %s", flag, value, all);
}

/* A setting that was given though it has no effect. */
static int idle(const char *flag, int given, const char *with, shd_error *err)
{
    return given ? shd_fail(err, SHD_EINVAL, "--%s has no effect with %s; leave it out", flag, with)
                 : 0;
}

/* How documents are read, where none are; a resolved specification says "auto" and no more. */
static int check_no_data(const Shard__V1__JobSpec *in, const shd_spec *out, shd_error *err)
{
    if (in->data[0] != '\0') {
        return 0;
    }
    SHD_TRY(idle("data-format", out->data_format != SHD_DATA_AUTO, "no --data", err));
    return idle("packing", in->has_packing_case, "no --data", err);
}

static int check_unsupported(const Shard__V1__JobSpec *in, shd_error *err)
{
    SHD_TRY(only("offload-optimizer", in->offload_optimizer, "none", err));
    SHD_TRY(only("offload-params", in->offload_params, "none", err));
    if (in->has_checkpoint_every_case && in->checkpoint_every != 0) {
        return shd_fail(err, SHD_EUNSUPPORTED,
                        "--checkpoint-every %llu: checkpoints are not available in this version; "
                        "leave it out",
                        (unsigned long long)in->checkpoint_every);
    }
    return 0;
}

static int resolve_model(const Shard__V1__JobSpec *in, const shd_model_config *config,
                         shd_spec *out, shd_error *err)
{
    if (in->model[0] == '\0') {
        return shd_fail(err, SHD_EINVAL, "--model is missing; give a preset: %s",
                        shd_model_presets());
    }
    out->model_name = shd_strdup(in->model);
    if (config != NULL) {
        out->model = *config;
        return 0;
    }
    return shd_model_preset(in->model, &out->model, err);
}

static int resolve_init(const Shard__V1__JobSpec *in, int directory, shd_spec *out, shd_error *err)
{
    const char *from = in->init_from;
    if (from[0] == '\0') {
        from = directory ? "pretrained" : "random";
    }
    if (strcmp(from, "pretrained") == 0 && !directory) {
        return shd_fail(err, SHD_EINVAL,
                        "--init-from pretrained: the preset %s has no weights; give --model a "
                        "directory, or --init-from one",
                        out->model_name);
    }
    if (strcmp(from, "random") != 0 && strcmp(from, "pretrained") != 0 &&
        strchr(from, '/') == NULL) {
        return shd_fail(err, SHD_EINVAL,
                        "--init-from '%s' is not known; choose random, pretrained or a directory "
                        "(with a '/')",
                        from);
    }
    out->init_from = shd_strdup(from);
    return 0;
}

static int resolve_strategy(const Shard__V1__JobSpec *in, uint32_t max_ranks, uint32_t node_ranks,
                            shd_spec *out, shd_error *err)
{
    const uint32_t ranks = in->has_ranks_case ? in->ranks : max_ranks;
    if (ranks == 0 || ranks > SHD_MAX_WORLD) {
        return whole("ranks", ranks, 1, max_ranks, err);
    }
    if (ranks > max_ranks) {
        return shd_fail(err, SHD_EINVAL,
                        "--ranks %u: the daemon has %u; ask for at most that, or start the daemon "
                        "with more",
                        ranks, max_ranks);
    }
    if (in->has_shard_group_case) {
        SHD_TRY(whole("shard-group", in->shard_group, 1, ranks, err));
    }
    const shd_strategy_request request = {
        .world = ranks,
        .name = in->strategy,
        .degrees = in->shard_degrees,
        .n_degrees = (uint32_t)in->n_shard_degrees,
        .group = in->has_shard_group_case ? in->shard_group : 0,
        .node = node_ranks,
        .reshard = in->reshard_after_forward,
    };
    return shd_strategy_resolve(&request, &out->strategy, err);
}

static int is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Under the level world, trees of one width are cut over the ranks, which only powers of two allow.
 */
static int resolve_determinism(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    const uint32_t world = out->strategy.world;
    int level = 0;
    SHD_TRY(choice("determinism", in->determinism, levels, 3, &level, err));
    out->determinism = (shd_determinism)level;
    out->reduction_width = in->has_reduction_width_case ? in->reduction_width : world;
    if (level != SHD_DETERMINISM_WORLD) {
        return out->reduction_width == world
                   ? 0
                   : shd_fail(err, SHD_EINVAL,
                              "--reduction-width %u: under --determinism %s sums are over the "
                              "ranks of the job (%u); give --determinism world, or leave it out",
                              out->reduction_width, levels[level], world);
    }
    SHD_TRY(whole("reduction-width", out->reduction_width, 1, SHD_MAX_WORLD, err));
    if (!is_power_of_two(world)) {
        return shd_fail(err, SHD_EINVAL,
                        "--determinism world with --ranks %u: the number of ranks must be a power "
                        "of two; give --ranks %u, or --determinism strategy",
                        world, UINT32_C(1) << (31 - __builtin_clz(world)));
    }
    if (!is_power_of_two(out->reduction_width) || out->reduction_width < world) {
        return shd_fail(err, SHD_EINVAL,
                        "--reduction-width %u: must be a power of two of at least --ranks %u",
                        out->reduction_width, world);
    }
    return 0;
}

/* Settings are good for every strategy: one under which nothing is gathered or reduced leaves them
 * with nothing to do. */
static int resolve_pipeline(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    shd_pipeline_settings *p = &out->pipeline;
    *p = (shd_pipeline_settings)SHD_PIPELINE_SETTINGS_DEFAULT;
    p->prefetch = in->has_prefetch_case ? in->prefetch : p->prefetch;
    p->max_gathered = in->has_max_gathered_case ? in->max_gathered : 0;
    p->bucket_bytes = in->has_bucket_bytes_case ? in->bucket_bytes : 0;
    p->overlap = in->has_overlap_case ? in->overlap : p->overlap;
    p->persist_below = in->has_persist_below_case ? in->persist_below : 0;
    SHD_TRY(whole("prefetch", p->prefetch, 0, MAX_UNITS, err));
    SHD_TRY(whole("max-gathered", p->max_gathered, 0, MAX_UNITS, err));
    SHD_TRY(whole("bucket-bytes", p->bucket_bytes, 0, MAX_BYTES, err));
    SHD_TRY(whole("persist-below", p->persist_below, 0, MAX_BYTES, err));
    if (p->max_gathered > 0 && out->strategy.p > 1 && out->strategy.regather == 1) {
        return shd_fail(err, SHD_EINVAL,
                        "--max-gathered %u: parameters that stay gathered from forward to backward "
                        "(--reshard-after-forward no; --strategy %s) cannot be limited; leave one "
                        "of them out",
                        p->max_gathered, shd_strategy_name(&out->strategy));
    }
    return 0;
}

static int resolve_batch(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    const uint32_t world = out->strategy.world;
    out->micro_batch = in->has_micro_batch_case ? in->micro_batch : 8;
    SHD_TRY(whole("micro-batch", out->micro_batch, 1, MAX_SEQUENCES, err));
    const uint64_t round = (uint64_t)out->micro_batch * world;
    if (round > MAX_SEQUENCES) {
        return shd_fail(err, SHD_EINVAL,
                        "--micro-batch %u on --ranks %u makes a batch of %llu sequences, at most "
                        "%d are possible; give at most %u",
                        out->micro_batch, world, (unsigned long long)round, MAX_SEQUENCES,
                        MAX_SEQUENCES / world);
    }
    /* Under the level world a job is the same whatever the ranks, and so is its batch. */
    const uint64_t tree = (uint64_t)out->micro_batch * out->reduction_width;
    const uint64_t global = in->has_global_batch_case ? in->global_batch : tree;
    SHD_TRY(whole("global-batch", global, 1, MAX_SEQUENCES, err));
    if (global % round != 0) {
        const uint64_t next = (global / round + 1) * round;
        return shd_fail(err, SHD_EINVAL,
                        "--global-batch %llu does not divide over --ranks %u with --micro-batch "
                        "%u; give a multiple of %llu, for example %llu",
                        (unsigned long long)global, world, out->micro_batch,
                        (unsigned long long)round,
                        (unsigned long long)(next <= MAX_SEQUENCES ? next : next - round));
    }
    out->global_batch = (uint32_t)global;
    out->accumulation = (uint32_t)(global / round);
    out->seq_len = in->has_seq_len_case ? in->seq_len : (uint32_t)out->model.context;
    if (out->seq_len == 0) {
        SHD_TRY(whole("seq-len", out->seq_len, 1, (uint64_t)out->model.context, err));
    }
    if ((int64_t)out->seq_len > out->model.context) {
        return shd_fail(
            err, SHD_EINVAL,
            "--seq-len %u is longer than the model's context of %lld; give at most that",
            out->seq_len, (long long)out->model.context);
    }
    return 0;
}

static int resolve_schedule(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    const int client_driven = out->data_path == NULL;
    out->steps = in->has_steps_case ? in->steps : client_driven ? 0 : 1000;
    SHD_TRY(whole("steps", out->steps, client_driven ? 0 : 1, MAX_STEPS, err));
    shd_schedule *s = &out->schedule;
    SHD_TRY(shd_schedule_parse(in->schedule, &s->kind, err));
    if (out->steps == 0 && shd_schedule_ends(s->kind)) {
        if (in->schedule[0] != '\0') {
            return shd_fail(err, SHD_EINVAL,
                            "--schedule %s needs an end: give --steps, or --schedule constant",
                            in->schedule);
        }
        s->kind = SHD_SCHEDULE_CONSTANT;
    }
    s->steps = out->steps;
    s->lr = in->has_lr_case ? in->lr : 3e-4;
    SHD_TRY(real("lr", s->lr, 0, SHD_SPEC_LR_MAX, err));
    char with[64];
    snprintf(with, sizeof with, "--schedule %s", shd_schedule_name(s->kind));
    if (shd_schedule_ends(s->kind)) {
        s->lr_min = in->has_lr_min_case ? in->lr_min : s->lr / 10;
        SHD_TRY(real("lr-min", s->lr_min, 0, SHD_SPEC_LR_MAX, err));
        if (s->lr_min > s->lr) {
            return shd_fail(err, SHD_EINVAL,
                            "--lr-min %g is above --lr %g, from which --schedule %s goes down to "
                            "it; give a smaller one",
                            s->lr_min, s->lr, shd_schedule_name(s->kind));
        }
    } else {
        SHD_TRY(idle("lr-min", in->has_lr_min_case, with, err));
    }
    s->warmup = in->has_warmup_case ? in->warmup : 0;
    SHD_TRY(whole("warmup", s->warmup, 0, out->steps > 0 ? out->steps : MAX_STEPS, err));
    if (s->kind != SHD_SCHEDULE_WSD) {
        return idle("decay-steps", in->has_decay_steps_case, with, err);
    }
    const uint64_t most = out->steps - s->warmup;
    if (most == 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--schedule wsd: --warmup %llu takes all --steps; leave some to decay",
                        (unsigned long long)s->warmup);
    }
    const uint64_t tenth = out->steps < 10 ? 1 : out->steps / 10;
    s->decay_steps = in->has_decay_steps_case ? in->decay_steps : tenth < most ? tenth : most;
    return whole("decay-steps", s->decay_steps, 1, most, err);
}

static int resolve_optimizer(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    shd_optim *o = &out->optim;
    SHD_TRY(shd_optim_parse(in->optimizer, &o->kind, err));
    const int sgd = o->kind == SHD_OPTIM_SGD, lion = o->kind == SHD_OPTIM_LION;
    char with[64];
    snprintf(with, sizeof with, "--optimizer %s", shd_optim_name(o->kind));
    if (sgd) {
        SHD_TRY(idle("beta1", in->has_beta1_case, with, err));
        SHD_TRY(idle("beta2", in->has_beta2_case, with, err));
        o->momentum = in->has_momentum_case ? in->momentum : 0.9;
        SHD_TRY(real("momentum", o->momentum, 0, 0.9999999, err));
        o->nesterov = in->nesterov;
        SHD_TRY(idle("nesterov", o->nesterov && o->momentum == 0, "--momentum 0", err));
    } else {
        SHD_TRY(idle("momentum", in->has_momentum_case, with, err));
        SHD_TRY(idle("nesterov", in->nesterov, with, err));
        o->beta1 = in->has_beta1_case ? in->beta1 : 0.9;
        SHD_TRY(real("beta1", o->beta1, 0, 0.9999999, err));
        o->beta2 = in->has_beta2_case ? in->beta2 : lion ? 0.99 : 0.95;
        SHD_TRY(real("beta2", o->beta2, 0, 0.9999999, err));
    }
    if (sgd || lion) {
        SHD_TRY(idle("eps", in->has_eps_case, with, err));
    } else {
        o->eps = in->has_eps_case ? in->eps : 1e-8;
        SHD_TRY(real("eps", o->eps, 1e-30, 1, err));
    }
    out->weight_decay = in->has_weight_decay_case ? in->weight_decay : sgd ? 0 : 0.1;
    SHD_TRY(real("weight-decay", out->weight_decay, 0, SHD_SPEC_WEIGHT_DECAY_MAX, err));
    out->decay_all = in->decay_all;
    out->clip = in->has_clip_case ? in->clip : 1.0;
    return real("clip", out->clip, 0, SHD_SPEC_CLIP_MAX, err);
}

static int resolve_scaler(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    shd_scaler_config *c = &out->scaler;
    c->enabled = out->dtype == SHD_F16;
    c->loss_scale = in->has_loss_scale_case ? in->loss_scale : 0;
    const int dynamic = c->enabled && c->loss_scale == 0;
    const char *with = c->enabled ? "a static --loss-scale" : "a --dtype other than fp16";
    if (!c->enabled) {
        SHD_TRY(idle("loss-scale", in->has_loss_scale_case, with, err));
    }
    if (!dynamic) {
        SHD_TRY(idle("initial-scale-power", in->has_initial_scale_power_case, with, err));
        SHD_TRY(idle("loss-scale-window", in->has_loss_scale_window_case, with, err));
        SHD_TRY(idle("hysteresis", in->has_hysteresis_case, with, err));
        SHD_TRY(idle("min-loss-scale", in->has_min_loss_scale_case, with, err));
        return c->enabled ? real("loss-scale", c->loss_scale, 0x1p-32, 0x1p32, err) : 0;
    }
    c->initial_scale_power = in->has_initial_scale_power_case ? in->initial_scale_power : 16;
    SHD_TRY(whole("initial-scale-power", c->initial_scale_power, 0, 32, err));
    c->loss_scale_window = in->has_loss_scale_window_case ? in->loss_scale_window : 1000;
    SHD_TRY(whole("loss-scale-window", c->loss_scale_window, 1, UINT32_MAX, err));
    c->hysteresis = in->has_hysteresis_case ? in->hysteresis : 2;
    SHD_TRY(whole("hysteresis", c->hysteresis, 1, UINT32_MAX, err));
    c->min_loss_scale = in->has_min_loss_scale_case ? in->min_loss_scale : 1;
    SHD_TRY(real("min-loss-scale", c->min_loss_scale, 0x1p-32, 0x1p32, err));
    if (c->min_loss_scale > ldexp(1.0, (int)c->initial_scale_power)) {
        return shd_fail(
            err, SHD_EINVAL,
            "--min-loss-scale %g is above the first scale, 2^%u (--initial-scale-power)",
            c->min_loss_scale, c->initial_scale_power);
    }
    return 0;
}

static int resolve_precision(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    static const char *const words[] = {"fp32", "bf16", "fp16"};
    static const shd_dtype types[] = {SHD_F32, SHD_BF16, SHD_F16};
    int compute = 0, reduce = 0, checkpointing = 0;
    SHD_TRY(choice("dtype", in->dtype, words, 3, &compute, err));
    SHD_TRY(choice("reduce-dtype", in->reduce_dtype, words, 3, &reduce, err));
    out->dtype = types[compute];
    out->reduce_dtype = types[reduce];
    if (out->reduce_dtype == SHD_F16 && out->dtype != SHD_F16) {
        return shd_fail(err, SHD_EINVAL,
                        "--reduce-dtype fp16 needs the loss scaling of --dtype fp16: sums of "
                        "unscaled gradients leave its range; use fp32 or bf16");
    }
    SHD_TRY(choice("activation-checkpointing", in->activation_checkpointing, checkpointings, 3,
                   &checkpointing, err));
    out->checkpointing = (shd_checkpointing)checkpointing;
    out->dropout = in->has_dropout_case ? in->dropout : 0;
    SHD_TRY(real("dropout", out->dropout, 0, 0.99, err));
    return resolve_scaler(in, out, err);
}

/* Patterns are checked against the names of the model's parameters. */
static int check_freeze(const shd_spec *spec, const shd_model *model, shd_error *err)
{
    const uint32_t n = shd_model_n_params(model);
    uint32_t frozen = 0;
    for (uint32_t k = 0; k < spec->n_freeze; k++) {
        uint32_t matches = 0;
        for (uint32_t i = 0; i < n; i++) {
            matches += fnmatch(spec->freeze[k], shd_model_param(model, i)->name, 0) == 0;
        }
        if (matches == 0) {
            return shd_fail(err, SHD_EINVAL,
                            "--freeze '%s' matches no parameter of the model; one is called '%s'",
                            spec->freeze[k], shd_model_param(model, n - 1)->name);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        frozen += (uint32_t)shd_spec_freezes(spec, shd_model_param(model, i)->name);
    }
    return frozen == n
               ? shd_fail(err, SHD_EINVAL,
                          "--freeze leaves nothing to train: all %u parameters are frozen", n)
               : 0;
}

static int resolve_freeze(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    if (in->n_freeze == 0) {
        return 0;
    }
    SHD_TRY(whole("freeze: number of patterns", in->n_freeze, 0, MAX_PATTERNS, err));
    out->freeze = shd_calloc(in->n_freeze, sizeof *out->freeze);
    for (size_t k = 0; k < in->n_freeze; k++) {
        out->freeze[out->n_freeze++] = shd_strdup(in->freeze[k]);
    }
    shd_model *model = NULL;
    SHD_TRY(shd_model_create(&out->model, &model, err));
    const int rc = check_freeze(out, model, err);
    shd_model_free(model);
    return rc;
}

static int resolve_eval(const Shard__V1__JobSpec *in, shd_spec *out, shd_error *err)
{
    out->eval_every = in->has_eval_every_case ? in->eval_every : 0;
    SHD_TRY(whole("eval-every", out->eval_every, 0, MAX_STEPS, err));
    out->eval_batches = in->has_eval_batches_case ? in->eval_batches : 64;
    SHD_TRY(whole("eval-batches", out->eval_batches, 0, MAX_SEQUENCES, err));
    if (out->eval_every == 0) {
        SHD_TRY(idle("eval-batches", in->has_eval_batches_case, "--eval-every 0", err));
        SHD_TRY(idle("eval-data", out->data_path != NULL && in->eval_data[0] != '\0',
                     "--eval-every 0", err));
    }
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

static int resolve(const Shard__V1__JobSpec *in, uint32_t max_ranks, uint32_t node_ranks,
                   const shd_model_config *config, shd_spec *out, shd_error *err)
{
    SHD_TRY(check_name(in->name, err));
    strncpy(out->name, in->name, sizeof out->name - 1);
    SHD_TRY(check_unsupported(in, err));
    SHD_TRY(resolve_model(in, config, out, err));
    SHD_TRY(resolve_strategy(in, max_ranks, node_ranks, out, err));
    SHD_TRY(resolve_determinism(in, out, err));
    SHD_TRY(resolve_pipeline(in, out, err));
    if (in->data[0] != '\0') {
        out->data_path = shd_strdup(in->data);
    }
    const int rc = shd_data_format_parse(in->data_format, &out->data_format, err);
    if (rc < 0) {
        return shd_error_prefix(err, rc, "--data-format");
    }
    out->tokenizer = shd_strdup(in->tokenizer);
    out->packing = in->has_packing_case ? in->packing : 1;
    SHD_TRY(check_no_data(in, out, err));
    SHD_TRY(resolve_init(in, config != NULL, out, err));
    SHD_TRY(resolve_batch(in, out, err));
    SHD_TRY(resolve_schedule(in, out, err));
    SHD_TRY(resolve_optimizer(in, out, err));
    SHD_TRY(resolve_precision(in, out, err));
    SHD_TRY(resolve_freeze(in, out, err));
    SHD_TRY(resolve_eval(in, out, err));
    out->seed = in->has_seed_case ? in->seed : 1;
    out->priority = in->has_priority_case ? in->priority : 10;
    return whole("priority", out->priority, 1, 100, err);
}

int shd_spec_resolve(const Shard__V1__JobSpec *in, uint32_t max_ranks, uint32_t node_ranks,
                     const shd_model_config *config, shd_spec *out, shd_error *err)
{
    *out = (shd_spec){0};
    const int rc = resolve(in, max_ranks, node_ranks, config, out, err);
    if (rc < 0) {
        shd_spec_fini(out);
    }
    return rc;
}

static char *copy_of(const char *text)
{
    return text != NULL ? shd_strdup(text) : NULL;
}

void shd_spec_copy(shd_spec *out, const shd_spec *in)
{
    *out = *in;
    out->model_name = copy_of(in->model_name);
    out->data_path = copy_of(in->data_path);
    out->tokenizer = copy_of(in->tokenizer);
    out->init_from = copy_of(in->init_from);
    out->eval_path = copy_of(in->eval_path);
    out->freeze = in->n_freeze > 0 ? shd_calloc(in->n_freeze, sizeof *out->freeze) : NULL;
    for (uint32_t k = 0; k < in->n_freeze; k++) {
        out->freeze[k] = shd_strdup(in->freeze[k]);
    }
}

void shd_spec_fini(shd_spec *spec)
{
    free(spec->model_name);
    free(spec->data_path);
    free(spec->tokenizer);
    free(spec->init_from);
    free(spec->eval_path);
    for (uint32_t k = 0; k < spec->n_freeze; k++) {
        free(spec->freeze[k]);
    }
    free(spec->freeze);
    *spec = (shd_spec){0};
}

int shd_spec_freezes(const shd_spec *spec, const char *parameter)
{
    for (uint32_t k = 0; k < spec->n_freeze; k++) {
        if (fnmatch(spec->freeze[k], parameter, 0) == 0) {
            return 1;
        }
    }
    return 0;
}
