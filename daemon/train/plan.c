/* The plan: a rank's work on the null device; see plan.h. Floor F4; any thread. */
#include "daemon/train/plan.h"

#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/worker.h"

/* The largest that an arena has held at some time. */
typedef struct peaks {
    uint64_t activations, total, extent;
} peaks;

static int run_work(shd_worker *worker, const shd_spec *spec, shd_work_kind kind, uint64_t stream,
                    shd_error *err)
{
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
    shd_worker_run(worker, &work, UINT64_MAX, &result);
    const int rc = result.rc;
    if (rc < 0 && err != NULL) {
        *err = result.err;
    }
    shd_work_fini(&work);
    shd_work_fini(&result);
    return rc;
}

/* A step, and what it communicates. */
static int run_step(shd_worker *worker, const shd_spec *spec, shd_plan *out, shd_error *err)
{
    shd_comm_count before[SHD_COMM_KIND_COUNT], after[SHD_COMM_KIND_COUNT];
    shd_comm_counts(shd_worker_comm(worker), before);
    SHD_TRY(run_work(worker, spec, SHD_WORK_DATA_STEP, 0, err));
    shd_comm_counts(shd_worker_comm(worker), after);
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
static int run_all(shd_worker *worker, const shd_spec *spec, uint32_t caches, shd_plan *out,
                   peaks *training, shd_error *err)
{
    SHD_TRY(run_work(worker, spec, SHD_WORK_INIT, 0, err));
    const shd_arena *arena = shd_worker_arena(worker);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(arena, usage);
    for (int t = 0; t < SHD_TAG_COUNT; t++) {
        out->steady[t] = usage[t].now;
    }
    SHD_TRY(run_step(worker, spec, out, err));
    for (int i = 0; i < 2 && spec->data_path == NULL; i++) {
        SHD_TRY(run_work(worker, spec, SHD_WORK_FORWARD_BACKWARD, 0, err));
    }
    shd_arena_usage(arena, usage);
    *training = (peaks){.activations = usage[SHD_TAG_ACTIVATIONS].peak,
                        .total = shd_arena_total_peak(arena),
                        .extent = shd_arena_extent(arena)};
    for (uint64_t stream = 1; stream <= caches; stream++) {
        SHD_TRY(run_work(worker, spec, SHD_WORK_NEXT_LOGITS, stream, err));
    }
    SHD_TRY(run_work(worker, spec, SHD_WORK_EVAL, 0, err));
    return spec->data_path == NULL ? run_work(worker, spec, SHD_WORK_OPTIM_STEP, 0, err) : 0;
}

static int measure_with(const shd_spec *spec, int threads_per_rank, uint32_t caches, shd_plan *out,
                        peaks *training, shd_error *err)
{
    *out = (shd_plan){0};
    shd_model *model = NULL;
    SHD_TRY(shd_model_create(&spec->model, &model, err));
    shd_worker_shared shared = {.spec = spec, .model = model, .eval_leaves = 1, .caches = caches};
    int rc = shd_worker_layout(&shared, err);
    if (rc < 0) {
        shd_worker_layout_fini(&shared);
        shd_model_free(model);
        return rc;
    }
    shd_device *dev = shd_device_create_null(threads_per_rank);
    shd_worker *worker =
        shd_worker_create(&shared, dev, shd_comm_null_create(0, spec->strategy.world));
    rc = run_all(worker, spec, caches, out, training, err);
    if (rc == 0) {
        const shd_arena *arena = shd_worker_arena(worker);
        shd_usage usage[SHD_TAG_COUNT];
        shd_arena_usage(arena, usage);
        for (int t = 0; t < SHD_TAG_COUNT; t++) {
            out->peak[t] = usage[t].peak;
        }
        out->total_peak = shd_arena_total_peak(arena);
        out->extent = shd_arena_extent(arena);
        out->parameters = (uint64_t)shared.layout.numel;
        out->padding = (uint64_t)(shared.layout.padded - shared.layout.numel);
        out->units = shared.layout.n_units;
        out->trainable = (uint64_t)shared.trainable;
        out->generate_caches = caches;
    }
    shd_worker_free(worker);
    shd_device_free(dev);
    shd_worker_layout_fini(&shared);
    shd_model_free(model);
    return rc;
}

/* Room for many generations must not be what a job fails to fit for: there is more than one cache
 * only where training takes the memory anyway. */
static int measure(const shd_spec *spec, int threads_per_rank, shd_plan *out, shd_error *err)
{
    peaks training;
    SHD_TRY(measure_with(spec, threads_per_rank, SHD_GENERATE_CACHES, out, &training, err));
    const int fit = out->extent == training.extent && out->total_peak == training.total &&
                    out->peak[SHD_TAG_ACTIVATIONS] == training.activations;
    return fit ? 0 : measure_with(spec, threads_per_rank, 1, out, &training, err);
}

static shd_spec with_rounds(const shd_spec *spec, uint32_t rounds)
{
    shd_spec changed = *spec;
    changed.accumulation = rounds;
    changed.global_batch = rounds * spec->micro_batch * spec->strategy.world;
    return changed;
}

/* Accumulation rounds after the first are all alike: the second shows what each of them takes, in
 * memory nothing more, so that planning a step takes no longer for a large batch. */
int shd_plan_make(const shd_spec *spec, int threads_per_rank, shd_plan *out, shd_error *err)
{
    if (spec->accumulation <= 2) {
        return measure(spec, threads_per_rank, out, err);
    }
    const shd_spec one = with_rounds(spec, 1), two = with_rounds(spec, 2);
    shd_plan first;
    SHD_TRY(measure(&one, threads_per_rank, &first, err));
    SHD_TRY(measure(&two, threads_per_rank, out, err));
    const uint64_t more = spec->accumulation - 2;
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        shd_comm_count *step = &out->comm_step[k];
        step->bytes += more * (step->bytes - first.comm_step[k].bytes);
        step->calls += more * (step->calls - first.comm_step[k].calls);
    }
    return 0;
}
