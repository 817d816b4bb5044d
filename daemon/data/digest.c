/* Digests through OpenSSL's libcrypto; see digest.h. Floor F3. */
#include "daemon/data/digest.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

struct shd_digest {
    EVP_MAC_CTX *context;
    unsigned char key[SHD_DIGEST_KEY_BYTES];
    size_t n_key;
};

/* What fails here is memory, or a libcrypto without BLAKE2b, which no build of it lacks. */
static void must(int good)
{
    if (!good) {
        abort();
    }
}

static void begin(shd_digest *d)
{
    size_t size = SHD_DIGEST_BYTES;
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
                                 OSSL_PARAM_construct_end()};
    must(EVP_MAC_init(d->context, d->key, d->n_key, params));
}

shd_digest *shd_digest_create(const void *key, size_t n)
{
    must(n > 0 && n <= SHD_DIGEST_KEY_BYTES);
    shd_digest *d = shd_calloc(1, sizeof(*d));
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "BLAKE2BMAC", NULL);
    must(mac != NULL);
    d->context = EVP_MAC_CTX_new(mac);
    must(d->context != NULL);
    EVP_MAC_free(mac); /* the context holds it */
    memcpy(d->key, key, n);
    d->n_key = n;
    begin(d);
    return d;
}

void shd_digest_free(shd_digest *d)
{
    if (d != NULL) {
        EVP_MAC_CTX_free(d->context);
        explicit_bzero(d->key, sizeof(d->key));
        free(d);
    }
}

void shd_digest_add(shd_digest *d, const void *bytes, size_t n)
{
    if (n > 0) {
        must(EVP_MAC_update(d->context, bytes, n));
    }
}

void shd_digest_add_sized(shd_digest *d, const void *bytes, size_t n)
{
    const uint64_t size = n;
    shd_digest_add(d, &size, sizeof(size));
    shd_digest_add(d, bytes, n);
}

void shd_digest_take(shd_digest *d, unsigned char out[SHD_DIGEST_BYTES])
{
    size_t n = 0;
    must(EVP_MAC_final(d->context, out, &n, SHD_DIGEST_BYTES) && n == SHD_DIGEST_BYTES);
    begin(d);
}
