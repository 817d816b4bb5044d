/* Which job a CreateJob call with a request id made, so that a call that is sent again makes no
 * second one. Floor F5; one thread. */
#ifndef SHD_DAEMON_SERVICE_REQUESTS_H
#define SHD_DAEMON_SERVICE_REQUESTS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Request ids remembered per user, the latest ones. */
#define SHD_REQUESTS_PER_USER 1024u
#define SHD_REQUEST_ID_MAX 128u

typedef struct shd_requests shd_requests;

shd_requests *shd_requests_create(void);
void shd_requests_free(shd_requests *requests); /* NULL is fine */

/* The id of the job that (uid, request_id) made; NULL: not known. */
const char *shd_requests_get(const shd_requests *requests, uid_t uid, const char *request_id);

/* Remembers; (uid, request_id) must not be known yet. Forgets the user's oldest beyond the limit.
 */
void shd_requests_put(shd_requests *requests, uid_t uid, const char *request_id,
                      const char *job_id);

#ifdef __cplusplus
}
#endif
#endif
