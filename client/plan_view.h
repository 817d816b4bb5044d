/* A plan as text and as JSON. */
#ifndef SHD_CLIENT_PLAN_VIEW_H
#define SHD_CLIENT_PLAN_VIEW_H

#include "client/buf.h"
#include "client/jsonout.h"
#include "client/term.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the answer is to. */
typedef struct shc_plan_asked {
    const char *strategy;              /* by name; may be empty */
    const Shard__V1__Machine *machine; /* NULL: the daemon itself */
} shc_plan_asked;

void shc_plan_render(shc_buf *out, const shc_term *term, const Shard__V1__PlanResponse *plan,
                     const shc_plan_asked *asked);
void shc_plan_json(shc_json *json, const Shard__V1__PlanResponse *plan,
                   const shc_plan_asked *asked);

#ifdef __cplusplus
}
#endif
#endif
