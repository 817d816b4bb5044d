/* A token source: a file seen as a sequence of token ids. Text is bytes; .bin files are mapped to
 * ids by their format; text that a tokenizer reads, and JSONL, is tokenized into a token file
 * first (token_cache.h). Floor F3; after opening, read calls are safe from any thread. */
#ifndef SHD_DAEMON_DATA_SOURCE_H
#define SHD_DAEMON_DATA_SOURCE_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shd_data_format {
    SHD_DATA_AUTO = 0, /* llm.c when its magic is there, nanoGPT for other *.bin, JSONL for *.jsonl
                          and *.ndjson, else text */
    SHD_DATA_TEXT,     /* any file; one token per byte */
    SHD_DATA_NANOGPT,  /* uint16 little endian tokens, no header */
    SHD_DATA_LLMC,     /* llm.c: 256 int32 header (magic 20240520, version 1 = uint16 tokens;
                          magic 20240801, version 7 = uint32 tokens), then the tokens */
    SHD_DATA_JSONL,    /* a document a line, *.jsonl; no source by itself */
    SHD_DATA_TOKENS    /* a token file; never by AUTO or name */
} shd_data_format;

typedef struct shd_source shd_source;

/* "auto" | "text" | "nanogpt" | "llmc" | "jsonl" ("" is auto); SHD_EINVAL names the word and the
 * choices. */
int shd_data_format_parse(const char *word, shd_data_format *out, shd_error *err);
const char *shd_data_format_name(shd_data_format format);

/* What AUTO means for this file: its name decides, and its first bytes. SHD_EDATA: it is
 * compressed or a table; SHD_EINVAL: JSON of whichever kind; SHD_EIO. */
int shd_data_format_of(int fd, const char *path, shd_data_format *out, shd_error *err);

/* Opens the tokens in `fd` (a regular file; dup'ed, so the caller keeps its own). `path` is for
 * messages and for AUTO's look at the ending. SHD_EDATA: not a regular file, empty, odd length, bad
 * header, header that promises another number of tokens than the file holds. SHD_EIO: what the
 * system said. */
int shd_source_open(int fd, const char *path, shd_data_format format, shd_source **out,
                    shd_error *err);
void shd_source_free(shd_source *src); /* NULL is fine */

/* From here on the source is also bound to the file it was made of: it must not change either. */
int shd_source_bind(shd_source *src, int fd, const char *path, shd_error *err);

uint64_t shd_source_tokens(const shd_source *src);
/* Documents; 1 where the format knows none. */
uint64_t shd_source_documents(const shd_source *src);
/* SHD_DATA_TOKENS: the id of the file, 32 hexadecimal digits; else "". */
const char *shd_source_key(const shd_source *src);
shd_data_format shd_source_format(const shd_source *src);
const char *shd_source_path(const shd_source *src);

/* Reads tokens [offset, offset + n) into out[n]. SHD_EDATA when a token is >= vocab (names the
 * token, its position, the file), or when the file's size or modification time is no longer what
 * it was at opening. Reading past the end is SHD_EINVAL. After an error out[] is undefined. */
int shd_source_read(const shd_source *src, uint64_t offset, uint64_t n, uint32_t vocab,
                    int32_t *out, shd_error *err);

/* Sets ignored[i] to 1 where token offset + i is not to be predicted (a prompt, the first token of
 * a document), else to 0; n > 0, as for shd_source_read. */
int shd_source_read_mask(const shd_source *src, uint64_t offset, uint64_t n, unsigned char *ignored,
                         shd_error *err);

/* Where documents [first, first + n) begin, in tokens. SHD_EDATA when they are not in order. */
int shd_source_read_documents(const shd_source *src, uint64_t first, uint64_t n, uint64_t *begins,
                              shd_error *err);

/* Checks that the first SHD_SOURCE_CHECK_TOKENS tokens are < vocab, without reading where the
 * file's format has no others; what comes later is checked as it is read. So it takes a bounded
 * time: the file may be of any size. SHD_EDATA as above. */
#define SHD_SOURCE_CHECK_TOKENS (UINT64_C(32) << 20)
int shd_source_check(const shd_source *src, uint32_t vocab, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
