/* Tokenize: text to token ids and back, and files into the token cache. Floor F5; loop thread;
 * tokenizers are read and texts are tokenized on other threads. */
#ifndef SHD_DAEMON_SERVICE_RPC_TOKENIZE_H
#define SHD_DAEMON_SERVICE_RPC_TOKENIZE_H

#include <stddef.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The service pointer is an shd_jobs. */
const shd_rpc_method *shd_rpc_tokenize_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif
