/* shardctl help: the list of commands, or one command's help. */
#include "client/cmd.h"

typedef struct help_args {
    char *command;
} help_args;

static int run(shc_env *env, void *arguments)
{
    const help_args *args = arguments;
    const size_t width =
        env->term.width > 40 && env->term.width < 100 ? (size_t)env->term.width : 100;
    shc_buf out = {0};

    if (!args->command) {
        shc_commands_help(width, &out);
    } else {
        const shc_command *command = shc_command_find(args->command);
        if (!command)
            return shc_usage("unknown command \"%s\"; see shardctl help", args->command);
        shc_options_help(&command->syntax, width, &out);
    }
    shc_buf_flush(&out, stdout);
    shc_buf_fini(&out);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_help = {
    .syntax =
        {
            .name = "help",
            .about = "Shows the commands, or the flags of one.",
            .operands = {{"COMMAND", offsetof(help_args, command), 0}},
        },
    .summary = "show this, or the flags of a command",
    .args_size = sizeof(help_args),
    .run = run,
};
