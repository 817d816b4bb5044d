/* Memory that this process can still take: what the system has left, and no more than its control
 * group and those above it leave (cgroups(7), version 2; what MemoryMax= of a unit and the limits
 * of containers set). Floor F0; any thread. */
#ifndef SHD_DAEMON_BASE_AVAILABLE_H
#define SHD_DAEMON_BASE_AVAILABLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes; UINT64_MAX when nothing tells. */
uint64_t shd_available_memory(void);

/* The same with other directories for /proc and /sys/fs/cgroup. */
uint64_t shd_available_memory_in(const char *proc, const char *cgroups);

#ifdef __cplusplus
}
#endif
#endif
