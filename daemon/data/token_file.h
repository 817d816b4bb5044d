/* A file of token ids with their documents and masked targets: what a text becomes, once. Little
 * endian: a header of 128 bytes, the tokens (uint16 or uint32), one bit per token that is set where
 * the token is not to be predicted (8-byte aligned, lowest bit first), and the offset of the first
 * token of each document (uint64). Floor F3. */
#ifndef SHD_DAEMON_DATA_TOKEN_FILE_H
#define SHD_DAEMON_DATA_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_TOKEN_HEADER_BYTES 128u
#define SHD_TOKEN_FILE_VERSION 1u

typedef struct shd_token_header {
    uint32_t width;      /* bytes per token: 2 or 4 */
    uint32_t vocab;      /* of the tokenizer; ids are below */
    uint32_t max_id;     /* the largest id that is there */
    uint64_t tokens;     /* > 0 */
    uint64_t documents;  /* 1..tokens */
    uint64_t key[2];     /* of source, tokenizer and format: the file's name */
    uint64_t content[2]; /* XXH3 of what follows the header */
} shd_token_header;

/* Byte offsets of the parts. */
uint64_t shd_token_file_mask_at(const shd_token_header *header);
uint64_t shd_token_file_documents_at(const shd_token_header *header);
uint64_t shd_token_file_size(const shd_token_header *header);

/* Reads the header of a file of `size` bytes and checks it against that. SHD_EDATA. */
int shd_token_header_parse(const unsigned char bytes[SHD_TOKEN_HEADER_BYTES], uint64_t size,
                           shd_token_header *out, shd_error *err);
void shd_token_header_write(const shd_token_header *header,
                            unsigned char bytes[SHD_TOKEN_HEADER_BYTES]);

/* ---- writing ---- */

typedef struct shd_token_writer shd_token_writer;

/* Writes to `fd`, an empty file that the caller keeps; what comes last in the file waits in
 * unnamed files of `dir`. Memory is bounded. SHD_EIO. */
int shd_token_writer_create(int fd, int dir, uint32_t vocab, const uint64_t key[2],
                            shd_token_writer **out, shd_error *err);
void shd_token_writer_free(shd_token_writer *writer); /* NULL is fine */

/* A document begins with the next token; its first token is never predicted. */
int shd_token_writer_document(shd_token_writer *writer, shd_error *err);
/* ids[n] < vocab; `masked`: they are not to be predicted. */
int shd_token_writer_put(shd_token_writer *writer, const int32_t *ids, size_t n, int masked,
                         shd_error *err);
/* Completes the file and flushes it to the disk. SHD_EDATA when there is no token. */
int shd_token_writer_finish(shd_token_writer *writer, shd_token_header *out, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
