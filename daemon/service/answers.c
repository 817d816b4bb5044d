#include "daemon/service/answers.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

struct shd_answers {
    uint32_t count;
    size_t max_bytes, bytes;
    uint64_t oldest, end; /* kept are [oldest, end) */
    shd_answer *ring;     /* [count]; seq at seq % count */
};

shd_answers *shd_answers_create(uint32_t count, size_t max_bytes)
{
    shd_answers *answers = shd_calloc(1, sizeof(*answers));
    answers->count = count != 0 ? count : 1;
    answers->max_bytes = max_bytes;
    answers->ring = shd_calloc(answers->count, sizeof(*answers->ring));
    return answers;
}

static void drop_oldest(shd_answers *answers)
{
    shd_answer *answer = &answers->ring[answers->oldest % answers->count];
    answers->bytes -= answer->size;
    free(answer->error);
    free(answer->data);
    memset(answer, 0, sizeof(*answer));
    answers->oldest++;
}

void shd_answers_free(shd_answers *answers)
{
    if (answers == NULL) {
        return;
    }
    while (answers->oldest < answers->end) {
        drop_oldest(answers);
    }
    free(answers->ring);
    free(answers);
}

void shd_answers_put(shd_answers *answers, uint64_t seq, int kind, const shd_error *failed,
                     uint8_t *data, size_t size)
{
    assert(answers->end == answers->oldest || seq == answers->end);
    if (answers->end == answers->oldest) {
        answers->oldest = answers->end = seq;
    } else if (answers->end - answers->oldest == answers->count) {
        drop_oldest(answers);
    }
    answers->ring[seq % answers->count] = (shd_answer){
        .seq = seq,
        .kind = kind,
        .rc = failed != NULL ? failed->code : SHD_OK,
        .error = failed != NULL ? shd_strdup(failed->message) : NULL,
        .data = data,
        .size = size,
    };
    answers->bytes += size;
    answers->end = seq + 1;
    while (answers->bytes > answers->max_bytes && answers->end - answers->oldest > 1) {
        drop_oldest(answers);
    }
}

const shd_answer *shd_answers_get(const shd_answers *answers, uint64_t seq)
{
    return seq >= answers->oldest && seq < answers->end ? &answers->ring[seq % answers->count]
                                                        : NULL;
}

uint64_t shd_answers_oldest(const shd_answers *answers)
{
    return answers->end > answers->oldest ? answers->oldest : 0;
}

uint64_t shd_answers_latest(const shd_answers *answers)
{
    return answers->end > answers->oldest ? answers->end - 1 : 0;
}
