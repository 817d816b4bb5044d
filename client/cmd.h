/* What every command of shardctl shares: the table they stand in, the surroundings they run in, and
 * the exit statuses. Main thread. */
#ifndef SHD_CLIENT_CMD_H
#define SHD_CLIENT_CMD_H

#include <signal.h>

#include "client/jsonout.h"
#include "client/options.h"
#include "client/shardclient.h"
#include "client/term.h"
#include "client/words.h"

#ifdef __cplusplus
extern "C" {
#endif

enum shc_exit {
    SHC_EXIT_DONE = 0,
    SHC_EXIT_JOB_FAILED = 1,
    SHC_EXIT_USAGE = 2,
    SHC_EXIT_UNREACHABLE = 3,
    SHC_EXIT_REFUSED = 4,
};

/* The flags that every command takes, before or after its name. */
typedef struct shc_global_args {
    char *socket;
    int json;
} shc_global_args;

typedef struct shc_env {
    const char *socket; /* in use */
    int json;
    shc_term term; /* of standard output */
    shc_client *client;
    shc_given given; /* flags of the command, by its tables */
    shc_keep keep;
    const volatile sig_atomic_t *interrupt; /* non-zero after Ctrl-C */
} shc_env;

typedef struct shc_command {
    shc_syntax syntax;
    const char *summary; /* half a line, for the list */
    size_t args_size;    /* of the struct that the tables fill */
    void (*init)(void *args);
    int (*run)(shc_env *env, void *args); /* gives the exit status */
} shc_command;

extern const shc_command shc_cmd_submit, shc_cmd_attach, shc_cmd_jobs, shc_cmd_status, shc_cmd_plan,
    shc_cmd_pause, shc_cmd_resume, shc_cmd_cancel, shc_cmd_delete, shc_cmd_checkpoint,
    shc_cmd_export, shc_cmd_eval, shc_cmd_generate, shc_cmd_tokenize, shc_cmd_reshard, shc_cmd_logs,
    shc_cmd_trace, shc_cmd_version, shc_cmd_help;

/* All commands in the order of the help; NULL ends. */
extern const shc_command *const shc_commands[];
const shc_command *shc_command_find(const char *name);
/* Appends the list of commands and common flags. */
void shc_commands_help(size_t width, shc_buf *out);

/* Makes env->client. 0, or the exit status after having complained. */
int shc_env_connect(shc_env *env);

/* Print "shardctl: ..." on standard error and give the exit status that belongs to it. */
int shc_complain(const shc_error *err);
int shc_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif
#endif
