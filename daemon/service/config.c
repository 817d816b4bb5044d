#include "daemon/service/config.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/available.h"
#include "daemon/base/mem.h"
#include "daemon/service/config_keys.h"
#include "daemon/shard/strategy.h"

#define MAX_FILE (1u << 20)
#define KI UINT64_C(1024)

static int read_whole(int fd, char *text, size_t *size)
{
    for (;;) {
        const ssize_t n = read(fd, text + *size, MAX_FILE + 1 - *size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? -1 : 0;
        }
        *size += (size_t)n;
        if (*size > MAX_FILE) {
            return 0;
        }
    }
}

static int parse_file(shd_config *config, const char *path, shd_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        return shd_fail(err, SHD_EIO, "cannot read the configuration %s: %s", path,
                        strerror(errno));
    }
    char *text = shd_malloc(MAX_FILE + 1);
    size_t size = 0;
    int rc = read_whole(fd, text, &size);
    if (rc < 0) {
        rc = shd_fail(err, SHD_EIO, "cannot read the configuration %s: %s", path, strerror(errno));
    } else if (size > MAX_FILE) {
        rc = shd_fail(err, SHD_EINVAL, "the configuration %s has more than %u bytes", path,
                      MAX_FILE);
    } else {
        text[size] = '\0';
        rc = shd_config_parse(config, path, text, size, err);
    }
    free(text);
    close(fd);
    return rc;
}

/* ---- what names and defaults stand for ---- */

static int resolve_user(const char *name, uid_t *out)
{
    uint64_t number;
    const char *end;
    const struct passwd *entry = getpwnam(name);
    if (entry != NULL) {
        *out = entry->pw_uid;
        return 0;
    }
    *out = 0;
    if (shd_key_parse_whole(name, 10, &number, &end) < 0 || *end != '\0' || number >= UINT32_MAX) {
        return -1;
    }
    *out = (uid_t)number;
    return 0;
}

static int resolve_group(const char *name, gid_t *out)
{
    uint64_t number;
    const char *end;
    const struct group *entry = getgrnam(name);
    if (entry != NULL) {
        *out = entry->gr_gid;
        return 0;
    }
    *out = 0;
    if (shd_key_parse_whole(name, 10, &number, &end) < 0 || *end != '\0' || number >= UINT32_MAX) {
        return -1;
    }
    *out = (gid_t)number;
    return 0;
}

static int resolve_groups(const char *key_name, const shd_string_list *names, gid_t **gids,
                          uint32_t *n, shd_error *err)
{
    *gids = shd_calloc(names->n + 1, sizeof(gid_t));
    for (*n = 0; *n < names->n; (*n)++) {
        if (resolve_group(names->items[*n], &(*gids)[*n]) < 0) {
            return shd_fail(err, SHD_EINVAL,
                            "%s: there is no group '%.120s'; want a name or a number", key_name,
                            names->items[*n]);
        }
    }
    return SHD_OK;
}

static int resolve_rules(shd_config *config, shd_error *err)
{
    shd_auth_rules *rules = &config->rules;
    const shd_string_list *users = &config->admin_users;
    rules->admin_uids = shd_calloc(users->n + 1, sizeof(uid_t));
    for (uint32_t i = 0; i < users->n; i++) {
        if (resolve_user(users->items[i], &rules->admin_uids[i]) < 0) {
            return shd_fail(err, SHD_EINVAL,
                            "admin_users: there is no user '%.120s'; want a name or a number",
                            users->items[i]);
        }
    }
    rules->n_admin_uids = users->n;
    SHD_TRY(resolve_groups("admin_groups", &config->admin_groups, &rules->admin_gids,
                           &rules->n_admin_gids, err));
    SHD_TRY(resolve_groups("allow_groups", &config->allow_groups, &rules->allow_gids,
                           &rules->n_allow_gids, err));
    rules->share_with_group = (int)config->share_with_group;
    return SHD_OK;
}

static int check_device(const shd_config *config, shd_error *err)
{
    if (strcmp(config->device, "cpu") == 0) {
        return SHD_OK;
    }
    if (strcmp(config->device, "cuda") == 0) {
        return shd_fail(err, SHD_EUNSUPPORTED,
                        "device = cuda: this build of shardd has no CUDA backend; use cpu");
    }
    return shd_fail(err, SHD_EINVAL, "device = '%.60s': want cpu", config->device);
}

static int check_stream_threads(const shd_config *config, shd_error *err)
{
    const char *value = config->stream_threads;
    if (strcmp(value, "auto") == 0 || strcmp(value, "yes") == 0 || strcmp(value, "no") == 0) {
        return SHD_OK;
    }
    return shd_fail(err, SHD_EINVAL, "stream_threads = '%.60s': want auto, yes or no", value);
}

static int compute_defaults(shd_config *config, shd_error *err)
{
    if (config->ranks == 0) {
        cpu_set_t cpus;
        const int n = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
        const uint32_t ranks = (uint32_t)n / config->threads_per_rank;
        config->ranks = ranks == 0 ? 1 : ranks > SHD_MAX_RANKS ? SHD_MAX_RANKS : ranks;
    }
    if (config->memory_per_rank == 0) {
        const uint64_t known = shd_available_memory(), available = known != UINT64_MAX ? known : 0;
        config->memory_per_rank = available / 10 * 8 / config->ranks;
        config->memory_is_computed = 1;
        if (config->memory_per_rank < 1024 * KI) {
            return shd_fail(err, SHD_ENOMEM,
                            "%" PRIu64 " bytes of memory are free, too few for %u ranks; set "
                            "memory_per_rank or fewer ranks",
                            available, config->ranks);
        }
    }
    return SHD_OK;
}

/* ---- life ---- */

void shd_config_init(shd_config *config)
{
    *config = (shd_config){0};
    for (size_t i = 0; i < SHD_N_KEYS; i++) {
        const shd_place at = {NULL, 0, shd_keys[i].name};
        shd_error err;
        if (shd_keys[i].initial != NULL &&
            shd_key_set(config, &shd_keys[i], shd_keys[i].initial, &at, &err) < 0) {
            shd_log(SHD_LOG_ERROR, "the default of %s is refused: %s", shd_keys[i].name,
                    err.message);
            abort();
        }
    }
}

static void fini_rules(shd_auth_rules *rules)
{
    free(rules->admin_uids);
    free(rules->admin_gids);
    free(rules->allow_gids);
    *rules = (shd_auth_rules){0};
}

void shd_config_fini(shd_config *config)
{
    for (size_t i = 0; i < SHD_N_KEYS; i++) {
        void *field = (char *)config + shd_keys[i].offset;
        if (shd_keys[i].type == SHD_KEY_TEXT || shd_keys[i].type == SHD_KEY_WORD) {
            free(*(char **)field);
            *(char **)field = NULL;
        } else if (shd_keys[i].type == SHD_KEY_NAMES || shd_keys[i].type == SHD_KEY_PATHS) {
            shd_key_clear_list(field);
        }
    }
    fini_rules(&config->rules);
}

int shd_config_load(int argc, char *const *argv, shd_config *config, shd_config_action *action,
                    shd_error *err)
{
    const char *file = NULL;
    *action = SHD_CONFIG_RUN;
    /* A first round checks the flags and finds the file; a second one sets them over the file. */
    shd_config dry;
    shd_config_init(&dry);
    const int rc = shd_config_flags(argc, argv, &dry, &file, action, err);
    shd_config_fini(&dry);
    SHD_TRY(rc);
    if (*action == SHD_CONFIG_HELP || *action == SHD_CONFIG_VERSION) {
        return SHD_OK;
    }
    if (file != NULL || access(SHD_CONFIG_DEFAULT_FILE, F_OK) == 0) {
        SHD_TRY(parse_file(config, file != NULL ? file : SHD_CONFIG_DEFAULT_FILE, err));
    }
    SHD_TRY(shd_config_flags(argc, argv, config, &file, action, err));
    SHD_TRY(check_device(config, err));
    SHD_TRY(check_stream_threads(config, err));
    SHD_TRY(resolve_rules(config, err));
    return compute_defaults(config, err);
}

/* ---- reload ---- */

static size_t field_size(shd_key_type type)
{
    switch (type) {
    case SHD_KEY_TEXT:
    case SHD_KEY_WORD:
        return sizeof(char *);
    case SHD_KEY_BYTES:
        return sizeof(uint64_t);
    case SHD_KEY_NAMES:
    case SHD_KEY_PATHS:
        return sizeof(shd_string_list);
    case SHD_KEY_COUNT:
    case SHD_KEY_MODE:
    case SHD_KEY_LEVEL:
    case SHD_KEY_YESNO:
        break;
    }
    return sizeof(uint32_t);
}

static void swap_bytes(void *a, void *b, size_t size)
{
    unsigned char t[sizeof(shd_auth_rules)];
    memcpy(t, a, size);
    memcpy(a, b, size);
    memcpy(b, t, size);
}

void shd_config_adopt(shd_config *live, shd_config *fresh, char *restart, size_t restart_size)
{
    restart[0] = '\0';
    for (size_t i = 0; i < SHD_N_KEYS; i++) {
        const shd_key *k = &shd_keys[i];
        void *a = (char *)live + k->offset, *b = (char *)fresh + k->offset;
        if (k->reload) {
            swap_bytes(a, b, field_size(k->type));
            continue;
        }
        const int same = k->type == SHD_KEY_TEXT || k->type == SHD_KEY_WORD
                             ? strcmp(*(char **)a, *(char **)b) == 0
                             : memcmp(a, b, field_size(k->type)) == 0;
        /* A computed budget follows the free memory of the moment; that is no change. */
        const int drifts = a == (void *)&live->memory_per_rank && live->memory_is_computed &&
                           fresh->memory_is_computed;
        if (!same && !drifts) {
            const size_t used = strlen(restart);
            snprintf(restart + used, restart_size - used, "%s%s", used == 0 ? "" : ", ", k->name);
        }
    }
    swap_bytes(&live->rules, &fresh->rules, sizeof(live->rules));
}
