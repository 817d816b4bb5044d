/* The whole status of a daemon, as a screen for people and as one JSON object. */
#ifndef SHD_CLIENT_STATUS_VIEW_H
#define SHD_CLIENT_STATUS_VIEW_H

#include "client/buf.h"
#include "client/jsonout.h"
#include "client/term.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

void shc_status_render(shc_buf *out, const shc_term *term, const Shard__V1__StatusResponse *status);
/* One object: version, ranks, jobs with memory by tag and communication. */
void shc_status_json(shc_json *json, const Shard__V1__StatusResponse *status);

#ifdef __cplusplus
}
#endif
#endif
