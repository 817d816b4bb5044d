#include "daemon/service/rpc_decode.h"

#include <stdlib.h>

typedef struct budget {
    size_t left; /* bytes; scratch that protobuf-c gives back is not added again */
    int exceeded;
} budget;

static void *budget_alloc(void *data, size_t size)
{
    budget *b = data;
    if (size > b->left) {
        b->exceeded = 1;
        return NULL;
    }
    b->left -= size;
    return malloc(size);
}

static void budget_free(void *data, void *ptr)
{
    (void)data;
    free(ptr);
}

/* Well-formed UTF-8: RFC 3629, no surrogates, nothing beyond U+10FFFF. */
static int is_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s != '\0') {
        unsigned follow, low = 0x80, high = 0xbf;
        if (*s < 0x80) {
            follow = 0;
        } else if (*s >= 0xc2 && *s <= 0xdf) {
            follow = 1;
        } else if (*s >= 0xe0 && *s <= 0xef) {
            follow = 2;
            low = *s == 0xe0 ? 0xa0 : 0x80;
            high = *s == 0xed ? 0x9f : 0xbf;
        } else if (*s >= 0xf0 && *s <= 0xf4) {
            follow = 3;
            low = *s == 0xf0 ? 0x90 : 0x80;
            high = *s == 0xf4 ? 0x8f : 0xbf;
        } else {
            return 0;
        }
        s++;
        for (; follow > 0; follow--, s++) {
            if (*s < low || *s > high) {
                return 0;
            }
            low = 0x80;
            high = 0xbf;
        }
    }
    return 1;
}

static int check_strings(const ProtobufCMessage *message, shd_error *err);

/* `member` holds one value of `field`: a char * or a ProtobufCMessage *. */
static int check_value(const ProtobufCFieldDescriptor *field, const void *member, shd_error *err)
{
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        const char *text = *(const char *const *)member;
        if (text != NULL && !is_utf8(text)) {
            return shd_fail(err, SHD_EINVAL, "field %s is not UTF-8 text", field->name);
        }
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        const ProtobufCMessage *child = *(const ProtobufCMessage *const *)member;
        if (child != NULL) {
            return check_strings(child, err);
        }
    }
    return SHD_OK;
}

static int check_strings(const ProtobufCMessage *message, shd_error *err)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    const char *base = (const char *)message;
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        if (field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_MESSAGE) {
            continue;
        }
        if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 &&
            *(const uint32_t *)(const void *)(base + field->quantifier_offset) != field->id) {
            continue; /* the union holds another member */
        }
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            const size_t n = *(const size_t *)(const void *)(base + field->quantifier_offset);
            const char *const *values =
                *(const char *const *const *)(const void *)(base + field->offset);
            for (size_t j = 0; j < n; j++) {
                SHD_TRY(check_value(field, &values[j], err));
            }
        } else {
            SHD_TRY(check_value(field, base + field->offset, err));
        }
    }
    return SHD_OK;
}

int shd_rpc_decode(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size,
                   ProtobufCMessage **out, shd_error *err)
{
    budget b = {.left = 16 * size + (1u << 20)};
    ProtobufCAllocator allocator = {
        .alloc = budget_alloc, .free = budget_free, .allocator_data = &b};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, size, bytes);
    if (message == NULL) {
        if (b.exceeded) {
            return shd_fail(err, SHD_EFULL,
                            "the request of %zu bytes unpacks to more than 16 times its size; send "
                            "fewer, longer sequences",
                            size);
        }
        return shd_fail(err, SHD_EINVAL, "the request of %zu bytes is not a valid %s", size,
                        type->name);
    }
    const int rc = check_strings(message, err);
    if (rc < 0) {
        shd_rpc_decode_free(message);
        return rc;
    }
    *out = message;
    return SHD_OK;
}

void shd_rpc_decode_free(ProtobufCMessage *message)
{
    if (message != NULL) {
        ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free};
        protobuf_c_message_free_unpacked(message, &allocator);
    }
}
