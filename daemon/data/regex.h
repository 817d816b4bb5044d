/* Patterns of tokenizer.json, written for Oniguruma's Ruby syntax, through PCRE2. What the two
 * read differently is rewritten, what has no counterpart is refused by name. Floor F3; a compiled
 * pattern is immutable, a matcher belongs to one thread. */
#ifndef SHD_DAEMON_DATA_REGEX_H
#define SHD_DAEMON_DATA_REGEX_H

#include <stddef.h>

#include "daemon/base/err.h"
#include "daemon/data/ends.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_regex shd_regex;

/* SHD_EUNSUPPORTED: a construct that is refused, or a pattern that matches nothing at all.
 * SHD_EDATA: not a pattern. */
int shd_regex_compile(const char *pattern, shd_regex **out, shd_error *err);
/* The very characters of text[n], n > 0. */
int shd_regex_literal(const char *text, size_t n, shd_regex **out, shd_error *err);
void shd_regex_free(shd_regex *regex); /* NULL is fine */

/* Does a match depend on nothing before its begin? */
int shd_regex_forgets(const shd_regex *regex);

/* The pattern as PCRE2 gets it; to be freed. For tests. */
int shd_regex_translate(const char *pattern, char **out, shd_error *err);

typedef struct shd_matcher shd_matcher;

/* `ends` (borrowed) is looked at during a match, at least once in what a pattern can do in about a
 * second on the slowest text. */
shd_matcher *shd_matcher_create(shd_ends *ends);
void shd_matcher_free(shd_matcher *matcher); /* NULL is fine */

/* The first match in text[n] (well-formed UTF-8) from `from` on: 1 and its begin and end; 0: none.
 * `open`: more text follows that is not there; SHD_REGEX_PARTIAL when it could change the answer,
 * for a match that begins at *begin or later. SHD_EDATA: took too many steps, always the same
 * number of them; or what `ends` says. */
#define SHD_REGEX_PARTIAL 2
int shd_matcher_find(shd_matcher *matcher, const shd_regex *regex, const char *text, size_t n,
                     size_t from, int open, size_t *begin, size_t *end, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
