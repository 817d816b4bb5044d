/* Documents of a text or JSONL file, tokenized into a token file. Floor F3; any thread. */
#ifndef SHD_DAEMON_DATA_DOCUMENTS_H
#define SHD_DAEMON_DATA_DOCUMENTS_H

#include "daemon/base/err.h"
#include "daemon/data/source.h"
#include "daemon/data/token_file.h"
#include "daemon/data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a line of JSONL, or of a text that cannot be cut. */
#define SHD_DOCUMENT_MAX (16u << 20)

/* Gives the next bytes of the file: at most n into buffer; *got is 0 at its end. */
typedef int (*shd_read_fn)(void *arg, char *buffer, size_t n, size_t *got, shd_error *err);

/* Reads everything and puts its documents. Format TEXT or JSONL as in token_cache.h. Errors of
 * JSONL begin with "line N: ". `cancel` as in shd_encoder_limit. */
int shd_documents_write(shd_read_fn read, void *arg, shd_data_format format, shd_tokenizer *tok,
                        const int *cancel, shd_token_writer *writer, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
