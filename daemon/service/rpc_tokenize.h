/* Tokenize: text to token ids and back, and files into the token cache. Floor F5; loop thread;
 * tokenizers are read and texts are tokenized on other threads. */
#ifndef SHD_DAEMON_SERVICE_RPC_TOKENIZE_H
#define SHD_DAEMON_SERVICE_RPC_TOKENIZE_H

#include <stddef.h>

#include "daemon/service/jobs.h"
#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_tokenize shd_tokenize;

/* The texts of all callers. `jobs` is borrowed. */
shd_tokenize *shd_tokenize_create(shd_jobs *jobs);
/* When the jobs have stopped, and before they are freed; calls that are left are forgotten. The
 * loop must run once more so that handles close. NULL is fine. */
void shd_tokenize_free(shd_tokenize *service);

/* The service pointer is an shd_tokenize. */
const shd_rpc_method *shd_rpc_tokenize_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif
