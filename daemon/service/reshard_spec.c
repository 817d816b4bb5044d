#include "daemon/service/reshard_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/message.h"

static void set_text(char **field, const char *text)
{
    if (*field != protobuf_c_empty_string) {
        free(*field);
    }
    *field = shd_strdup(text);
}

static void set_degrees(Shard__V1__JobSpec *m, const uint32_t *degrees, size_t n)
{
    free(m->shard_degrees);
    m->shard_degrees = NULL;
    m->n_shard_degrees = n;
    if (n > 0) {
        m->shard_degrees = shd_reallocarray(NULL, n, sizeof(*degrees));
        memcpy(m->shard_degrees, degrees, n * sizeof(*degrees));
    }
}

/* A name or degrees stand for the whole strategy; without them a preset stays what it is called and
 * its degrees follow from group and ranks. */
static void set_strategy(Shard__V1__JobSpec *m, const Shard__V1__ReshardRequest *q)
{
    const int renamed = q->strategy[0] != '\0' || q->n_shard_degrees > 0;
    if (renamed) {
        set_text(&m->strategy, q->strategy);
        set_degrees(m, q->shard_degrees, q->n_shard_degrees);
        m->has_shard_group_case = SHARD__V1__JOB_SPEC__HAS_SHARD_GROUP__NOT_SET;
    } else if (strcmp(m->strategy, "custom") != 0) {
        set_degrees(m, NULL, 0);
    }
    if (renamed || m->ranks == 1) { /* alone there is nothing to gather again */
        set_text(&m->reshard_after_forward, "");
    }
    if (q->has_shard_group_case) {
        m->has_shard_group_case = SHARD__V1__JOB_SPEC__HAS_SHARD_GROUP_SHARD_GROUP;
        m->shard_group = q->shard_group;
    }
    if (q->reshard_after_forward[0] != '\0') {
        set_text(&m->reshard_after_forward, q->reshard_after_forward);
    }
}

Shard__V1__JobSpec *shd_reshard_spec(const Shard__V1__JobSpec *now,
                                     const Shard__V1__ReshardRequest *q)
{
    Shard__V1__JobSpec *m = (Shard__V1__JobSpec *)shd_message_copy(&now->base);
    if (q->ranks > 0) {
        m->ranks = q->ranks;
    }
    set_strategy(m, q);
    if (q->has_micro_batch_case) {
        m->micro_batch = q->micro_batch;
    }
    if (q->determinism[0] != '\0') {
        set_text(&m->determinism, q->determinism);
    }
    if (q->has_reduction_width_case) {
        m->has_reduction_width_case = SHARD__V1__JOB_SPEC__HAS_REDUCTION_WIDTH_REDUCTION_WIDTH;
        m->reduction_width = q->reduction_width;
    } else if (strcmp(m->determinism, "world") != 0) { /* elsewhere it is the ranks */
        m->has_reduction_width_case = SHARD__V1__JOB_SPEC__HAS_REDUCTION_WIDTH__NOT_SET;
    }
    return m;
}

int shd_reshard_asks(const Shard__V1__ReshardRequest *q)
{
    return q->strategy[0] != '\0' || q->ranks > 0 || q->n_shard_degrees > 0 ||
           q->has_shard_group_case || q->reshard_after_forward[0] != '\0' ||
           q->determinism[0] != '\0' || q->has_reduction_width_case || q->has_micro_batch_case;
}

int shd_reshard_check_batch(const Shard__V1__JobSpec *m, uint32_t n_ranks, shd_error *err)
{
    if (m->micro_batch == 0 || m->ranks == 0 || m->ranks > n_ranks) {
        return SHD_OK; /* the specification's own check says it */
    }
    const uint64_t round = (uint64_t)m->micro_batch * m->ranks;
    if (m->global_batch % round == 0) {
        return SHD_OK;
    }
    char would[160] = "";
    int n = 0;
    for (uint32_t ranks = n_ranks; ranks > 0 && n < 3; ranks--) {
        if (m->global_batch % ((uint64_t)m->micro_batch * ranks) == 0) {
            const size_t used = strlen(would);
            snprintf(would + used, sizeof(would) - used, "%s--ranks %u", n > 0 ? ", " : "", ranks);
            n++;
        }
    }
    const uint32_t most = m->global_batch / m->ranks; /* larger ones do not divide it */
    uint32_t micro = m->micro_batch < most ? m->micro_batch : most;
    while (micro > 0 && m->global_batch % ((uint64_t)micro * m->ranks) != 0) {
        micro--;
    }
    if (micro > 0) {
        const size_t used = strlen(would);
        snprintf(would + used, sizeof(would) - used, "%s--ranks %u --micro-batch %u",
                 n > 0 ? ", " : "", m->ranks, micro);
    }
    return shd_fail(err, SHD_EINVAL,
                    "--ranks %u with --micro-batch %u: %llu sequences a round do not divide the "
                    "job's --global-batch %u, which stays; would do: %s",
                    m->ranks, m->micro_batch, (unsigned long long)round, m->global_batch,
                    would[0] != '\0' ? would : "a micro-batch and ranks that divide it");
}
