/* Digests that nobody can make meet: BLAKE2b (RFC 7693) with a key. With a key that is secret they
 * also tell nothing of what went in, nor can anyone foretell them. Floor F3; an object belongs to
 * one thread. */
#ifndef SHD_DAEMON_DATA_DIGEST_H
#define SHD_DAEMON_DATA_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_DIGEST_KEY_BYTES 64u /* at most */
#define SHD_DIGEST_BYTES 32u

typedef struct shd_digest shd_digest;

/* key[n], 0 < n <= SHD_DIGEST_KEY_BYTES: a secret, or a word that says what the digest is for. */
shd_digest *shd_digest_create(const void *key, size_t n);
void shd_digest_free(shd_digest *digest); /* NULL is fine */

void shd_digest_add(shd_digest *digest, const void *bytes, size_t n);
/* Adds the size before the bytes, so that what is added one after the other cannot be mixed up. */
void shd_digest_add_sized(shd_digest *digest, const void *bytes, size_t n);

/* Of everything that was added; then it begins anew. */
void shd_digest_take(shd_digest *digest, unsigned char out[SHD_DIGEST_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
