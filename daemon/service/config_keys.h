/* The table of configuration keys, and values from text. Floor F5; used by config*.c alone. */
#ifndef SHD_DAEMON_SERVICE_CONFIG_KEYS_H
#define SHD_DAEMON_SERVICE_CONFIG_KEYS_H

#include "daemon/service/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shd_key_type {
    SHD_KEY_TEXT,  /* char *, may be empty */
    SHD_KEY_WORD,  /* char *, not empty */
    SHD_KEY_COUNT, /* uint32_t */
    SHD_KEY_MODE,  /* uint32_t, octal */
    SHD_KEY_BYTES, /* uint64_t */
    SHD_KEY_LEVEL, /* uint32_t, shd_log_level */
    SHD_KEY_YESNO, /* uint32_t */
    SHD_KEY_NAMES, /* shd_string_list */
    SHD_KEY_PATHS  /* shd_string_list of absolute paths */
} shd_key_type;

typedef struct shd_key {
    const char *name;
    const char *item_flag; /* lists: the flag that adds one */
    shd_key_type type;
    size_t offset;
    uint64_t min, max;   /* COUNT, MODE, BYTES */
    const char *initial; /* NULL: computed at start */
    int reload;
    const char *help;
} shd_key;

#define SHD_N_KEYS 25
extern const shd_key shd_keys[SHD_N_KEYS];

/* Where a value stands, for messages: "shardd.conf:12: ranks" or "--ranks". */
typedef struct shd_place {
    const char *file; /* NULL: a flag */
    unsigned line;
    const char *word; /* the key or flag as written */
} shd_place;

/* Replaces the key's value. SHD_EINVAL says place, value and what is accepted. */
int shd_key_set(shd_config *config, const shd_key *key, const char *value, const shd_place *at,
                shd_error *err);
/* Lists: adds one item, taken as it is. */
int shd_key_add(shd_config *config, const shd_key *key, const char *item, const shd_place *at,
                shd_error *err);
void shd_key_clear_list(shd_string_list *list);

/* Digits in `base` at the start of `s`, no blank or sign; *end is what follows. -1 when there are
 * none or too many. */
int shd_key_parse_whole(const char *s, int base, uint64_t *out, const char **end);

/* Sets keys from a list of flags (argv[0] is skipped). `file`, `action`: what --config, --help ...
 * ask for, unchanged where they are not given. */
int shd_config_flags(int argc, char *const *argv, shd_config *config, const char **file,
                     shd_config_action *action, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif
