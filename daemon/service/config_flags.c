#include <string.h>

#include "daemon/service/config_keys.h"

/* "--threads-per-rank" for "threads_per_rank". */
static void flag_of(char *out, size_t size, const shd_key *k)
{
    snprintf(out, size, "--%s", k->name);
    for (char *s = out; *s != '\0'; s++) {
        *s = *s == '_' ? '-' : *s;
    }
}

typedef struct flags {
    int argc, i;
    char *const *argv;
    char word[64];            /* the flag without "=value" */
    const char *inline_value; /* after "=", or NULL */
} flags;

/* 1: a flag; 0: no more; else an error. */
static int next_flag(flags *f, shd_error *err)
{
    if (++f->i >= f->argc) {
        return 0;
    }
    const char *arg = f->argv[f->i];
    const size_t n = strcspn(arg, "=");
    if (strncmp(arg, "--", 2) != 0 || arg[2] == '\0' || n >= sizeof(f->word)) {
        return shd_fail(err, SHD_EINVAL,
                        "unexpected argument '%.120s'; shardd --help lists the flags", arg);
    }
    memcpy(f->word, arg, n);
    f->word[n] = '\0';
    f->inline_value = arg[n] == '=' ? arg + n + 1 : NULL;
    return 1;
}

static int flag_value(flags *f, const char **value, shd_error *err)
{
    if (f->inline_value != NULL) {
        *value = f->inline_value;
    } else if (f->i + 1 < f->argc) {
        *value = f->argv[++f->i];
    } else {
        return shd_fail(err, SHD_EINVAL, "%s needs a value", f->word);
    }
    return SHD_OK;
}

static const shd_key *find_flag(const char *word, int *item)
{
    for (size_t i = 0; i < SHD_N_KEYS; i++) {
        char name[64];
        flag_of(name, sizeof(name), &shd_keys[i]);
        *item = shd_keys[i].item_flag != NULL && strcmp(word, shd_keys[i].item_flag) == 0;
        if (*item || strcmp(word, name) == 0) {
            return &shd_keys[i];
        }
    }
    return NULL;
}

/* One flag of the table. `touched`: lists that a flag has begun. */
static int apply_flag(flags *f, shd_config *config, int *touched, shd_error *err)
{
    int item;
    const char *value = NULL;
    const shd_key *k = find_flag(f->word, &item);
    if (k == NULL) {
        return shd_fail(err, SHD_EINVAL, "unknown flag %s; shardd --help lists the flags", f->word);
    }
    /* A switch may stand alone. */
    const char *next = f->i + 1 < f->argc ? f->argv[f->i + 1] : "--";
    if (k->type == SHD_KEY_YESNO && f->inline_value == NULL && strncmp(next, "--", 2) == 0) {
        value = "yes";
    } else {
        SHD_TRY(flag_value(f, &value, err));
    }
    const shd_place at = {NULL, 0, f->word};
    if (!item) {
        return shd_key_set(config, k, value, &at, err);
    }
    if (!touched[k - shd_keys]) { /* the flags replace what the file says */
        touched[k - shd_keys] = 1;
        shd_key_clear_list((shd_string_list *)(void *)((char *)config + k->offset));
    }
    return shd_key_add(config, k, value, &at, err);
}

int shd_config_flags(int argc, char *const *argv, shd_config *config, const char **file,
                     shd_config_action *action, shd_error *err)
{
    flags f = {.argc = argc, .argv = argv};
    int touched[SHD_N_KEYS] = {0};
    int rc;
    while ((rc = next_flag(&f, err)) > 0) {
        if (strcmp(f.word, "--help") == 0) {
            *action = SHD_CONFIG_HELP;
        } else if (strcmp(f.word, "--version") == 0) {
            *action = SHD_CONFIG_VERSION;
        } else if (strcmp(f.word, "--check-config") == 0) {
            *action = *action == SHD_CONFIG_RUN ? SHD_CONFIG_CHECK : *action;
        } else if (strcmp(f.word, "--config") == 0) {
            SHD_TRY(flag_value(&f, file, err));
        } else {
            SHD_TRY(apply_flag(&f, config, touched, err));
        }
    }
    return rc;
}
