/* Degrees to groups; see strategy.h. Floor F3; pure. */
#include "daemon/shard/strategy.h"

#include <string.h>

/* 0 in a preset stands for W. */
static const struct preset {
    const char *name;
    uint32_t p, g, o;
    int reshard_after_forward;
} presets[] = {
    {"ddp", 1, 1, 1, 1},           {"zero1", 1, 1, 0, 1},    {"zero2", 1, 0, 0, 1},
    {"zero3", 0, 0, 0, 1},         {"no_shard", 1, 1, 1, 1}, {"full_shard", 0, 0, 0, 1},
    {"shard_grad_op", 0, 0, 0, 0},
};
enum { N_PRESETS = sizeof presets / sizeof presets[0] };

/* What degrees without a preset are called. */
#define CUSTOM "custom"

const char *shd_strategy_presets(void)
{
    return "ddp (no_shard), zero1, zero2, zero3 (full_shard), shard_grad_op";
}

static int check_degrees(const shd_strategy *s, shd_error *err)
{
    const uint32_t chain[4] = {s->p, s->g, s->o, s->world};
    static const char *const names[4] = {"P", "G", "O", "ranks"};
    for (int i = 0; i < 4; i++) {
        if (chain[i] == 0) {
            return shd_fail(err, SHD_EINVAL, "--shard-degrees: %s is 0; degrees start at 1",
                            names[i]);
        }
        if (i > 0 && chain[i] % chain[i - 1] != 0) {
            return shd_fail(err, SHD_EINVAL,
                            "--shard-degrees %u,%u,%u with --ranks %u: %s = %u does not divide "
                            "%s = %u; each degree must divide the next (P | G | O | ranks)",
                            s->p, s->g, s->o, s->world, names[i - 1], chain[i - 1], names[i],
                            chain[i]);
        }
    }
    return 0;
}

static int from_name(const char *name, uint32_t world, shd_strategy *out, shd_error *err)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = (shd_strategy){world, presets[i].p != 0 ? presets[i].p : world,
                                  presets[i].g != 0 ? presets[i].g : world,
                                  presets[i].o != 0 ? presets[i].o : world,
                                  presets[i].reshard_after_forward};
            return 0;
        }
    }
    static const char *const later[] = {"hybrid_shard", "hybrid_shard_zero2", "hpz", "mics"};
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        if (strcmp(later[i], name) == 0) {
            return shd_fail(err, SHD_EUNSUPPORTED,
                            "--strategy %s needs a node size, which this version does not know; "
                            "give its degrees with --shard-degrees P,G,O",
                            name);
        }
    }
    return shd_fail(err, SHD_EINVAL, "--strategy '%s' is not known; choose one of %s", name,
                    shd_strategy_presets());
}

int shd_strategy_make(const char *name, const uint32_t *degrees, uint32_t n_degrees, uint32_t world,
                      shd_strategy *out, shd_error *err)
{
    if (world < 1 || world > SHD_MAX_WORLD) {
        return shd_fail(err, SHD_EINVAL, "--ranks %u: must be 1 to %u", world, SHD_MAX_WORLD);
    }
    if (n_degrees == 0) {
        return from_name(name[0] != '\0' ? name : "zero3", world, out, err);
    }
    if (n_degrees != 3) {
        return shd_fail(err, SHD_EINVAL, "--shard-degrees has %u numbers; it takes three: P,G,O",
                        n_degrees);
    }
    *out = (shd_strategy){world, degrees[0], degrees[1], degrees[2], 1};
    SHD_TRY(check_degrees(out, err));
    if (name[0] == '\0' || strcmp(name, CUSTOM) == 0) {
        return 0;
    }
    SHD_TRY(from_name(name, world, out, err));
    if (out->p != degrees[0] || out->g != degrees[1] || out->o != degrees[2]) {
        return shd_fail(err, SHD_EINVAL,
                        "--strategy %s (%u,%u,%u at --ranks %u) and --shard-degrees %u,%u,%u were "
                        "both given and differ; give one",
                        name, out->p, out->g, out->o, world, degrees[0], degrees[1], degrees[2]);
    }
    return 0;
}

const char *shd_strategy_name(const shd_strategy *s)
{
    for (int i = 0; i < N_PRESETS; i++) {
        const struct preset *preset = &presets[i];
        if (s->p == (preset->p != 0 ? preset->p : s->world) &&
            s->g == (preset->g != 0 ? preset->g : s->world) &&
            s->o == (preset->o != 0 ? preset->o : s->world) &&
            (s->p == 1 || s->reshard_after_forward == preset->reshard_after_forward)) {
            return preset->name;
        }
    }
    return CUSTOM;
}

uint32_t shd_strategy_index_p(const shd_strategy *s, uint32_t rank)
{
    return rank % s->p;
}

uint32_t shd_strategy_index_g(const shd_strategy *s, uint32_t rank)
{
    return shd_strategy_index_p(s, rank) * (s->g / s->p) + rank % s->g / s->p;
}

uint32_t shd_strategy_index_o(const shd_strategy *s, uint32_t rank)
{
    return shd_strategy_index_g(s, rank) * (s->o / s->g) + rank % s->o / s->g;
}

uint32_t shd_strategy_atom(const shd_strategy *s, uint32_t rank)
{
    return shd_strategy_index_o(s, rank) * (s->world / s->o) + rank / s->o;
}

static int in_group(const shd_strategy *s, uint32_t rank, uint32_t other, shd_group group)
{
    switch (group) {
    case SHD_GROUP_GATHER:
        return rank / s->p == other / s->p;
    case SHD_GROUP_REDUCE:
        return 1;
    case SHD_GROUP_REPLICA:
        return rank % s->o == other % s->o;
    case SHD_GROUP_UPDATE:
        return rank / s->o == other / s->o && rank % s->p == other % s->p;
    case SHD_GROUP_NORM:
        return rank / s->o == other / s->o;
    case SHD_GROUP_COUNT:
        break;
    }
    return 0;
}

static uint32_t order_key(const shd_strategy *s, uint32_t rank, shd_group group)
{
    switch (group) {
    case SHD_GROUP_GATHER:
        return shd_strategy_index_p(s, rank);
    case SHD_GROUP_REDUCE:
    case SHD_GROUP_REPLICA:
        return shd_strategy_atom(s, rank);
    default:
        return shd_strategy_index_o(s, rank);
    }
}

uint32_t shd_strategy_group(const shd_strategy *s, uint32_t rank, shd_group group,
                            uint32_t *members)
{
    uint32_t n = 0;
    for (uint32_t other = 0; other < s->world; other++) {
        if (!in_group(s, rank, other, group)) {
            continue;
        }
        uint32_t at = n++;
        const uint32_t key = order_key(s, other, group);
        while (at > 0 && order_key(s, members[at - 1], group) > key) {
            members[at] = members[at - 1];
            at--;
        }
        members[at] = other;
    }
    return n;
}
