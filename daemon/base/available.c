#include "daemon/base/available.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

#define UNKNOWN UINT64_MAX

/* The number behind `key` in a file of lines "key number"; with an empty key, the file's only one.
 * UNKNOWN when it is not there, as where the kernel says "max". */
static uint64_t read_number(const char *dir, const char *name, const char *key)
{
    char *path = shd_asprintf("%s/%s", dir, name);
    FILE *file = fopen(path, "re");
    const size_t n = strlen(key);
    uint64_t value = UNKNOWN;
    char line[256];
    while (file != NULL && value == UNKNOWN && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, n) != 0 || sscanf(line + n, "%" SCNu64, &value) != 1) {
            value = UNKNOWN;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    free(path);
    return value;
}

/* What the group of this directory may still take. Cached files give way, as in what the system
 * says it has. */
static uint64_t left_in(const char *dir)
{
    static const char *const gives_way[] = {"inactive_file ", "active_file ", "slab_reclaimable "};
    const uint64_t most = read_number(dir, "memory.max", "");
    uint64_t held = read_number(dir, "memory.current", "");
    if (most == UNKNOWN || held == UNKNOWN) {
        return UNKNOWN;
    }
    for (int i = 0; i < 3; i++) {
        const uint64_t bytes = read_number(dir, "memory.stat", gives_way[i]);
        held -= bytes == UNKNOWN ? 0 : bytes < held ? bytes : held;
    }
    return held < most ? most - held : 0;
}

/* The process's own group: the path behind "0::", or "" for the topmost. Owned by the caller. */
static char *own_group(const char *proc)
{
    char *path = shd_asprintf("%s/self/cgroup", proc), *group = NULL, *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "re");
    while (file != NULL && group == NULL && getline(&line, &room, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) == 0 && strstr(line, "/..") == NULL) {
            group = shd_strdup(line + 3);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    free(line);
    free(path);
    return group != NULL ? group : shd_strdup("");
}

uint64_t shd_available_memory_in(const char *proc, const char *cgroups)
{
    const uint64_t kib = read_number(proc, "meminfo", "MemAvailable:");
    uint64_t least = kib == UNKNOWN ? UNKNOWN : kib * 1024;
    char *group = own_group(proc);
    for (char *slash = group; slash != NULL;) {
        char *dir = shd_asprintf("%s%s", cgroups, group);
        const uint64_t left = left_in(dir);
        least = left < least ? left : least;
        free(dir);
        slash = strrchr(group, '/'); /* up to the next one */
        if (slash != NULL) {
            *slash = '\0';
        }
    }
    free(group);
    return least;
}

uint64_t shd_available_memory(void)
{
    return shd_available_memory_in("/proc", "/sys/fs/cgroup");
}
