/* Added tokens: names that are looked for in the text before anything else, longest first from the
 * left, and become their token. Floor F3; immutable once filled, any thread. */
#ifndef SHD_DAEMON_DATA_ADDED_H
#define SHD_DAEMON_DATA_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/ends.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_added_token {
    int32_t id;
    int lstrip, rstrip; /* takes the white space before, behind it along */
    int single_word;    /* not where a word character is next to it */
} shd_added_token;

typedef struct shd_added shd_added;

shd_added *shd_added_create(void);
void shd_added_free(shd_added *added); /* NULL is fine */
/* name[n], n > 0, is copied. A name that is there already is replaced. */
void shd_added_put(shd_added *added, const char *name, size_t n, const shd_added_token *token);
int shd_added_empty(const shd_added *added);

/* Cuts text[n] (well-formed UTF-8) and calls fn for every part in order: id >= 0 for a token, or
 * id -1 and text that holds none. Stops when fn returns other than 0, and returns that. `ends` is
 * looked at between names; errors as there. */
typedef int (*shd_added_fn)(void *arg, int32_t id, const char *text, size_t n);
int shd_added_split(const shd_added *added, const char *text, size_t n, shd_ends *ends,
                    shd_added_fn fn, void *arg, shd_error *err);

/* Could a token reach over or touch text[at - 1, at]? Looks at text[n] around. */
int shd_added_near(const shd_added *added, const char *text, size_t n, size_t at);

#ifdef __cplusplus
}
#endif
#endif
