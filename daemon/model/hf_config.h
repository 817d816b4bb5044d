/* config.json of a Hugging Face checkpoint to a model's configuration and back. Floor F3; pure.
 *
 * A field that changes the numbers is honoured or refused by name with its value; one that does not
 * is in a table of harmless ones; any other is refused by name, so that nothing is ignored
 * silently. */
#ifndef SHD_DAEMON_MODEL_HF_CONFIG_H
#define SHD_DAEMON_MODEL_HF_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/model/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHD_HF_CONFIG_MAX_BYTES = 1 << 20, SHD_HF_MAX_EOS = 16 };

/* What the file says beside the numbers. */
typedef struct shd_hf_info {
    int32_t eos[SHD_HF_MAX_EOS]; /* tokens that end a text */
    uint32_t n_eos;
    int32_t bos;    /* -1: none */
    char dtype[16]; /* "float32", "bfloat16", "float16"; empty: it does not say */
} shd_hf_info;

/* Reads config.json, `size` bytes that need no terminator. *config is one that shd_model_check
 * accepts; *info may be NULL. SHD_EINVAL: not JSON, a wrong type, a nonsense value;
 * SHD_EUNSUPPORTED: an architecture, field or value that is not supported. Both name the key. */
int shd_hf_config_parse(const char *json, size_t size, shd_model_config *config, shd_hf_info *info,
                        shd_error *err);

/* Adds to info->eos the tokens that end a text by generation_config.json, which transformers reads
 * beside config.json; what else stands there is how others sample. SHD_EINVAL: not JSON, no token
 * below `vocab`; SHD_EUNSUPPORTED: more than SHD_HF_MAX_EOS in all. *info is then undefined. */
int shd_hf_generation_parse(const char *json, size_t size, int64_t vocab, shd_hf_info *info,
                            shd_error *err);

/* The config.json that shd_hf_config_parse and transformers read as `config`. `dtype` is that of
 * the tensors beside it: "float32", "bfloat16" or "float16". Freed by free(). */
char *shd_hf_config_write(const shd_model_config *config, const char *dtype);

/* The file again, everything in it kept, with `dtype` as the tensors' one. *out is freed by
 * free(). SHD_EINVAL: not a JSON object. */
int shd_hf_config_with_dtype(const char *json, size_t size, const char *dtype, char **out,
                             shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
