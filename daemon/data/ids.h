/* Lists of token ids. Floor F3. */
#ifndef SHD_DAEMON_DATA_IDS_H
#define SHD_DAEMON_DATA_IDS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_ids {
    int32_t *items;
    size_t n, capacity;
} shd_ids;

#define SHD_IDS_INIT                                                                               \
    {                                                                                              \
        NULL, 0, 0                                                                                 \
    }
void shd_ids_push(shd_ids *ids, int32_t id);
void shd_ids_append(shd_ids *ids, const int32_t *items, size_t n);
void shd_ids_fini(shd_ids *ids);

#ifdef __cplusplus
}
#endif
#endif
