// The INI file of the daemon: whatever its bytes, it is taken or refused with its line, and every
// value that was taken lies within its bounds.
#include "daemon/service/config.h"

#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    shd_config config;
    shd_error err;
    shd_config_init(&config);
    const int rc =
        shd_config_parse(&config, "fuzz.conf", reinterpret_cast<const char *>(data), size, &err);
    if (rc != SHD_OK && (rc != SHD_EINVAL || strncmp(err.message, "fuzz.conf:", 10) != 0)) {
        abort();
    }
    if (config.ranks > 1024 || config.threads_per_rank < 1 || config.socket_mode > 0777 ||
        config.max_message < 4096 || config.max_message > 1u << 30 || config.socket[0] == '\0' ||
        config.share_with_group > 1) {
        abort();
    }
    for (uint32_t i = 0; i < config.data_roots.n; i++) {
        if (config.data_roots.items[i][0] != '/') {
            abort();
        }
    }
    shd_config_fini(&config);
    return 0;
}
