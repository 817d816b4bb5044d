/* The plan: a rank's work on the null device; see plan.h. Floor F4; any thread. */
#include "daemon/train/plan.h"

#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/profile.h"
#include "daemon/train/worker.h"

enum { HUGE_PAGE = 2 << 20 };

/* The largest that an arena has held at some time. */
typedef struct peaks {
    uint64_t activations, total, extent;
} peaks;

/* A rank on the null device. */
typedef struct dry_run {
    const shd_spec *spec;
    shd_profile *profile; /* NULL: only memory and bytes are wanted */
    shd_model *model;
    shd_worker_shared shared;
    shd_device *dev;
    shd_worker *worker;
} dry_run;

static void dry_run_end(dry_run *d)
{
    shd_worker_free(d->worker);
    shd_device_free(d->dev);
    shd_worker_layout_fini(&d->shared);
    shd_model_free(d->model);
}

static int dry_run_begin(dry_run *d, const shd_spec *spec, int threads_per_rank, uint32_t caches,
                         shd_profile *profile, shd_error *err)
{
    const uint32_t world = spec->strategy.world;
    *d = (dry_run){.spec = spec, .profile = profile};
    SHD_TRY(shd_model_create(&spec->model, &d->model, err));
    d->shared =
        (shd_worker_shared){.spec = spec, .model = d->model, .eval_leaves = 1, .caches = caches};
    const int rc = shd_worker_layout(&d->shared, err);
    if (rc < 0) {
        dry_run_end(d);
        return rc;
    }
    d->dev = shd_device_create_null(threads_per_rank);
    if (profile != NULL) {
        shd_device_count_work(d->dev, &profile->work);
    }
    const uint32_t per_node = profile != NULL ? profile->machine->ranks_per_node : 0;
    d->worker =
        shd_worker_create(&d->shared, d->dev, shd_comm_null_create_nodes(0, world, per_node));
    if (profile != NULL) {
        shd_worker_set_hooks(d->worker, &profile->hooks);
    }
    return 0;
}

static int run_work(const dry_run *d, shd_work_kind kind, uint64_t stream, shd_error *err)
{
    const shd_spec *spec = d->spec;
    shd_work work, result;
    shd_work_init(&work, kind);
    if (kind == SHD_WORK_NEXT_LOGITS || kind == SHD_WORK_FORWARD_BACKWARD) {
        work.batch.sequences = 1;
        work.batch.length = spec->seq_len;
        work.batch.tokens = shd_calloc(spec->seq_len, sizeof *work.batch.tokens);
        work.batch.targets = shd_calloc(spec->seq_len, sizeof *work.batch.targets);
        work.stream = stream;
        work.cache_step = UINT64_MAX;
    }
    shd_worker_run(d->worker, &work, UINT64_MAX, &result);
    const int rc = result.rc;
    if (rc < 0 && err != NULL) {
        *err = result.err;
    }
    shd_work_fini(&work);
    shd_work_fini(&result);
    return rc;
}

/* A step, and what it communicates. */
static int run_step(const dry_run *d, shd_plan *out, shd_error *err)
{
    shd_profile *profile = d->profile;
    shd_comm_count before[SHD_COMM_KIND_COUNT], after[SHD_COMM_KIND_COUNT];
    shd_comm_counts(shd_worker_comm(d->worker), before);
    if (profile != NULL) {
        shd_profile_begin(profile, shd_worker_comm(d->worker), &d->shared.train_program);
    }
    SHD_TRY(run_work(d, SHD_WORK_DATA_STEP, 0, err));
    if (profile != NULL) {
        shd_profile_end(profile);
        memcpy(out->comm_between, profile->comm_between, sizeof out->comm_between);
    }
    shd_comm_counts(shd_worker_comm(d->worker), after);
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        out->comm_step[k] =
            (shd_comm_count){after[k].bytes - before[k].bytes, after[k].calls - before[k].calls};
    }
    return 0;
}

/* Every kind of work at its largest: training, then as many generations as keep what they have,
 * and meanwhile an evaluation and the step on what a client has accumulated. It may accumulate
 * several batches; the second is the one that adds to what is there. *training is what that
 * takes without generations. */
static int run_all(const dry_run *d, shd_plan *out, peaks *training, shd_error *err)
{
    const int driven = d->spec->data_path == NULL;
    SHD_TRY(run_work(d, SHD_WORK_INIT, 0, err));
    const shd_arena *arena = shd_worker_arena(d->worker);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(arena, usage);
    for (int t = 0; t < SHD_TAG_COUNT; t++) {
        out->steady[t] = usage[t].now;
    }
    SHD_TRY(run_step(d, out, err));
    for (int i = 0; i < 2 && driven; i++) {
        SHD_TRY(run_work(d, SHD_WORK_FORWARD_BACKWARD, 0, err));
    }
    shd_arena_usage(arena, usage);
    *training = (peaks){.activations = usage[SHD_TAG_ACTIVATIONS].peak,
                        .total = shd_arena_total_peak(arena),
                        .extent = shd_arena_extent(arena)};
    for (uint64_t stream = 1; stream <= d->shared.caches; stream++) {
        SHD_TRY(run_work(d, SHD_WORK_NEXT_LOGITS, stream, err));
    }
    SHD_TRY(run_work(d, SHD_WORK_EVAL, 0, err));
    return driven ? run_work(d, SHD_WORK_OPTIM_STEP, 0, err) : 0;
}

static void note_results(const dry_run *d, shd_plan *out)
{
    const shd_arena *arena = shd_worker_arena(d->worker);
    const shd_layout *layout = &d->shared.layout;
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(arena, usage);
    for (int t = 0; t < SHD_TAG_COUNT; t++) {
        out->peak[t] = usage[t].peak;
    }
    out->total_peak = shd_arena_total_peak(arena);
    out->extent = shd_arena_extent(arena);
    out->parameters = (uint64_t)layout->numel;
    out->padding = (uint64_t)(layout->padded - layout->numel);
    out->units = layout->n_units;
    out->trainable = (uint64_t)d->shared.trainable;
    out->generate_caches = d->shared.caches;
}

/* What a plan is asked for beside memory and bytes; machine NULL: nothing. */
typedef struct wanted {
    const shd_machine *machine;
    shd_estimate *estimate;
    shd_plan_schedule *schedule; /* or NULL */
} wanted;

static void estimate(const dry_run *d, const shd_spec *spec, const wanted *want)
{
    shd_comm_count counts[SHD_COMM_KIND_COUNT];
    shd_profile_estimate(d->profile, spec, want->estimate);
    shd_comm_counts(shd_worker_comm(d->worker), counts);
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        want->estimate->dry_calls += counts[k].calls;
    }
    if (want->schedule != NULL) {
        shd_plan_schedule_fini(want->schedule);
        shd_profile_schedule(d->profile, want->schedule);
    }
}

/* Runs `spec`; the estimate is that of `whole`, which may have more rounds. */
static int measure_with(const shd_spec *spec, const shd_spec *whole, int threads_per_rank,
                        uint32_t caches, const wanted *want, shd_plan *out, peaks *training,
                        shd_error *err)
{
    shd_profile profile;
    dry_run d;
    *out = (shd_plan){0};
    if (want->machine != NULL) {
        shd_profile_init(&profile, want->machine);
    }
    int rc = dry_run_begin(&d, spec, threads_per_rank, caches,
                           want->machine != NULL ? &profile : NULL, err);
    if (rc < 0) {
        return rc;
    }
    rc = run_all(&d, out, training, err);
    if (rc == 0) {
        note_results(&d, out);
    }
    if (rc == 0 && want->machine != NULL) {
        estimate(&d, whole, want);
    }
    if (want->machine != NULL) {
        shd_profile_fini(&profile);
    }
    dry_run_end(&d);
    return rc;
}

/* Room for many generations must not be what a job fails to fit for: there is more than one cache
 * only where training takes the memory anyway. */
static int measure(const shd_spec *spec, const shd_spec *whole, int threads_per_rank,
                   const wanted *want, shd_plan *out, shd_error *err)
{
    peaks training;
    SHD_TRY(measure_with(spec, whole, threads_per_rank, SHD_GENERATE_CACHES, want, out, &training,
                         err));
    const int fit = out->extent == training.extent && out->total_peak == training.total &&
                    out->peak[SHD_TAG_ACTIVATIONS] == training.activations;
    return fit ? 0 : measure_with(spec, whole, threads_per_rank, 1, want, out, &training, err);
}

static shd_spec with_rounds(const shd_spec *spec, uint32_t rounds)
{
    shd_spec changed = *spec;
    changed.accumulation = rounds;
    changed.global_batch = rounds * spec->micro_batch * spec->strategy.world;
    return changed;
}

/* The communication of a step of `spec` alone. */
static int measure_comm(const shd_spec *spec, int threads_per_rank, const shd_machine *machine,
                        shd_plan *out, shd_error *err)
{
    shd_profile profile;
    dry_run d;
    if (machine != NULL) {
        shd_profile_init(&profile, machine);
    }
    int rc = dry_run_begin(&d, spec, threads_per_rank, 1, machine != NULL ? &profile : NULL, err);
    if (rc < 0) {
        return rc;
    }
    rc = run_work(&d, SHD_WORK_INIT, 0, err);
    if (rc == 0) {
        rc = run_step(&d, out, err);
    }
    if (machine != NULL) {
        shd_profile_fini(&profile);
    }
    dry_run_end(&d);
    return rc;
}

/* Accumulation rounds after the first are all alike: the second shows what each of them takes, in
 * memory nothing more, so that planning a step takes no longer for a large batch. */
static int plan(const shd_spec *spec, int threads_per_rank, const wanted *want, shd_plan *out,
                shd_error *err)
{
    if (spec->accumulation <= 2) {
        return measure(spec, spec, threads_per_rank, want, out, err);
    }
    const shd_spec one = with_rounds(spec, 1), two = with_rounds(spec, 2);
    shd_plan first = {0};
    SHD_TRY(measure_comm(&one, threads_per_rank, want->machine, &first, err));
    SHD_TRY(measure(&two, spec, threads_per_rank, want, out, err));
    const uint64_t more = spec->accumulation - 2;
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        shd_comm_count *step = &out->comm_step[k];
        step->bytes += more * (step->bytes - first.comm_step[k].bytes);
        step->calls += more * (step->calls - first.comm_step[k].calls);
        out->comm_between[k] += more * (out->comm_between[k] - first.comm_between[k]);
    }
    return 0;
}

int shd_plan_make(const shd_spec *spec, int threads_per_rank, shd_plan *out, shd_error *err)
{
    const wanted nothing = {0};
    return plan(spec, threads_per_rank, &nothing, out, err);
}

int shd_plan_for(const shd_spec *spec, int threads_per_rank, const shd_machine *machine,
                 shd_plan *out, shd_estimate *estimate_out, shd_plan_schedule *schedule,
                 shd_error *err)
{
    const wanted want = {machine, estimate_out, schedule};
    if (schedule != NULL) {
        *schedule = (shd_plan_schedule){0};
    }
    return plan(spec, threads_per_rank, &want, out, err);
}

uint64_t shd_plan_bytes(const shd_plan *p)
{
    return (p->extent + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}
