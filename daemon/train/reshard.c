/* State from the workers of one plan to those of the next; see reshard.h. Floor F4; the rank's
 * thread, but for making and ending. */
#include "daemon/train/reshard.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/trainer_internal.h"
#include "daemon/train/worker_internal.h"

enum { ROUND = 1 << 22 }; /* elements of a parameter between two turns */

/* A rank that takes part: it has an old worker, a new one or both. */
typedef struct member {
    shd_reshard *reshard;
    shd_rank *rank;
    shd_worker *old, *fresh;
    shd_comm *bridge; /* all members, those with an old worker first and in its order */
    shd_arena *arena; /* of the staging */
    void *staging;
    int begun;
    uint32_t param; /* the next to be moved */
    int64_t at;
    uint64_t peak;
    /* of the turn */
    int rc, more;
    shd_error err;
} member;

/* How parameters are cut on one side. Small ones may be kept whole, whatever the strategy. */
typedef struct cut {
    const shd_worker_shared *shared;
    shd_strategy strategies[2]; /* [whole] */
    uint32_t *first_p[2];       /* [whole][p] the first rank that holds a part of what is frozen */
    uint32_t *first_o[2];       /* [whole][o] of the others */
} cut;

struct shd_reshard {
    shd_trainer *trainer;
    shd_crew *crew; /* the next; after adoption the one before */
    uint32_t n;
    member *members;
    uint32_t *place_of_fresh; /* [new world] among the members */
    cut from, to;
};

/* ---- making and ending ---- */

static const shd_worker *first_worker(const shd_trainer *t)
{
    return t->crew->slots[0].worker;
}

static int same(const char *what, int equal, shd_error *err)
{
    return equal ? 0
                 : shd_fail(err, SHD_EINVAL,
                            "a resharding cannot change %s; it changes strategy, ranks, "
                            "micro-batch and determinism",
                            what);
}

static int check_spec(const shd_spec *a, const shd_spec *b, shd_error *err)
{
    SHD_TRY(same("the batch of a step",
                 a->global_batch == b->global_batch && a->seq_len == b->seq_len, err));
    SHD_TRY(same("the optimizer", a->optim.kind == b->optim.kind, err));
    SHD_TRY(same("dtypes", a->dtype == b->dtype && a->reduce_dtype == b->reduce_dtype, err));
    return same("the seed", a->seed == b->seed, err);
}

static int check_layout(const shd_layout *a, const shd_layout *b, shd_error *err)
{
    int equal = a->n_params == b->n_params;
    for (uint32_t i = 0; equal && i < a->n_params; i++) {
        equal = a->slots[i].numel == b->slots[i].numel &&
                a->units[a->slots[i].unit].frozen == b->units[b->slots[i].unit].frozen;
    }
    return same("what is trained", equal, err);
}

static int check_state(const shd_trainer *t, shd_error *err)
{
    if (t->reshard != NULL || t->work != NULL || t->unfinished != NULL) {
        return shd_fail(err, SHD_ESTATE, "other work is not finished");
    }
    if (shd_worker_arena(first_worker(t)) == NULL) {
        return shd_fail(err, SHD_ESTATE, "the job is not initialised");
    }
    if (shd_worker_accumulates(first_worker(t))) {
        return shd_fail(err, SHD_ESTATE, "gradients are accumulated; apply them first (OptimStep)");
    }
    return 0;
}

static void make_cut(cut *c, const shd_worker_shared *shared)
{
    c->shared = shared;
    for (int whole = 0; whole < 2; whole++) {
        const shd_unit_layout unit = {.whole = whole};
        const shd_strategy s = shd_schedule_strategy(&shared->spec->strategy, &unit);
        c->strategies[whole] = s;
        c->first_p[whole] = shd_calloc(s.p, sizeof(uint32_t));
        c->first_o[whole] = shd_calloc(s.o, sizeof(uint32_t));
        for (uint32_t r = 0; r < s.o; r++) {
            c->first_o[whole][shd_strategy_index_o(&s, r)] = r;
        }
        for (uint32_t r = 0; r < s.p; r++) {
            c->first_p[whole][shd_strategy_index_p(&s, r)] = r;
        }
    }
}

static void fini_cut(cut *c)
{
    for (int whole = 0; whole < 2; whole++) {
        free(c->first_p[whole]);
        free(c->first_o[whole]);
    }
}

/* The member on `rank`; a new one when there is none. */
static uint32_t member_on(shd_reshard *r, shd_rank *rank)
{
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->members[i].rank == rank) {
            return i;
        }
    }
    r->members[r->n] = (member){.reshard = r, .rank = rank};
    return r->n++;
}

static void make_members(shd_reshard *r, const shd_crew *old)
{
    const uint32_t n_old = old->spec.strategy.world, n_new = r->crew->spec.strategy.world;
    r->members = shd_calloc(n_old + n_new, sizeof *r->members);
    r->place_of_fresh = shd_calloc(n_new, sizeof *r->place_of_fresh);
    for (uint32_t i = 0; i < n_old; i++) {
        r->members[member_on(r, old->slots[i].rank)].old = old->slots[i].worker;
    }
    for (uint32_t i = 0; i < n_new; i++) {
        r->place_of_fresh[i] = member_on(r, r->crew->slots[i].rank);
        r->members[r->place_of_fresh[i]].fresh = r->crew->slots[i].worker;
    }
    shd_comm **bridges = shd_calloc(r->n, sizeof(shd_comm *));
    shd_comm_local_create(r->n, bridges);
    for (uint32_t i = 0; i < r->n; i++) {
        r->members[i].bridge = bridges[i];
    }
    free(bridges);
}

int shd_reshard_create(shd_trainer *t, const shd_spec *spec, const shd_plan *plan,
                       shd_rank *const *ranks, shd_reshard **out, shd_error *err)
{
    SHD_TRY(check_state(t, err));
    SHD_TRY(check_spec(&t->crew->spec, spec, err));
    shd_crew *crew = NULL;
    SHD_TRY(shd_crew_create(t, spec, plan, ranks, &crew, err));
    shd_reshard *r = shd_calloc(1, sizeof *r);
    r->trainer = t;
    r->crew = crew;
    make_members(r, t->crew);
    make_cut(&r->from, &t->crew->shared);
    make_cut(&r->to, &r->crew->shared);
    t->reshard = r;
    const int rc = check_layout(&r->from.shared->layout, &r->to.shared->layout, err);
    if (rc < 0) {
        shd_reshard_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

/* What the old ranks have sent goes on being counted. */
static void carry_counts(shd_trainer *t, const shd_reshard *r)
{
    const uint32_t n = t->crew->spec.strategy.world;
    if (n > t->n_before) {
        t->comm_before = shd_reallocarray(t->comm_before, n, sizeof *t->comm_before);
        memset(t->comm_before + t->n_before, 0, (n - t->n_before) * sizeof *t->comm_before);
        t->n_before = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        shd_comm_count worked[SHD_COMM_KIND_COUNT], moved[SHD_COMM_KIND_COUNT];
        shd_comm_counts(shd_worker_comm(r->members[i].old), worked);
        shd_comm_counts(r->members[i].bridge, moved);
        for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
            t->comm_before[i][k].bytes += worked[k].bytes + moved[k].bytes;
            t->comm_before[i][k].calls += worked[k].calls + moved[k].calls;
        }
    }
}

void shd_reshard_adopt(shd_reshard *r)
{
    shd_trainer *t = r->trainer;
    carry_counts(t, r);
    shd_crew *before = t->crew;
    t->crew = r->crew;
    r->crew = before;
    memset(t->round_ms, 0, sizeof t->round_ms);
}

void shd_reshard_free(shd_reshard *r)
{
    if (r == NULL) {
        return;
    }
    r->trainer->reshard = NULL;
    r->trainer->unfinished = NULL; /* it may have had a turn and then been given up */
    for (uint32_t i = 0; i < r->n; i++) {
        shd_arena_free(r->members[i].arena);
        shd_comm_free(r->members[i].bridge);
    }
    fini_cut(&r->from);
    fini_cut(&r->to);
    shd_crew_free(r->crew);
    free(r->members);
    free(r->place_of_fresh);
    free(r);
}

uint64_t shd_reshard_bytes_sent(const shd_reshard *r)
{
    uint64_t sent = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        shd_comm_count count[SHD_COMM_KIND_COUNT];
        shd_comm_counts(r->members[i].bridge, count);
        sent += count[SHD_COMM_RESHARD].bytes;
    }
    return sent;
}

uint64_t shd_reshard_peak(const shd_reshard *r)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        most = r->members[i].peak > most ? r->members[i].peak : most;
    }
    return most;
}

/* ---- where things lie ---- */

/* Where an element is on one side. */
typedef struct place {
    const cut *cut;
    int frozen, whole;
    uint32_t part; /* of its unit */
    int64_t end;   /* the element of the parameter past that part */
} place;

static place place_of(const cut *c, uint32_t param, int64_t at)
{
    const shd_slot *slot = &c->shared->layout.slots[param];
    const shd_unit_layout *unit = &c->shared->layout.units[slot->unit];
    place p = {.cut = c, .frozen = unit->frozen, .whole = unit->whole};
    const shd_strategy *s = &c->strategies[p.whole];
    const int64_t part = unit->padded / (p.frozen ? s->p : s->o);
    const int64_t index = (slot->offset + at) / part;
    p.part = (uint32_t)index;
    p.end = (index + 1) * part - slot->offset;
    return p;
}

static int holds(const place *p, uint32_t rank)
{
    const shd_strategy *s = &p->cut->strategies[p->whole];
    return p->part == (p->frozen ? shd_strategy_index_p(s, rank) : shd_strategy_index_o(s, rank));
}

static uint32_t first_holder(const place *p)
{
    return p->frozen ? p->cut->first_p[p->whole][p->part] : p->cut->first_o[p->whole][p->part];
}

/* Has every rank that needs the element in the new place it in the old one? */
static int is_there_already(const shd_reshard *r, const place *from, const place *to)
{
    const uint32_t n_old = r->from.shared->spec->strategy.world;
    for (uint32_t d = 0; d < r->to.shared->spec->strategy.world; d++) {
        const uint32_t i = r->place_of_fresh[d]; /* of an old worker: its rank too */
        if (holds(to, d) && (i >= n_old || !holds(from, i))) {
            return 0;
        }
    }
    return 1;
}

/* ---- moving, on the ranks ---- */

/* What an old rank knows and every new one has to. */
typedef struct hello {
    int rc;
    shd_error err;
    shd_worker_counters counters;
} hello;

/* All go on, or none; rank 0 of the old ones tells the new ones where the job is. */
static int agree(member *m, int rc, const shd_error *why, shd_error *err)
{
    hello mine = {.rc = rc};
    hello *all = shd_calloc(m->reshard->n, sizeof *all);
    if (rc < 0) {
        mine.err = *why;
    }
    if (m->old != NULL) {
        mine.counters = shd_worker_get_counters(m->old);
    }
    int verdict =
        shd_comm_all_gather_host(m->bridge, SHD_COMM_CONTROL, &mine, all, sizeof mine, err);
    for (uint32_t i = 0; i < m->reshard->n && verdict == 0; i++) {
        verdict = all[i].rc < 0 ? shd_fail(err, all[i].rc, "%s", all[i].err.message) : 0;
    }
    if (verdict == 0 && m->fresh != NULL) {
        shd_worker_set_counters(m->fresh, &all[0].counters);
    }
    free(all);
    return verdict;
}

static int take_staging(member *m, shd_error *err)
{
    SHD_TRY(shd_device_arena(shd_rank_device(m->rank), SHD_RESHARD_STAGING, &m->arena, err));
    return shd_arena_alloc(m->arena, SHD_TAG_COMM, SHD_RESHARD_PIECE * sizeof(float), &m->staging,
                           err);
}

static int begin(member *m, shd_error *err)
{
    shd_error why = {0};
    int rc = take_staging(m, &why);
    if (m->fresh != NULL) {
        if (rc == 0) {
            rc = shd_worker_take_memory(m->fresh, &why);
        }
        if (rc < 0) {
            shd_comm_abort(shd_worker_comm(m->fresh), rc, why.message);
        }
    }
    m->begun = 1;
    SHD_TRY(agree(m, rc, &why, err));
    if (m->fresh != NULL) {
        shd_worker_clear_params(m->fresh);
    }
    return 0;
}

/* Elements of one thing that is kept of a parameter, within one part on each side. */
typedef struct piece {
    uint32_t param, which;
    int64_t at, n;
    place from, to;
} piece;

static int move_piece(member *m, const piece *p, shd_error *err)
{
    const uint32_t owner = first_holder(&p->from);
    shd_device *dev = shd_rank_device(m->rank);
    void *to = m->fresh != NULL && holds(&p->to, shd_comm_rank(shd_worker_comm(m->fresh)))
                   ? shd_worker_kept(m->fresh, p->param, p->which, p->at)
                   : NULL;
    const size_t bytes =
        (size_t)p->n * shd_worker_kept_size(m->fresh != NULL ? m->fresh : m->old, p->param);
    if (is_there_already(m->reshard, &p->from, &p->to)) {
        if (to != NULL) {
            shd_device_to_device(dev, to, shd_worker_kept(m->old, p->param, p->which, p->at),
                                 bytes);
        }
        return 0;
    }
    if (shd_comm_rank(m->bridge) != owner) {
        return shd_comm_broadcast(m->bridge, SHD_COMM_RESHARD, dev, to != NULL ? to : m->staging,
                                  bytes, owner, err);
    }
    void *mine = shd_worker_kept(m->old, p->param, p->which, p->at);
    SHD_TRY(shd_comm_broadcast(m->bridge, SHD_COMM_RESHARD, dev, mine, bytes, owner, err));
    if (to != NULL) {
        shd_device_to_device(dev, to, mine, bytes);
    }
    return 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int move_round(member *m, shd_error *err)
{
    const shd_reshard *r = m->reshard;
    const int64_t numel = r->to.shared->layout.slots[m->param].numel;
    const int64_t stop = least(numel, m->at + ROUND);
    const uint32_t n_kept = shd_worker_n_kept(m->fresh != NULL ? m->fresh : m->old, m->param);
    for (piece p = {.param = m->param, .at = m->at}; p.at < stop; p.at += p.n) {
        p.from = place_of(&r->from, p.param, p.at);
        p.to = place_of(&r->to, p.param, p.at);
        p.n = least(least(p.from.end, p.to.end), least(stop, p.at + SHD_RESHARD_PIECE)) - p.at;
        for (p.which = 0; p.which < n_kept; p.which++) {
            SHD_TRY(move_piece(m, &p, err));
        }
    }
    m->at = stop == numel ? 0 : stop;
    m->param += stop == numel;
    return 0;
}

static uint64_t held(const shd_arena *arena)
{
    shd_usage usage[SHD_TAG_COUNT];
    uint64_t now = 0;
    if (arena != NULL) {
        shd_arena_usage(arena, usage);
        for (int t = 0; t < SHD_TAG_COUNT; t++) {
            now += usage[t].now;
        }
    }
    return now;
}

static int complete(member *m, shd_error *err)
{
    m->peak = held(m->arena);
    if (m->old != NULL) {
        m->peak += held(shd_worker_arena(m->old));
    }
    if (m->fresh != NULL) {
        SHD_TRY(shd_worker_finish_params(m->fresh, err));
        m->peak += shd_arena_total_peak(shd_worker_arena(m->fresh));
    }
    return shd_comm_barrier(m->bridge, err);
}

static int run_turn(member *m, uint64_t turn, shd_error *err)
{
    if (!m->begun) {
        SHD_TRY(begin(m, err));
    }
    const uint32_t n = m->reshard->to.shared->layout.n_params;
    for (; turn > 0 && m->param < n; turn--) {
        SHD_TRY(shd_comm_check(m->bridge, err));
        SHD_TRY(move_round(m, err));
    }
    m->more = m->param < n;
    return m->more ? 0 : complete(m, err);
}

static void on_rank(shd_rank *rank, void *arg)
{
    (void)rank;
    member *m = arg;
    shd_trainer *t = m->reshard->trainer;
    m->more = 0;
    m->rc = run_turn(m, t->turn, &m->err);
    if (m->rc < 0) {
        shd_reshard_abort(m->reshard, m->rc, m->err.message);
    }
    shd_trainer_rank_done(t);
}

void shd_reshard_post(shd_reshard *r)
{
    atomic_store(&r->trainer->remaining, r->n);
    for (uint32_t i = 0; i < r->n; i++) {
        shd_rank_post(r->members[i].rank, on_rank, &r->members[i]);
    }
}

void shd_reshard_result(const shd_reshard *r, shd_work *work)
{
    work->rc = 0;
    for (uint32_t i = 0; i < r->n && work->rc == 0; i++) {
        work->rc = r->members[i].rc;
        work->err = r->members[i].err;
    }
    const shd_worker_counters at = shd_worker_get_counters(r->members[0].old);
    work->step = at.step;
    work->samples = at.samples;
    work->loss_scale = work->next_loss_scale = at.scaler.scale;
    work->more = work->rc == 0 && r->members[0].more;
}

void shd_reshard_abort(shd_reshard *r, int code, const char *message)
{
    shd_comm_abort(r->members[0].bridge, code, message);
    shd_comm_abort(shd_worker_comm(r->crew->slots[0].worker), code, message);
}
