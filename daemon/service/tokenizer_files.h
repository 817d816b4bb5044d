/* Tokenizers that callers name: "bytes", a file, or a directory with tokenizer.json or
 * tokenizer.model. Floor F5; any thread. */
#ifndef SHD_DAEMON_SERVICE_TOKENIZER_FILES_H
#define SHD_DAEMON_SERVICE_TOKENIZER_FILES_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/tokenizer.h"
#include "daemon/service/auth.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `name`: "bytes", or an absolute path: of a file that ends in .json or .model, else of a
 * directory, whose tokenizer.json is taken before its tokenizer.model, unless it is not supported
 * (Llama 2, Mistral). Files are opened by `opener`; a tokenizer_config.json beside them, and
 * the added_tokens.json of a tokenizer.model, are read too. SHD_ENOTFOUND when there is none;
 * SHD_EPERM, SHD_EDATA, SHD_EUNSUPPORTED as of opening and reading. */
int shd_tokenizer_open(const shd_opener *opener, const char *name, shd_tokenizer **out,
                       shd_error *err);

/* The same of a directory, whatever it is called. */
int shd_tokenizer_open_dir(const shd_opener *opener, const char *dir, shd_tokenizer **out,
                           shd_error *err);

/* Does `name` name a file, not a directory? */
int shd_tokenizer_is_file(const char *name);

#ifdef __cplusplus
}
#endif
#endif
