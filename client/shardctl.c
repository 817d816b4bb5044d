/* shardctl: finds the command in the table, reads its command line by its tables, runs it. */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cmd.h"
#include "client/mem.h"

const shc_command *const shc_commands[] = {
    &shc_cmd_submit, &shc_cmd_attach,   &shc_cmd_jobs,    &shc_cmd_status,   &shc_cmd_plan,
    &shc_cmd_pause,  &shc_cmd_resume,   &shc_cmd_cancel,  &shc_cmd_delete,   &shc_cmd_logs,
    &shc_cmd_trace,  &shc_cmd_generate, &shc_cmd_eval,    &shc_cmd_tokenize, &shc_cmd_checkpoint,
    &shc_cmd_export, &shc_cmd_reshard,  &shc_cmd_version, &shc_cmd_help,     NULL,
};

static const shc_option global_options[] = {
    {.name = "socket",
     .value = "PATH",
     .type = SHC_TEXT,
     .at = offsetof(shc_global_args, socket),
     .help = "of the daemon; default: $SHARDD_SOCKET, else " SHC_DEFAULT_SOCKET},
    {.name = "json",
     .type = SHC_BOOL,
     .at = offsetof(shc_global_args, json),
     .help = "one JSON object a line"},
};
enum { NGLOBAL = sizeof global_options / sizeof *global_options };

static volatile sig_atomic_t interrupted;

static void on_signal(int signum)
{
    (void)signum;
    interrupted = 1;
}

/* The first signal asks for an orderly end, the second one ends at once. */
static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_RESETHAND};

    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
}

const shc_command *shc_command_find(const char *name)
{
    for (const shc_command *const *c = shc_commands; *c; c++)
        if (!strcmp((*c)->syntax.name, name))
            return *c;
    return NULL;
}

void shc_commands_help(size_t width, shc_buf *out)
{
    const shc_option_table table = {global_options, NGLOBAL, 0};
    const shc_syntax syntax = {
        .name = "",
        .about = "Trains transformer models in a shardd daemon. Commands:",
        .tables = {&table},
        .operands = {{"COMMAND", 0, 1}},
    };
    shc_buf flags = {0};

    shc_options_help(&syntax, width, &flags);
    const char *end = strstr(shc_buf_str(&flags), "\n\n  --");
    const size_t head = (size_t)(end - shc_buf_str(&flags)) + 2;
    shc_buf_add(out, flags.data, head);
    for (const shc_command *const *c = shc_commands; *c; c++)
        shc_buf_printf(out, "  %-12s%s\n", (*c)->syntax.name, (*c)->summary);
    shc_buf_puts(out, "\nFlags of every command (shardctl COMMAND --help shows its own):\n");
    shc_buf_puts(out, flags.data + head);
    shc_buf_puts(out, "\nExit status: 0 done, 1 job failed, 2 usage, 3 cannot reach the daemon, "
                      "4 refused.\n");
    shc_buf_fini(&flags);
}

static int show_help(const shc_command *command, const shc_syntax *syntax, shc_env *env)
{
    const size_t width =
        env->term.width > 40 && env->term.width < 100 ? (size_t)env->term.width : 100;
    shc_buf out = {0};

    if (command)
        shc_options_help(syntax, width, &out);
    else
        shc_commands_help(width, &out);
    shc_buf_flush(&out, stdout);
    shc_buf_fini(&out);
    return SHC_EXIT_DONE;
}

/* The command's own tables and operands, with the global flags behind; both structs of arguments
 * stand in one block, the global ones at `global_base`. */
static int run_command(const shc_command *command, int argc, char **argv,
                       const shc_global_args *before, shc_env *env)
{
    const size_t align = sizeof(max_align_t);
    const size_t global_base = (command->args_size + align - 1) / align * align;
    const shc_option_table global_table = {global_options, NGLOBAL, global_base};
    shc_syntax syntax = command->syntax;
    shc_buf message = {0};
    size_t n = 0;
    int rc;

    while (syntax.tables[n])
        n++;
    syntax.tables[n] = &global_table;
    char *args = shc_calloc(1, global_base + sizeof(shc_global_args));
    shc_global_args *global = (shc_global_args *)(args + global_base);
    *global = *before;
    if (command->init)
        command->init(args);

    if (shc_options_parse(&syntax, argc, argv, args, &env->keep, &env->given, &message)) {
        rc = shc_usage("%s", shc_buf_str(&message));
    } else if (env->given.help) {
        rc = show_help(command, &syntax, env);
    } else {
        const char *from_env = getenv("SHARDD_SOCKET");
        env->json = global->json;
        env->socket = global->socket          ? global->socket
                      : from_env && *from_env ? from_env
                                              : SHC_DEFAULT_SOCKET;
        rc = command->run(env, args);
    }
    shc_close(env->client);
    shc_buf_fini(&message);
    shc_given_fini(&env->given);
    free(args);
    return rc;
}

int main(int argc, char **argv)
{
    const shc_option_table table = {global_options, NGLOBAL, 0};
    const shc_syntax syntax = {.name = "", .about = "", .tables = {&table}};
    shc_global_args global = {0};
    shc_given given = {0};
    shc_buf message = {0};
    int first = 1, rc;

    setlocale(LC_CTYPE, "");
    /* gRPC's own log lines say nothing to users; who wants them sets the variable. */
    setenv("GRPC_VERBOSITY", "NONE", 0);
    catch_signals();
    shc_env env = {.term = shc_term_of(stdout), .interrupt = &interrupted};

    /* Flags before the command, up to the first word that is none. */
    while (first < argc && argv[first][0] == '-') {
        const int takes_value = !strcmp(argv[first], "--socket") && first + 1 < argc;
        first += 1 + takes_value;
    }
    if (shc_options_parse(&syntax, first - 1, argv + 1, &global, &env.keep, &given, &message)) {
        rc = shc_usage("%s", shc_buf_str(&message));
    } else if (given.help) {
        rc = show_help(NULL, NULL, &env);
    } else if (first >= argc) {
        rc = shc_usage("the command is missing; see shardctl --help");
    } else {
        const shc_command *command = shc_command_find(argv[first]);
        if (command)
            rc = run_command(command, argc - first - 1, argv + first + 1, &global, &env);
        else
            rc = shc_usage("unknown command \"%s\"; see shardctl --help", argv[first]);
    }

    if ((fflush(stdout) || ferror(stdout)) && rc == SHC_EXIT_DONE) {
        fprintf(stderr, "shardctl: cannot write the output: %s; free space or write elsewhere\n",
                strerror(errno));
        rc = SHC_EXIT_JOB_FAILED;
    }
    shc_given_fini(&given);
    shc_keep_fini(&env.keep);
    shc_buf_fini(&message);
    return rc;
}
