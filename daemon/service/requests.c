#include "daemon/service/requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

typedef struct entry {
    uid_t uid;
    char job_id[9];
    struct entry *next; /* oldest first */
    char request_id[];
} entry;

struct shd_requests {
    entry *oldest, **end;
};

shd_requests *shd_requests_create(void)
{
    shd_requests *requests = shd_calloc(1, sizeof(*requests));
    requests->end = &requests->oldest;
    return requests;
}

void shd_requests_free(shd_requests *requests)
{
    if (requests == NULL) {
        return;
    }
    for (entry *e = requests->oldest, *next; e != NULL; e = next) {
        next = e->next;
        free(e);
    }
    free(requests);
}

const char *shd_requests_get(const shd_requests *requests, uid_t uid, const char *request_id)
{
    for (const entry *e = requests->oldest; e != NULL; e = e->next) {
        if (e->uid == uid && strcmp(e->request_id, request_id) == 0) {
            return e->job_id;
        }
    }
    return NULL;
}

static void forget_oldest_of(shd_requests *requests, uid_t uid)
{
    for (entry **at = &requests->oldest; *at != NULL; at = &(*at)->next) {
        if ((*at)->uid == uid) {
            entry *e = *at;
            *at = e->next;
            requests->end = requests->end == &e->next ? at : requests->end;
            free(e);
            return;
        }
    }
}

void shd_requests_put(shd_requests *requests, uid_t uid, const char *request_id, const char *job_id)
{
    uint32_t of_user = 0;
    for (const entry *e = requests->oldest; e != NULL; e = e->next) {
        of_user += e->uid == uid;
    }
    if (of_user >= SHD_REQUESTS_PER_USER) {
        forget_oldest_of(requests, uid);
    }
    const size_t length = strlen(request_id);
    entry *e = shd_malloc(sizeof(*e) + length + 1);
    e->uid = uid;
    snprintf(e->job_id, sizeof(e->job_id), "%s", job_id);
    memcpy(e->request_id, request_id, length + 1);
    e->next = NULL;
    *requests->end = e;
    requests->end = &e->next;
}
