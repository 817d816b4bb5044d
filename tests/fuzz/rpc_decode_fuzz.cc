// The bytes of a request: a message or a refusal; what decodes is UTF-8 and packs again.
#include "daemon/service/rpc_decode.h"

#include <cstdlib>
#include <vector>

#include "proto/shard.pb-c.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &shard__v1__create_job_request__descriptor,
        &shard__v1__train_step_request__descriptor,
        &shard__v1__generate_request__descriptor,
    };
    for (const ProtobufCMessageDescriptor *type : types) {
        ProtobufCMessage *message = nullptr;
        shd_error err;
        const int rc = shd_rpc_decode(type, data, size, &message, &err);
        if (rc == SHD_OK) {
            std::vector<uint8_t> again(protobuf_c_message_get_packed_size(message) + 1);
            if (protobuf_c_message_pack(message, again.data()) != again.size() - 1) {
                abort();
            }
        } else if (message != nullptr || (rc != SHD_EINVAL && rc != SHD_EFULL)) {
            abort();
        }
        shd_rpc_decode_free(message);
    }
    return 0;
}
