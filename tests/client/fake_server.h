/* A gRPC server for tests of the client: it listens on a socket, gives each call to a handler on a
 * thread of its own, and can cut its connections as a dying daemon would. */
#ifndef SHD_TESTS_CLIENT_FAKE_SERVER_H
#define SHD_TESTS_CLIENT_FAKE_SERVER_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_server fake_server;
typedef struct fake_call fake_call;

/* Answers one call with fake_send and then once fake_finish; may block. `request` is the packed
 * message. */
typedef void (*fake_handler)(fake_call *call, const char *method, const uint8_t *request, size_t n,
                             void *arg);

/* NULL when the socket cannot be made. */
fake_server *fake_server_start(const char *socket_path, fake_handler handler, void *arg);
/* Cuts all connections, waits for the handlers, removes the socket. */
void fake_server_stop(fake_server *server);
/* Breaks every connection; new ones are accepted as before. */
void fake_server_cut(fake_server *server);

/* 0, or -1 when the client is gone. */
int fake_send(fake_call *call, const ProtobufCMessage *message);
/* Status by gRPC's number; shd_errno 0: without the trailer. */
void fake_finish(fake_call *call, int grpc_status, const char *message, int shd_errno);
/* Waits until the client cancelled or broke off, at most ms: 1 when it did. */
int fake_wait_gone(fake_call *call, int64_t ms);
/* Milliseconds that the client gave the call; INT64_MAX without deadline. */
int64_t fake_deadline_ms(const fake_call *call);

#ifdef __cplusplus
}
#endif
#endif
