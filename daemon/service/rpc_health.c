#include "daemon/service/rpc_health.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "proto/health.pb-c.h"

typedef Grpc__Health__V1__HealthCheckRequest request_t;
typedef Grpc__Health__V1__HealthCheckResponse response_t;

typedef struct watcher {
    struct watcher *prev, *next;
    shd_health *health;
    shd_call *call;
    int known; /* the service exists */
} watcher;

struct shd_health {
    int serving;
    watcher *watchers;
};

static int is_known(const request_t *request)
{
    return strcmp(request->service, "") == 0 || strcmp(request->service, "shard.v1.Shard") == 0;
}

static response_t response(const shd_health *health, int known)
{
    response_t r = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    r.status = !known ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN
               : health->serving
                   ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                   : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
    return r;
}

static void check(shd_call *call, const ProtobufCMessage *message, void *service)
{
    const request_t *request = (const request_t *)message;
    if (!is_known(request)) {
        shd_call_failf(call, SHD_ENOTFOUND,
                       "no service '%.100s' here; ask for 'shard.v1.Shard' or ''",
                       request->service);
        return;
    }
    const response_t r = response(service, 1);
    shd_call_reply(call, &r.base);
}

static void on_gone(void *arg)
{
    watcher *w = arg;
    if (w->prev != NULL) {
        w->prev->next = w->next;
    } else {
        w->health->watchers = w->next;
    }
    if (w->next != NULL) {
        w->next->prev = w->prev;
    }
    free(w);
}

static void watch(shd_call *call, const ProtobufCMessage *message, void *service)
{
    shd_health *health = service;
    watcher *w = shd_calloc(1, sizeof(*w));
    w->health = health;
    w->call = call;
    w->known = is_known((const request_t *)message);
    w->next = health->watchers;
    if (w->next != NULL) {
        w->next->prev = w;
    }
    health->watchers = w;
    shd_call_callbacks(call, on_gone, NULL, w);
    const response_t r = response(health, w->known);
    shd_call_send(call, &r.base);
}

static const shd_rpc_method methods[] = {
    {"/grpc.health.v1.Health/Check", &grpc__health__v1__health_check_request__descriptor, check, 0},
    {"/grpc.health.v1.Health/Watch", &grpc__health__v1__health_check_request__descriptor, watch, 1},
};

shd_health *shd_health_create(shd_rpc *rpc)
{
    shd_health *health = shd_calloc(1, sizeof(*health));
    health->serving = 1;
    shd_rpc_add_methods(rpc, methods, sizeof(methods) / sizeof(methods[0]), health);
    return health;
}

void shd_health_set(shd_health *health, int serving)
{
    if (health->serving == serving) {
        return;
    }
    health->serving = serving;
    for (watcher *w = health->watchers; w != NULL; w = w->next) {
        if (w->known) {
            const response_t r = response(health, 1);
            shd_call_send(w->call, &r.base);
        }
    }
}

void shd_health_free(shd_health *health)
{
    while (health != NULL && health->watchers != NULL) {
        on_gone(health->watchers);
    }
    free(health);
}
