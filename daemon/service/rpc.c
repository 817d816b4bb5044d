/* One gRPC server per connection: a call belongs to the peer of the server it arrives at, so its
 * identity never depends on a number that can be used again. (The peer string of a call is
 * "fd:<n>"; a call can still wait in the completion queue when its connection has ended and <n>
 * already names another client's.) A server costs 13 KiB and 0.3 ms. */
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/service/rpc_internal.h"

#define BEAT_MS 1000u        /* the completion-queue thread comes round at least so often */
#define CLOSE_GRACE_MS 1000u /* for final statuses to reach their clients at shutdown */
#define MAX_METADATA (16 * 1024)
#define CONNECTION_BYTES (256 * 1024) /* windows and buffers of a connection with small calls */

/* ---- completion-queue thread ---- */

static void list_push(shd_event_list *list, shd_op *op, int success)
{
    if (list->n == list->capacity) {
        list->capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        list->items = shd_reallocarray(list->items, list->capacity, sizeof(*list->items));
    }
    list->items[list->n++] = (shd_cq_event){op, success};
}

static void cq_thread(void *arg)
{
    shd_rpc *rpc = arg;
    for (;;) {
        const gpr_timespec deadline =
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(BEAT_MS, GPR_TIMESPAN));
        const grpc_event event = grpc_completion_queue_next(rpc->cq, deadline, NULL);
        atomic_store_explicit(&rpc->beat_ns, uv_hrtime(), memory_order_relaxed);
        if (event.type == GRPC_QUEUE_TIMEOUT) {
            continue;
        }
        const int ended = event.type == GRPC_QUEUE_SHUTDOWN;
        uv_mutex_lock(&rpc->mutex);
        if (ended) {
            rpc->cq_ended = 1;
        } else {
            list_push(&rpc->queue, event.tag, event.success);
        }
        uv_mutex_unlock(&rpc->mutex);
        uv_async_send(&rpc->async);
        if (ended) {
            return;
        }
    }
}

uint64_t shd_rpc_idle_ms(const shd_rpc *rpc)
{
    const uint64_t beat = atomic_load_explicit(&rpc->beat_ns, memory_order_relaxed);
    const uint64_t now = uv_hrtime();
    return now > beat ? (now - beat) / 1000000 : 0;
}

/* ---- connections ---- */

static void conn_maybe_free(shd_conn *conn)
{
    shd_rpc *rpc = conn->rpc;
    if (!conn->down || conn->incoming != NULL || conn->calls != NULL || conn->poll_open) {
        return;
    }
    if (conn->prev != NULL) {
        conn->prev->next = conn->next;
    } else {
        rpc->conns = conn->next;
    }
    if (conn->next != NULL) {
        conn->next->prev = conn->prev;
    }
    rpc->n_conns--;
    grpc_server_destroy(conn->server);
    free(conn);
}

static void on_poll_closed(uv_handle_t *handle)
{
    shd_conn *conn = handle->data;
    shd_rpc *rpc = conn->rpc;
    close(conn->poll_fd);
    conn->poll_open = 0;
    conn_maybe_free(conn);
    shd_rpc_check(rpc, NULL);
}

/* Stops taking calls; with `cancel`, ends those that run and closes the connection. */
static void conn_end(shd_conn *conn, int cancel)
{
    if (!conn->ending) {
        conn->ending = 1;
        grpc_server_shutdown_and_notify(conn->server, conn->rpc->cq, &conn->down_op);
    }
    if (cancel && !conn->cancelled) {
        conn->cancelled = 1;
        grpc_server_cancel_all_calls(conn->server);
    }
}

static void conn_stop_poll(shd_conn *conn)
{
    if (!uv_is_closing((uv_handle_t *)&conn->poll)) {
        uv_close((uv_handle_t *)&conn->poll, on_poll_closed);
    }
}

/* The peer has gone, or gRPC has shut the socket down (it does so before it closes its fd, hence
 * also after a peer that does not speak HTTP/2). */
static void on_disconnect(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    shd_conn *conn = poll->data;
    conn_stop_poll(conn);
    conn_end(conn, 1);
}

static void conn_request(shd_conn *conn)
{
    if (conn->ending) {
        return;
    }
    shd_call *call = shd_call_create(conn);
    const grpc_call_error rc =
        grpc_server_request_call(conn->server, &call->call, &call->details, &call->metadata,
                                 conn->rpc->cq, conn->rpc->cq, &conn->new_call_op);
    if (rc != GRPC_CALL_OK) {
        shd_log(SHD_LOG_ERROR, "a connection is closed: gRPC takes no call: %s",
                grpc_call_error_to_string(rc));
        shd_call_discard(call);
        conn_end(conn, 1);
        return;
    }
    conn->incoming = call;
}

static void on_new_call(shd_conn *conn, int success)
{
    shd_call *call = conn->incoming;
    conn->incoming = NULL;
    if (!success) {
        shd_call_discard(call);
        conn_maybe_free(conn);
        return;
    }
    conn_request(conn);
    shd_call_start(call);
}

static void log_refused(shd_rpc *rpc, const shd_identity *who, const char *why)
{
    const uint64_t now = uv_hrtime();
    rpc->refused++;
    if (rpc->refused_logged_ns == 0 || now - rpc->refused_logged_ns > UINT64_C(1000000000)) {
        shd_log(SHD_LOG_WARNING, "refused a connection of uid %u, pid %d: %s (%llu refused so far)",
                (unsigned)who->uid, (int)who->pid, why, (unsigned long long)rpc->refused);
        rpc->refused_logged_ns = now;
    }
}

/* One user cannot take every connection from the others. */
static int check_room(const shd_rpc *rpc, const shd_identity *who, shd_error *err)
{
    const uint32_t limit = rpc->limits.max_connections;
    if (rpc->n_conns >= limit) {
        return shd_fail(err, SHD_EFULL, "%u connections are open, the limit (max_connections)",
                        limit);
    }
    if (who->uid == 0 || who->uid == geteuid()) {
        return SHD_OK;
    }
    const uint32_t share = limit - limit / 4;
    uint32_t held = 0;
    for (const shd_conn *c = rpc->conns; c != NULL; c = c->next) {
        held += c->who.uid == who->uid;
    }
    if (held >= share) {
        return shd_fail(err, SHD_EFULL,
                        "this user holds %u connections, all that one user may (3/4 of "
                        "max_connections)",
                        held);
    }
    return SHD_OK;
}

int shd_rpc_streams_crowded(const shd_rpc *rpc, const shd_conn *conn)
{
    size_t of_user = 0;
    for (const shd_conn *c = rpc->conns; c != NULL; c = c->next) {
        of_user += c->who.uid == conn->who.uid ? c->stream_bytes : 0;
    }
    return of_user > rpc->limits.max_message;
}

/* The first answer of a user may always wait: a refusal must not depend on others alone. */
int shd_rpc_check_held(const shd_rpc *rpc, const shd_conn *conn, size_t size, shd_error *err)
{
    size_t all = 0, of_user = 0;
    for (const shd_conn *c = rpc->conns; c != NULL; c = c->next) {
        all += c->held_bytes;
        of_user += c->who.uid == conn->who.uid ? c->held_bytes : 0;
    }
    const size_t limit = 2 * rpc->limits.max_message;
    if (of_user > 0 && (of_user + size > limit || all + size > 2 * limit)) {
        return shd_fail(err, SHD_EFULL,
                        "answers of %zu bytes wait for this user's clients to read them, and this "
                        "one of %zu bytes is too much; read those, then send the call again",
                        of_user, size);
    }
    return SHD_OK;
}

static grpc_server *create_server(const shd_rpc *rpc)
{
    grpc_arg args[] = {
        {GRPC_ARG_INTEGER,
         (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
         {.integer = (int)rpc->limits.max_message}},
        {GRPC_ARG_INTEGER, (char *)GRPC_ARG_MAX_METADATA_SIZE, {.integer = MAX_METADATA}},
        /* Some room above our own limit, so that a call over it gets an answer that says so. */
        {GRPC_ARG_INTEGER,
         (char *)GRPC_ARG_MAX_CONCURRENT_STREAMS,
         {.integer = (int)rpc->limits.max_calls + 16}},
        {GRPC_ARG_INTEGER, (char *)GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, {.integer = 0}},
        {GRPC_ARG_INTEGER, (char *)GRPC_ARG_ENABLE_CHANNELZ, {.integer = 0}},
        {GRPC_ARG_POINTER,
         (char *)GRPC_ARG_RESOURCE_QUOTA,
         {.pointer = {rpc->quota, grpc_resource_quota_arg_vtable()}}},
    };
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    grpc_server *server = grpc_server_create(&list, NULL);
    grpc_server_register_completion_queue(server, rpc->cq, NULL);
    grpc_server_start(server);
    return server;
}

int shd_rpc_serve_fd(shd_rpc *rpc, int fd, const shd_identity *who, shd_error *err)
{
    shd_error why;
    int rc = rpc->state == SHD_RPC_SERVING
                 ? check_room(rpc, who, &why)
                 : shd_fail(&why, SHD_EUNAVAILABLE, "the daemon is stopping");
    const int poll_fd = rc < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (rc == 0 && poll_fd < 0) {
        rc = shd_fail(&why, SHD_EIO, "dup: %s", strerror(errno));
    }
    if (rc < 0) {
        close(fd);
        log_refused(rpc, who, why.message);
        return shd_fail(err, rc, "%s", why.message);
    }
    shd_conn *conn = shd_calloc(1, sizeof(*conn));
    conn->rpc = rpc;
    conn->who = *who;
    conn->poll_fd = poll_fd;
    conn->new_call_op = (shd_op){SHD_OP_NEW_CALL, conn};
    conn->down_op = (shd_op){SHD_OP_DOWN, conn};
    rc = uv_poll_init(rpc->loop, &conn->poll, poll_fd);
    if (rc < 0) {
        close(poll_fd);
        close(fd);
        free(conn);
        return shd_fail(err, SHD_EIO, "cannot watch a connection: %s", uv_strerror(rc));
    }
    conn->poll.data = conn;
    conn->poll_open = 1;
    uv_poll_start(&conn->poll, UV_DISCONNECT, on_disconnect);

    conn->next = rpc->conns;
    if (rpc->conns != NULL) {
        rpc->conns->prev = conn;
    }
    rpc->conns = conn;
    rpc->n_conns++;

    conn->server = create_server(rpc);
    grpc_server_credentials *insecure = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(conn->server, fd, insecure);
    grpc_server_credentials_release(insecure);
    conn_request(conn);
    return SHD_OK;
}

uint32_t shd_rpc_connections(const shd_rpc *rpc)
{
    return rpc->n_conns;
}

/* ---- loop side of the completion queue ---- */

static void dispatch(const shd_cq_event *event)
{
    if (event->op->kind == SHD_OP_NEW_CALL) {
        on_new_call(event->op->owner, event->success);
    } else if (event->op->kind == SHD_OP_DOWN) {
        shd_conn *conn = event->op->owner;
        conn->down = 1;
        conn_stop_poll(conn);
        conn_maybe_free(conn);
    } else {
        shd_call_event(event->op->owner, event->op->kind, event->success);
    }
}

static void on_handle_closed(uv_handle_t *handle)
{
    shd_rpc *rpc = handle->data;
    if (--rpc->handles == 0 && rpc->done != NULL) {
        rpc->done(rpc->done_arg);
    }
}

/* The completion queue is empty and its thread has left it. */
static void join_cq(shd_rpc *rpc)
{
    uv_thread_join(&rpc->thread);
    grpc_completion_queue_destroy(rpc->cq);
    rpc->cq = NULL;
    uv_close((uv_handle_t *)&rpc->async, on_handle_closed);
    uv_close((uv_handle_t *)&rpc->timer, on_handle_closed);
}

static void on_async(uv_async_t *async)
{
    shd_rpc *rpc = async->data;
    uv_mutex_lock(&rpc->mutex);
    shd_event_list list = rpc->queue;
    rpc->queue = rpc->spare;
    const int ended = rpc->cq_ended;
    uv_mutex_unlock(&rpc->mutex);

    for (size_t i = 0; i < list.n; i++) {
        dispatch(&list.items[i]);
    }
    list.n = 0;
    rpc->spare = list;
    if (ended) {
        join_cq(rpc);
        return;
    }
    shd_rpc_check(rpc, NULL);
}

/* ---- start and stop ---- */

static void on_grpc_log(gpr_log_func_args *args)
{
    shd_log(args->severity == GPR_LOG_SEVERITY_ERROR ? SHD_LOG_INFO : SHD_LOG_DEBUG, "gRPC: %s",
            args->message);
}

static void free_failed(void *rpc)
{
    shd_rpc_free(rpc);
}

int shd_rpc_create(uv_loop_t *loop, const shd_rpc_limits *limits, shd_rpc **out, shd_error *err)
{
    shd_rpc *rpc = shd_calloc(1, sizeof(*rpc));
    rpc->loop = loop;
    rpc->limits = *limits;
    int rc = uv_async_init(loop, &rpc->async, on_async);
    if (rc < 0) {
        free(rpc);
        return shd_fail(err, SHD_EIO, "cannot make a wake-up handle: %s", uv_strerror(rc));
    }
    uv_timer_init(loop, &rpc->timer);
    uv_mutex_init(&rpc->mutex);
    rpc->async.data = rpc->timer.data = rpc;
    rpc->handles = 2;

    gpr_set_log_function(on_grpc_log);
    grpc_init();
    rpc->cq = grpc_completion_queue_create_for_next(NULL);
    rpc->quota = grpc_resource_quota_create("shardd");
    grpc_resource_quota_resize(rpc->quota, 4 * limits->max_message +
                                               (size_t)limits->max_connections * CONNECTION_BYTES);
    atomic_init(&rpc->beat_ns, uv_hrtime());
    rc = uv_thread_create(&rpc->thread, cq_thread, rpc);
    if (rc < 0) {
        grpc_completion_queue_shutdown(rpc->cq);
        grpc_completion_queue_destroy(rpc->cq);
        rpc->done = free_failed; /* handles end in the loop */
        rpc->done_arg = rpc;
        uv_close((uv_handle_t *)&rpc->async, on_handle_closed);
        uv_close((uv_handle_t *)&rpc->timer, on_handle_closed);
        return shd_fail(err, SHD_EIO, "cannot start the completion-queue thread: %s",
                        uv_strerror(rc));
    }
    *out = rpc;
    return SHD_OK;
}

void shd_rpc_add_methods(shd_rpc *rpc, const shd_rpc_method *methods, size_t n, void *service)
{
    rpc->tables = shd_reallocarray(rpc->tables, rpc->n_tables + 1, sizeof(*rpc->tables));
    rpc->tables[rpc->n_tables++] = (shd_method_table){methods, n, service};
}

void shd_rpc_set_gate(shd_rpc *rpc, shd_rpc_gate gate, void *arg)
{
    rpc->gate = gate;
    rpc->gate_arg = arg;
}

static shd_call *find_open(const shd_rpc *rpc, int streams_only)
{
    for (const shd_conn *conn = rpc->conns; conn != NULL; conn = conn->next) {
        for (shd_call *call = conn->calls; call != NULL; call = call->next) {
            if (!call->answered && (!streams_only || call->method->server_stream)) {
                return call;
            }
        }
    }
    return NULL;
}

/* on_gone may change the lists, so each search starts anew. */
static void evict(shd_rpc *rpc, int streams_only)
{
    for (shd_call *call; (call = find_open(rpc, streams_only)) != NULL;) {
        shd_call_evict(call, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
}

static void end_all(shd_rpc *rpc, int cancel)
{
    for (shd_conn *conn = rpc->conns; conn != NULL; conn = conn->next) {
        conn_end(conn, cancel);
    }
}

static void on_close_timer(uv_timer_t *timer)
{
    end_all(timer->data, 1);
}

static void begin_closing(shd_rpc *rpc)
{
    rpc->state = SHD_RPC_CLOSING;
    end_all(rpc, 0);
    uv_timer_start(&rpc->timer, on_close_timer, CLOSE_GRACE_MS, 0);
}

static void on_drain_timer(uv_timer_t *timer)
{
    shd_rpc *rpc = timer->data;
    evict(rpc, 0);
    shd_rpc_check(rpc, NULL);
}

void shd_rpc_check(shd_rpc *rpc, shd_conn *conn)
{
    if (conn != NULL) {
        conn_maybe_free(conn);
    }
    if (rpc->state == SHD_RPC_DRAINING && rpc->n_open == 0) {
        begin_closing(rpc);
    }
    if (rpc->state == SHD_RPC_CLOSING && rpc->conns == NULL) {
        rpc->state = SHD_RPC_ENDED;
        uv_timer_stop(&rpc->timer);
        grpc_completion_queue_shutdown(rpc->cq);
    }
}

void shd_rpc_shutdown(shd_rpc *rpc, uint64_t grace_ms, void (*done)(void *arg), void *arg)
{
    rpc->state = SHD_RPC_DRAINING;
    rpc->done = done;
    rpc->done_arg = arg;
    uv_timer_start(&rpc->timer, on_drain_timer, grace_ms, 0);
    evict(rpc, 1);
    shd_rpc_check(rpc, NULL);
}

void shd_rpc_free(shd_rpc *rpc)
{
    if (rpc == NULL) {
        return;
    }
    for (shd_call *call = rpc->orphans; call != NULL;) {
        shd_call *next = call->next;
        free(call);
        call = next;
    }
    uv_mutex_destroy(&rpc->mutex);
    free(rpc->queue.items);
    free(rpc->spare.items);
    free(rpc->tables);
    grpc_resource_quota_unref(rpc->quota);
    free(rpc);
    grpc_shutdown();
}
