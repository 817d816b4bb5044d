/* Walks the members of a JSON object in a text, one at a time, so that a large text never becomes a
 * tree larger still: keys and values are parsed by jansson, each for itself and within a limit.
 * Floor F3; pure. */
#ifndef SHD_DAEMON_STORE_JSON_WALK_H
#define SHD_DAEMON_STORE_JSON_WALK_H

#include <jansson.h>
#include <stddef.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_json_walk {
    const char *text; /* borrowed */
    size_t size, at;
    int members; /* of the object at hand so far */
} shd_json_walk;

/* Enters the object that must come next. All errors are SHD_EDATA and name the byte. */
int shd_json_walk_enter(shd_json_walk *walk, shd_error *err);

/* 1: *key (freed by the caller) is the next member's, its value comes next. 0: the object ended. */
int shd_json_walk_next(shd_json_walk *walk, char **key, shd_error *err);

/* Parses the value that comes next, which may take at most `limit` bytes; *value is a new
 * reference. */
int shd_json_walk_value(shd_json_walk *walk, size_t limit, json_t **value, shd_error *err);

/* The string that comes next, likewise; freed by the caller. */
int shd_json_walk_string(shd_json_walk *walk, size_t limit, char **string, shd_error *err);

/* Nothing but blanks may follow. */
int shd_json_walk_finish(shd_json_walk *walk, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
