/* What the operator decided: one table of keys feeds the INI file, the flags and the help.
 * Floor F5; loop thread (and main before the loop runs).
 *
 * Order: defaults, then the file, then the flags. Everything wrong is refused with its place
 * ("shardd.conf:12", "--ranks"), the value, and what would be accepted. */
#ifndef SHD_DAEMON_SERVICE_CONFIG_H
#define SHD_DAEMON_SERVICE_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/base/err.h"
#include "daemon/base/log.h"
#include "daemon/service/auth.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_CONFIG_DEFAULT_FILE "/etc/shardd/shardd.conf"

typedef struct shd_string_list {
    char **items; /* owned */
    uint32_t n;
} shd_string_list;

/* Strings are owned and never NULL. A key marked (reload) takes effect on SIGHUP, others need a
 * restart. */
typedef struct shd_config {
    char *socket;         /* path of the local socket */
    uint32_t socket_mode; /* permission bits of the socket file */
    char *socket_group;   /* group of the socket file; "": as created */
    char *state_dir;      /* directory that this daemon alone owns */
    char *device;         /* "cpu" */
    uint32_t ranks;       /* >= 1 after shd_config_load */
    uint32_t threads_per_rank;
    char *stream_threads;     /* "auto", "yes" or "no" */
    uint64_t memory_per_rank; /* bytes that jobs may plan on a rank; > 0 after shd_config_load */
    int memory_is_computed;   /* memory_per_rank follows the free memory, it was not set */
    uint32_t log_level;       /* shd_log_level; (reload) */

    shd_string_list admin_users;  /* (reload) */
    shd_string_list admin_groups; /* (reload) */
    shd_string_list allow_groups; /* (reload) */
    uint32_t share_with_group;    /* (reload) */
    shd_auth_rules rules;         /* the four above, names resolved; owned */

    shd_string_list data_roots; /* absolute directories; what clients name must lie beneath one;
                                   (reload) */

    uint32_t max_jobs;          /* jobs in the table, finished ones included */
    uint32_t max_jobs_per_user; /* of them, by one uid */
    uint64_t max_message;       /* bytes of one request */
    uint32_t max_connections;
    uint32_t max_calls;         /* calls in flight on one connection */
    uint32_t max_queue;         /* client calls that wait for one job's ranks */
    uint64_t max_stream_buffer; /* bytes that wait for a slow reader of a stream */
    uint32_t stop_grace_ms;     /* from SIGTERM to the end of what still runs */
    uint32_t watch_history;     /* step results kept per job */
    uint64_t token_cache;       /* bytes of the token cache; 0: no limit */
} shd_config;

typedef enum shd_config_action {
    SHD_CONFIG_RUN = 0,
    SHD_CONFIG_HELP,
    SHD_CONFIG_VERSION,
    SHD_CONFIG_CHECK /* everything was read and is valid; say so and stop */
} shd_config_action;

/* Defaults; computed ones (ranks, memory_per_rank) are 0 until shd_config_load. */
void shd_config_init(shd_config *config);
void shd_config_fini(shd_config *config);

/* Reads flags and the file they name (else SHD_CONFIG_DEFAULT_FILE where it exists) into an
 * initialised config, resolves names and computes defaults. HELP and VERSION read no file.
 * SHD_EINVAL for what the operator must correct, SHD_EIO for a file that cannot be read. */
int shd_config_load(int argc, char *const *argv, shd_config *config, shd_config_action *action,
                    shd_error *err);

/* Sets keys from the text of an INI file; `name` stands in messages. SHD_EINVAL, with the line. */
int shd_config_parse(shd_config *config, const char *name, const char *text, size_t size,
                     shd_error *err);

/* Takes over the keys marked (reload) from `fresh`, which keeps the old ones to be freed with it.
 * Writes the names of the other keys that differ, comma-separated, to `restart` (may end up ""). */
void shd_config_adopt(shd_config *live, shd_config *fresh, char *restart, size_t restart_size);

/* Usage and every key with its type, default and meaning. */
void shd_config_help(FILE *out);

#ifdef __cplusplus
}
#endif
#endif
