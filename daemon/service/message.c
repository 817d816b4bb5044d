#include "daemon/service/message.h"

#include <stdlib.h>

#include "daemon/base/mem.h"

ProtobufCMessage *shd_message_copy(const ProtobufCMessage *message)
{
    const size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = shd_malloc(size);
    protobuf_c_message_pack(message, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, size, bytes);
    free(bytes);
    return copy;
}
