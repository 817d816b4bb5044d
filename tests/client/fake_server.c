#include "tests/client/fake_server.h"

#include <fcntl.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 256, HIGH_FD = 400 };

struct fake_call {
    fake_server *server;
    grpc_call *call;
    grpc_completion_queue *cq; /* of this call alone */
    grpc_call_details details;
    grpc_metadata_array metadata;
    int cancelled;
    int gone; /* RECV_CLOSE_ON_SERVER is back */
    int started;
    char close_tag, op_tag;
};

struct fake_server {
    char path[108];
    int listener;
    int stopping; /* under lock */
    grpc_server *server;
    grpc_completion_queue *cq;
    fake_handler handler;
    void *arg;
    pthread_t accept_thread, cq_thread;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int running; /* handlers */
    int fds[MAX_CONNECTIONS];
    int nfds;
};

static gpr_timespec in_ms(int64_t ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

static int batch(fake_call *call, const grpc_op *ops, size_t n)
{
    if (grpc_call_start_batch(call->call, ops, n, &call->op_tag, NULL) != GRPC_CALL_OK)
        return -1;
    grpc_event event = grpc_completion_queue_pluck(call->cq, &call->op_tag,
                                                   gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    return event.success ? 0 : -1;
}

static void *call_main(void *arg)
{
    fake_call *call = arg;
    fake_server *server = call->server;
    grpc_byte_buffer *bytes = NULL;
    const grpc_op close_op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                              .data.recv_close_on_server.cancelled = &call->cancelled};
    const grpc_op receive = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &bytes};

    grpc_call_start_batch(call->call, &close_op, 1, &call->close_tag, NULL);
    batch(call, &receive, 1);
    if (bytes) {
        grpc_byte_buffer_reader reader;
        grpc_byte_buffer_reader_init(&reader, bytes);
        grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
        char *method = grpc_slice_to_c_string(call->details.method);
        server->handler(call, method, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice),
                        server->arg);
        gpr_free(method);
        grpc_slice_unref(slice);
        grpc_byte_buffer_destroy(bytes);
    }
    if (!call->gone)
        grpc_call_cancel(call->call, NULL);
    fake_wait_gone(call, INT64_MAX / 2000000);
    grpc_call_unref(call->call);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_completion_queue_shutdown(call->cq);
    grpc_completion_queue_destroy(call->cq);
    free(call);

    pthread_mutex_lock(&server->lock);
    server->running--;
    pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

static void request_call(fake_server *server)
{
    fake_call *call = calloc(1, sizeof *call);
    call->server = server;
    call->cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    if (grpc_server_request_call(server->server, &call->call, &call->details, &call->metadata,
                                 call->cq, server->cq, call) != GRPC_CALL_OK)
        abort();
}

static void *cq_main(void *arg)
{
    fake_server *server = arg;

    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(server->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.tag == server) { /* the server has shut down */
            grpc_completion_queue_shutdown(server->cq);
            continue;
        }
        fake_call *call = event.tag;
        if (!event.success) {
            grpc_call_details_destroy(&call->details);
            grpc_metadata_array_destroy(&call->metadata);
            grpc_completion_queue_shutdown(call->cq);
            grpc_completion_queue_destroy(call->cq);
            free(call);
            continue;
        }
        request_call(server);
        pthread_mutex_lock(&server->lock);
        server->running++;
        pthread_mutex_unlock(&server->lock);
        pthread_t thread;
        if (pthread_create(&thread, NULL, call_main, call))
            abort();
        pthread_detach(thread);
    }
}

static void *accept_main(void *arg)
{
    fake_server *server = arg;
    grpc_server_credentials *creds = grpc_insecure_server_credentials_create();

    for (;;) {
        struct pollfd poller = {.fd = server->listener, .events = POLLIN};
        poll(&poller, 1, 20);
        pthread_mutex_lock(&server->lock);
        const int stopping = server->stopping;
        pthread_mutex_unlock(&server->lock);
        if (stopping)
            break;
        const int low = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (low < 0)
            continue;
        /* gRPC closes it where the thread sanitizer does not look: keep its number apart from those
         * that the tests use. */
        const int fd = fcntl(low, F_DUPFD_CLOEXEC, HIGH_FD);
        close(low);
        pthread_mutex_lock(&server->lock);
        if (server->nfds == MAX_CONNECTIONS)
            abort();
        server->fds[server->nfds++] = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
        pthread_mutex_unlock(&server->lock);
        grpc_server_add_channel_from_fd(server->server, fd, creds);
    }
    grpc_server_credentials_release(creds);
    return NULL;
}

fake_server *fake_server_start(const char *socket_path, fake_handler handler, void *arg)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    fake_server *server = calloc(1, sizeof *server);

    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", socket_path);
    snprintf(server->path, sizeof server->path, "%s", socket_path);
    server->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->listener < 0 || bind(server->listener, (struct sockaddr *)&addr, sizeof addr) ||
        listen(server->listener, 64)) {
        perror(socket_path);
        if (server->listener >= 0)
            close(server->listener);
        free(server);
        return NULL;
    }
    server->handler = handler;
    server->arg = arg;
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->idle, NULL);
    grpc_init();
    server->server = grpc_server_create(NULL, NULL);
    server->cq = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server->server, server->cq, NULL);
    grpc_server_start(server->server);
    request_call(server);
    if (pthread_create(&server->cq_thread, NULL, cq_main, server) ||
        pthread_create(&server->accept_thread, NULL, accept_main, server))
        abort();
    return server;
}

void fake_server_cut(fake_server *server)
{
    pthread_mutex_lock(&server->lock);
    for (int i = 0; i < server->nfds; i++) {
        shutdown(server->fds[i], SHUT_RDWR);
        close(server->fds[i]);
    }
    server->nfds = 0;
    pthread_mutex_unlock(&server->lock);
}

void fake_server_stop(fake_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->stopping = 1;
    pthread_mutex_unlock(&server->lock);
    pthread_join(server->accept_thread, NULL);
    close(server->listener);
    unlink(server->path);
    fake_server_cut(server);
    grpc_server_shutdown_and_notify(server->server, server->cq, server);
    grpc_server_cancel_all_calls(server->server);
    pthread_join(server->cq_thread, NULL);
    pthread_mutex_lock(&server->lock);
    while (server->running)
        pthread_cond_wait(&server->idle, &server->lock);
    pthread_mutex_unlock(&server->lock);
    grpc_server_destroy(server->server);
    grpc_completion_queue_destroy(server->cq);
    grpc_shutdown();
    pthread_mutex_destroy(&server->lock);
    pthread_cond_destroy(&server->idle);
    free(server);
}

int fake_send(fake_call *call, const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    const grpc_op ops[] = {
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = bytes},
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
    };

    grpc_slice_unref(slice);
    int rc = batch(call, ops, call->started ? 1 : 2);
    call->started = 1;
    grpc_byte_buffer_destroy(bytes);
    return rc;
}

void fake_finish(fake_call *call, int grpc_status, const char *message, int shd_errno)
{
    char number[16];
    snprintf(number, sizeof number, "%d", shd_errno);
    grpc_slice details = grpc_slice_from_copied_string(message);
    grpc_metadata trailer = {.key = grpc_slice_from_static_string("shd-errno"),
                             .value = grpc_slice_from_copied_string(number)};
    const grpc_op ops[] = {
        {.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
         .data.send_status_from_server = {.trailing_metadata_count = shd_errno ? 1 : 0,
                                          .trailing_metadata = &trailer,
                                          .status = (grpc_status_code)grpc_status,
                                          .status_details = &details}},
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
    };

    batch(call, ops, call->started ? 1 : 2);
    call->started = 1;
    grpc_slice_unref(details);
    grpc_slice_unref(trailer.value);
}

int fake_wait_gone(fake_call *call, int64_t ms)
{
    if (!call->gone) {
        grpc_event event = grpc_completion_queue_pluck(call->cq, &call->close_tag, in_ms(ms), NULL);
        call->gone = event.type == GRPC_OP_COMPLETE;
    }
    return call->gone;
}

int64_t fake_deadline_ms(const fake_call *call)
{
    const gpr_timespec deadline =
        gpr_convert_clock_type(call->details.deadline, GPR_CLOCK_MONOTONIC);

    if (!gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)))
        return INT64_MAX;
    return (int64_t)gpr_timespec_to_micros(gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC))) /
           1000;
}
