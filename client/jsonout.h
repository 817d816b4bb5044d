/* Writes JSON, one value after another, without a tree: a step of a million is a line of text.
 * Doubles come out as the shortest text that reads back equal; NaN and infinity, which JSON lacks,
 * as null; broken UTF-8 as U+FFFD. One thread. */
#ifndef SHD_CLIENT_JSONOUT_H
#define SHD_CLIENT_JSONOUT_H

#include <stdint.h>

#include "client/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shc_json {
    shc_buf text;
    int comma; /* the next value needs one before it */
} shc_json;

/* key: of a member, or NULL in an array and at the top. */
void shc_json_open(shc_json *json, const char *key, char bracket);
void shc_json_close(shc_json *json, char bracket);
void shc_json_str(shc_json *json, const char *key, const char *value);
void shc_json_strn(shc_json *json, const char *key, const char *value, size_t n);
void shc_json_u64(shc_json *json, const char *key, uint64_t value);
void shc_json_i64(shc_json *json, const char *key, int64_t value);
void shc_json_num(shc_json *json, const char *key, double value);
void shc_json_bool(shc_json *json, const char *key, int value);
void shc_json_null(shc_json *json, const char *key);
/* Ends the line and writes it to the file. */
void shc_json_line(shc_json *json, FILE *file);
void shc_json_fini(shc_json *json);

#ifdef __cplusplus
}
#endif
#endif
