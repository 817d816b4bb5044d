/* ExportModel: a job's parameters as a Hugging Face directory, made with the rights of the caller.
 * Files are made and brought to disk on threads beside the loop; between, the ranks write as a work
 * item of the job, which goes on afterwards whatever came of it. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_RPC_EXPORT_H
#define SHD_DAEMON_SERVICE_RPC_EXPORT_H

#include <stddef.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The service pointer is a shd_jobs. */
const shd_rpc_method *shd_rpc_export_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif
