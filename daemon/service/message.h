/* Messages as values. Floor F5; pure. */
#ifndef SHD_DAEMON_SERVICE_MESSAGE_H
#define SHD_DAEMON_SERVICE_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A copy of the message and all it holds, of the same type; NULL when text in it is not UTF-8.
 * Freed with the type's free_unpacked function (NULL allocator). */
ProtobufCMessage *shd_message_copy(const ProtobufCMessage *message);

#ifdef __cplusplus
}
#endif
#endif
