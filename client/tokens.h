/* Text to token ids through the daemon, for the commands that need ids. Main thread. */
#ifndef SHD_CLIENT_TOKENS_H
#define SHD_CLIENT_TOKENS_H

#include "client/cmd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What came of one Tokenize call: everything that its messages carried. */
typedef struct shc_tokens {
    int32_t *ids;
    size_t n;
    shc_buf text;
    char *path, *digest; /* NULL: none */
    uint64_t count, documents;
    uint32_t vocab;
} shc_tokens;

/* Makes the call, shows its progress. 0, or the exit status after having complained. `out` is
 * empty then, else freed with shc_tokens_fini. The client must be connected. */
int shc_tokenize_all(shc_env *env, const Shard__V1__TokenizeRequest *request, shc_tokens *out);
void shc_tokens_fini(shc_tokens *tokens);

/* Whether the job's tokens are the bytes of its text. */
int shc_job_of_bytes(const Shard__V1__Job *job);
/* Whether the job has a tokenizer in the daemon. */
int shc_job_of_text(const Shard__V1__Job *job);

#ifdef __cplusplus
}
#endif
#endif
