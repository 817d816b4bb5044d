/* From the bytes of a request to its message, with bounds on what a hostile one can cost.
 * Floor F5; any thread; pure. */
#ifndef SHD_DAEMON_SERVICE_RPC_DECODE_H
#define SHD_DAEMON_SERVICE_RPC_DECODE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Unpacks `size` bytes as a message of type `type`; freed with shd_rpc_decode_free. SHD_EINVAL when
 * they are not such a message or hold a string that is not UTF-8; SHD_EFULL when they would unpack
 * to more than 16 times their size plus 1 MiB (two bytes on the wire can stand for an object of
 * 100). */
int shd_rpc_decode(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size,
                   ProtobufCMessage **out, shd_error *err);

void shd_rpc_decode_free(ProtobufCMessage *message); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
