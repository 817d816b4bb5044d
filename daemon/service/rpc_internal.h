/* What rpc.c (connections, completion queue) and rpc_call.c (calls) share. Floor F5; loop thread.
 */
#ifndef SHD_DAEMON_SERVICE_RPC_INTERNAL_H
#define SHD_DAEMON_SERVICE_RPC_INTERNAL_H

#include <grpc/grpc.h>
#include <uv.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The tag of everything that is posted to the completion queue. Only the loop looks inside. */
typedef enum shd_op_kind {
    SHD_OP_NEW_CALL, /* owner: connection */
    SHD_OP_DOWN,     /* owner: connection */
    SHD_OP_REQUEST,  /* owner: call, as all below */
    SHD_OP_CLOSE,
    SHD_OP_SEND,
    SHD_OP_STATUS
} shd_op_kind;

typedef struct shd_op {
    shd_op_kind kind;
    void *owner;
} shd_op;

typedef struct shd_conn shd_conn;

/* A message that waits on a stream. */
typedef struct shd_outgoing {
    struct shd_outgoing *next;
    grpc_byte_buffer *buffer;
    size_t size;
} shd_outgoing;

struct shd_call {
    shd_rpc *rpc;
    shd_conn *conn;        /* NULL once released */
    shd_call *prev, *next; /* in the connection's list, or in rpc's list of orphans */
    shd_identity who;

    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *request;
    int cancelled; /* written by gRPC until the CLOSE event */
    shd_op request_op, close_op, send_op, status_op;

    const shd_rpc_method *method;
    void *service;
    void (*on_gone)(void *arg);
    void (*on_writable)(void *arg);
    void *callback_arg;

    shd_outgoing *out_head, *out_tail; /* the head is the one in flight when `sending` */
    size_t out_bytes;
    grpc_byte_buffer *response;
    size_t response_bytes; /* as counted in the connection's held_bytes */
    grpc_status_code status;
    grpc_slice status_text;
    grpc_metadata trailer;

    unsigned pending;          /* batches that have not come back */
    unsigned handler_owns : 1; /* a handler has it and has neither answered nor been told "gone" */
    unsigned answered : 1;     /* the final status is decided */
    unsigned lost : 1;         /* cancelled or broken: nothing more is sent */
    unsigned closed : 1;       /* CLOSE has come */
    unsigned finishing : 1;    /* STATUS has been posted */
    unsigned initial_sent : 1;
    unsigned sending : 1;
    unsigned full : 1;     /* out_bytes reached the limit; on_writable is owed */
    unsigned released : 1; /* gRPC's part is gone; only the handler's handle is left */
};

struct shd_conn {
    shd_rpc *rpc;
    shd_conn *prev, *next;
    shd_identity who;
    grpc_server *server;
    shd_op new_call_op, down_op;
    shd_call *incoming; /* posted to gRPC for the next call; NULL when none is */
    shd_call *calls;
    uint32_t n_calls;
    size_t held_bytes;   /* large unary answers that the client has not read */
    size_t stream_bytes; /* messages of streams that it has not read */
    uv_poll_t poll;
    int poll_fd; /* duplicate of the connection's fd */
    unsigned poll_open : 1;
    unsigned ending : 1;    /* the server was told to shut down */
    unsigned cancelled : 1; /* and its calls were cancelled */
    unsigned down : 1;      /* the server is down */
};

typedef struct shd_method_table {
    const shd_rpc_method *methods;
    size_t n;
    void *service;
} shd_method_table;

typedef struct shd_cq_event {
    shd_op *op;
    int success;
} shd_cq_event;

typedef struct shd_event_list {
    shd_cq_event *items;
    size_t n, capacity;
} shd_event_list;

struct shd_rpc {
    uv_loop_t *loop;
    shd_rpc_limits limits;
    shd_method_table *tables;
    size_t n_tables;
    shd_rpc_gate gate;
    void *gate_arg;

    grpc_completion_queue *cq;
    grpc_resource_quota *quota; /* shared by all connections */
    uv_thread_t thread;
    uv_mutex_t mutex;
    shd_event_list queue; /* under mutex */
    int cq_ended;         /* under mutex */
    _Atomic uint64_t beat_ns;
    uv_async_t async;
    shd_event_list spare;

    shd_conn *conns;
    uint32_t n_conns;
    uint32_t n_open; /* calls whose final status is not decided yet */
    shd_call *orphans;
    uint64_t refused, refused_logged_ns;

    enum { SHD_RPC_SERVING, SHD_RPC_DRAINING, SHD_RPC_CLOSING, SHD_RPC_ENDED } state;
    uv_timer_t timer;
    int handles; /* of rpc's own uv handles, those not closed yet */
    void (*done)(void *arg);
    void *done_arg;
};

/* ---- rpc_call.c ---- */

/* A call that gRPC has not filled yet. */
shd_call *shd_call_create(shd_conn *conn);
/* Frees a call that gRPC will not fill. */
void shd_call_discard(shd_call *call);
/* gRPC has filled it: finds the method, refuses or asks for the request message. */
void shd_call_start(shd_call *call);
void shd_call_event(shd_call *call, shd_op_kind kind, int success);
/* Takes the call from its handler (on_gone) and fails it. */
void shd_call_evict(shd_call *call, int code, const char *message);

/* ---- rpc.c ---- */

/* A call has left its connection, or has been decided. */
void shd_rpc_check(shd_rpc *rpc, shd_conn *conn);

/* Do so many messages wait on all streams of the connection's user that each of them must do with
 * little? */
int shd_rpc_streams_crowded(const shd_rpc *rpc, const shd_conn *conn);

/* May an answer of `size` bytes wait for the client of the connection to read it? SHD_EFULL when
 * its user has too much waiting already. */
int shd_rpc_check_held(const shd_rpc *rpc, const shd_conn *conn, size_t size, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
