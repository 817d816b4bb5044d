/* Members of a JSON object, one at a time; see json_walk.h. Floor F3; pure. */
#include "daemon/store/json_walk.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

#define MAX_KEY_BYTES 4096u

static void skip_blanks(shd_json_walk *walk)
{
    while (walk->at < walk->size && memchr(" \t\r\n", walk->text[walk->at], 4) != NULL) {
        walk->at++;
    }
}

/* The next character that is no blank; 0 at the end. */
static char peek(shd_json_walk *walk)
{
    skip_blanks(walk);
    return walk->at < walk->size ? walk->text[walk->at] : '\0';
}

static int expect(shd_json_walk *walk, char wanted, const char *before, shd_error *err)
{
    if (peek(walk) != wanted) {
        return shd_fail(err, SHD_EDATA, "JSON: '%c' must come %s at byte %zu", wanted, before,
                        walk->at);
    }
    walk->at++;
    return 0;
}

int shd_json_walk_enter(shd_json_walk *walk, shd_error *err)
{
    SHD_TRY(expect(walk, '{', "first of an object", err));
    walk->members = 0;
    return 0;
}

int shd_json_walk_value(shd_json_walk *walk, size_t limit, json_t **value, shd_error *err)
{
    skip_blanks(walk);
    const size_t left = walk->size - walk->at;
    json_error_t error;
    *value = json_loadb(walk->text + walk->at, left < limit ? left : limit,
                        JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
    if (*value == NULL) {
        if (left > limit && json_error_code(&error) == json_error_premature_end_of_input) {
            return shd_fail(err, SHD_EDATA, "JSON: the value at byte %zu has more than %zu bytes",
                            walk->at, limit);
        }
        return shd_fail(err, SHD_EDATA, "JSON: %s at byte %zu", error.text,
                        walk->at + (error.position > 0 ? (size_t)error.position : 0));
    }
    walk->at += (size_t)error.position;
    return 0;
}

int shd_json_walk_string(shd_json_walk *walk, size_t limit, char **string, shd_error *err)
{
    *string = NULL;
    if (peek(walk) != '"') {
        return shd_fail(err, SHD_EDATA, "JSON: a string must come at byte %zu", walk->at);
    }
    json_t *value;
    SHD_TRY(shd_json_walk_value(walk, limit, &value, err));
    *string = shd_strdup(json_string_value(value));
    json_decref(value);
    return 0;
}

int shd_json_walk_next(shd_json_walk *walk, char **key, shd_error *err)
{
    *key = NULL;
    if (peek(walk) == '}') {
        walk->at++;
        return 0;
    }
    if (walk->members > 0) {
        SHD_TRY(expect(walk, ',', "between members", err));
    }
    walk->members = 1;
    SHD_TRY(shd_json_walk_string(walk, MAX_KEY_BYTES, key, err));
    const int rc = expect(walk, ':', "after a name", err);
    if (rc < 0) {
        free(*key);
        *key = NULL;
    }
    return rc < 0 ? rc : 1;
}

int shd_json_walk_finish(shd_json_walk *walk, shd_error *err)
{
    skip_blanks(walk);
    if (walk->at < walk->size) {
        return shd_fail(err, SHD_EDATA, "JSON: something follows the end at byte %zu", walk->at);
    }
    return 0;
}
