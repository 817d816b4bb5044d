/* From what was asked for to degrees, and what degrees are called; see strategy.h. Floor F3; pure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/shard/strategy.h"

typedef enum degree { ONE, GROUP, WORLD } degree;

/* Names for messages come first, so that degrees are called by the most common. */
static const struct preset {
    const char *name;
    degree p, g, o;
    int whole; /* gathered parameters stay as they are until backward */
} presets[] = {
    {"ddp", ONE, ONE, ONE, 0},
    {"zero1", ONE, ONE, WORLD, 0},
    {"zero2", ONE, WORLD, WORLD, 0},
    {"zero3", WORLD, WORLD, WORLD, 0},
    {"shard_grad_op", WORLD, WORLD, WORLD, 1},
    {"hybrid_shard", GROUP, GROUP, GROUP, 0},
    {"hybrid_shard_zero2", GROUP, GROUP, GROUP, 1},
    {"hpz", GROUP, WORLD, WORLD, 0},
    {"megatron", GROUP, GROUP, WORLD, 0},
    {"no_shard", ONE, ONE, ONE, 0},
    {"full_shard", WORLD, WORLD, WORLD, 0},
    {"mics", GROUP, GROUP, GROUP, 0},
};
enum { N_PRESETS = sizeof presets / sizeof presets[0] };

/* What degrees without a preset are called. */
#define CUSTOM "custom"
#define WITH_GROUPS "hybrid_shard, hybrid_shard_zero2, mics, hpz or megatron"

const char *shd_strategy_presets(void)
{
    return "ddp (no_shard), zero1, zero2, zero3 (full_shard), shard_grad_op, hybrid_shard (mics), "
           "hybrid_shard_zero2, hpz, megatron";
}

static uint32_t degree_of(degree d, uint32_t group, uint32_t world)
{
    return d == ONE ? 1 : d == GROUP ? group : world;
}

static int has_group(const struct preset *preset)
{
    return preset->p == GROUP || preset->g == GROUP || preset->o == GROUP;
}

static shd_strategy strategy_of(const struct preset *preset, uint32_t group, uint32_t world)
{
    const uint32_t p = degree_of(preset->p, group, world);
    return (shd_strategy){world, p, degree_of(preset->g, group, world),
                          degree_of(preset->o, group, world), preset->whole ? 1 : p};
}

/* "1, 2, 4 or 8": at most the eight smallest and n itself. */
static void divisors(uint32_t n, char *out, size_t size)
{
    uint32_t found = 0;
    out[0] = '\0';
    for (uint32_t d = 1; d < n && found < 8; d++) {
        if (n % d == 0) {
            const size_t used = strlen(out);
            snprintf(out + used, size - used, "%s%u", found++ > 0 ? ", " : "", d);
        }
    }
    const size_t used = strlen(out);
    snprintf(out + used, size - used, "%s%u", found > 0 ? " or " : "", n);
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

static int find(const char *name, const struct preset **out, shd_error *err)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = &presets[i];
            return 0;
        }
    }
    return shd_fail(err, SHD_EINVAL, "--strategy '%s' is not known; choose one of %s", name,
                    shd_strategy_presets());
}

/* k of a preset with groups: as given, else as in the degrees, else the ranks of a node. */
static int find_group(const shd_strategy_request *r, uint32_t *group, shd_error *err)
{
    char choices[128];
    *group = r->group;
    if (r->group == 0 && r->n_degrees > 0) {
        *group = r->degrees[0];
        return 0; /* the degrees are checked, and these against them */
    }
    if (r->group == 0) {
        *group = r->node == 0 || r->node > r->world ? r->world : r->node;
    }
    if (r->world % *group == 0) {
        return 0;
    }
    divisors(r->world, choices, sizeof choices);
    if (r->group == 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--strategy %s shards over the ranks of a node, but %u do not divide "
                        "--ranks %u; give --shard-group %s",
                        r->name, *group, r->world, choices);
    }
    return shd_fail(err, SHD_EINVAL,
                    "--shard-group %u does not divide --ranks %u; give %s (P | G | O | ranks)",
                    r->group, r->world, choices);
}

static int from_name(const shd_strategy_request *r, const struct preset *preset, shd_strategy *out,
                     shd_error *err)
{
    uint32_t group = 0;
    if (has_group(preset)) {
        SHD_TRY(find_group(r, &group, err));
    } else if (r->group != 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--shard-group %u has no effect with --strategy %s; it is for " WITH_GROUPS,
                        r->group, preset->name);
    }
    *out = strategy_of(preset, group, r->world);
    return 0;
}

/* *preset: NULL when degrees alone were given. */
static int from_degrees(const shd_strategy_request *r, const char *name,
                        const struct preset **preset, shd_strategy *out, shd_error *err)
{
    if (r->n_degrees != 3) {
        return shd_fail(err, SHD_EINVAL, "--shard-degrees has %u numbers; it takes three: P,G,O",
                        r->n_degrees);
    }
    const uint32_t *d = r->degrees;
    const shd_strategy given = {r->world, d[0], d[1], d[2], d[0]};
    SHD_TRY(check_degrees(&given, err));
    if (name[0] == '\0' || strcmp(name, CUSTOM) == 0) {
        *out = given;
        return r->group == 0 ? 0
                             : shd_fail(err, SHD_EINVAL,
                                        "--shard-group %u has no effect with --shard-degrees "
                                        "%u,%u,%u; give one of them",
                                        r->group, d[0], d[1], d[2]);
    }
    SHD_TRY(find(name, preset, err));
    SHD_TRY(from_name(r, *preset, out, err));
    if (out->p != d[0] || out->g != d[1] || out->o != d[2]) {
        return shd_fail(err, SHD_EINVAL,
                        "--strategy %s (%u,%u,%u at --ranks %u) and --shard-degrees %u,%u,%u were "
                        "both given and differ; give one",
                        name, out->p, out->g, out->o, r->world, d[0], d[1], d[2]);
    }
    return 0;
}

/* Into how many parts what stays gathered is cut. */
static int parse_reshard(const char *text, uint32_t p, uint32_t *out, shd_error *err)
{
    if (strcmp(text, "yes") == 0 || strcmp(text, "no") == 0) {
        *out = text[0] == 'y' ? p : 1;
        return 0;
    }
    char *end = NULL;
    const size_t digits = strspn(text, "0123456789");
    const unsigned long n =
        digits > 0 && digits < 10 && text[digits] == '\0' ? strtoul(text, &end, 10) : 0;
    if (n == 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--reshard-after-forward '%s': give yes, no or the number of ranks that "
                        "keep one copy together",
                        text);
    }
    if (p % n != 0) {
        char choices[128];
        divisors(p, choices, sizeof choices);
        return shd_fail(err, SHD_EINVAL,
                        "--reshard-after-forward %lu does not divide the %u ranks that parameters "
                        "are sharded over (P); give yes, no, or %s",
                        n, p, choices);
    }
    *out = (uint32_t)n;
    return 0;
}

static int set_regather(const shd_strategy_request *r, const struct preset *preset, shd_strategy *s,
                        shd_error *err)
{
    if (r->reshard == NULL || r->reshard[0] == '\0') {
        return 0;
    }
    uint32_t regather = 1;
    SHD_TRY(parse_reshard(r->reshard, s->p, &regather, err));
    if (s->p == 1 && (preset == NULL || preset->p == ONE)) {
        return shd_fail(err, SHD_EINVAL,
                        "--reshard-after-forward %s has no effect with degrees %u,%u,%u: "
                        "parameters are not sharded (P = 1); leave it out",
                        r->reshard, s->p, s->g, s->o);
    }
    if (preset != NULL && preset->whole && regather != 1) {
        return shd_fail(err, SHD_EINVAL,
                        "--strategy %s keeps parameters gathered until backward, which "
                        "--reshard-after-forward %s contradicts; take --strategy %s",
                        preset->name, r->reshard,
                        preset->p == WORLD ? "full_shard" : "hybrid_shard");
    }
    s->regather = regather;
    return 0;
}

int shd_strategy_resolve(const shd_strategy_request *request, shd_strategy *out, shd_error *err)
{
    const char *name = request->name != NULL ? request->name : "";
    const struct preset *preset = NULL;
    if (request->world < 1 || request->world > SHD_MAX_WORLD) {
        return shd_fail(err, SHD_EINVAL, "--ranks %u: must be 1 to %u", request->world,
                        SHD_MAX_WORLD);
    }
    if (request->n_degrees > 0) {
        SHD_TRY(from_degrees(request, name, &preset, out, err));
    } else if (name[0] == '\0' && request->group != 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--shard-group %u needs a strategy of groups; give --strategy " WITH_GROUPS,
                        request->group);
    } else {
        SHD_TRY(find(name[0] != '\0' ? name : "zero3", &preset, err));
        SHD_TRY(from_name(request, preset, out, err));
    }
    return set_regather(request, preset, out, err);
}

int shd_strategy_make(const char *name, const uint32_t *degrees, uint32_t n_degrees, uint32_t world,
                      shd_strategy *out, shd_error *err)
{
    const shd_strategy_request request = {
        .world = world, .name = name, .degrees = degrees, .n_degrees = n_degrees};
    return shd_strategy_resolve(&request, out, err);
}

/* The first preset with these degrees; `exactly`: and with what stays gathered. */
static const struct preset *preset_of(const shd_strategy *s, int exactly)
{
    for (int i = 0; i < N_PRESETS; i++) {
        const shd_strategy of = strategy_of(&presets[i], s->p, s->world);
        if (of.p == s->p && of.g == s->g && of.o == s->o &&
            (!exactly || of.regather == s->regather)) {
            return &presets[i];
        }
    }
    return NULL;
}

static const struct preset *known_as(const shd_strategy *s)
{
    const struct preset *preset = preset_of(s, 1);
    return preset != NULL ? preset : preset_of(s, 0);
}

const char *shd_strategy_name(const shd_strategy *s)
{
    const struct preset *preset = known_as(s);
    return preset != NULL ? preset->name : CUSTOM;
}

uint32_t shd_strategy_shard_group(const shd_strategy *s)
{
    const struct preset *preset = known_as(s);
    return preset != NULL && has_group(preset) ? s->p : 0;
}

const char *shd_strategy_reshard(const shd_strategy *s, char out[SHD_STRATEGY_RESHARD_LEN])
{
    if (s->p == 1) {
        out[0] = '\0';
    } else if (s->regather == s->p || s->regather == 1) {
        snprintf(out, SHD_STRATEGY_RESHARD_LEN, "%s", s->regather == 1 ? "no" : "yes");
    } else {
        snprintf(out, SHD_STRATEGY_RESHARD_LEN, "%u", s->regather);
    }
    return out;
}

const char *shd_strategy_flags(const shd_strategy *s, char out[SHD_STRATEGY_FLAGS_LEN])
{
    const struct preset *preset = known_as(s);
    char reshard[SHD_STRATEGY_RESHARD_LEN];
    int n = preset != NULL ? snprintf(out, SHD_STRATEGY_FLAGS_LEN, "--strategy %s", preset->name)
                           : snprintf(out, SHD_STRATEGY_FLAGS_LEN, "--shard-degrees %u,%u,%u", s->p,
                                      s->g, s->o);
    if (preset != NULL && has_group(preset)) {
        n += snprintf(out + n, SHD_STRATEGY_FLAGS_LEN - (size_t)n, " --shard-group %u", s->p);
    }
    if (s->regather != (preset != NULL && preset->whole ? 1 : s->p)) {
        snprintf(out + n, SHD_STRATEGY_FLAGS_LEN - (size_t)n, " --reshard-after-forward %s",
                 shd_strategy_reshard(s, reshard));
    }
    return out;
}
