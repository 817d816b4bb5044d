/* The keys of config.json that there may be, and what they may hold. Floor F3; pure; private to
 * daemon/model. */
#ifndef SHD_DAEMON_MODEL_HF_KEYS_H
#define SHD_DAEMON_MODEL_HF_KEYS_H

#include "daemon/model/config.h"

typedef enum shd_hf_only {
    SHD_HF_UNKNOWN = 0, /* it could change the numbers: refused */
    SHD_HF_ANY,         /* read, or of no effect on the numbers */
    SHD_HF_FALSE,       /* only this value is supported */
    SHD_HF_TRUE,
    SHD_HF_ZERO,
    SHD_HF_ONE,
    SHD_HF_EMPTY /* list or object */
} shd_hf_only;

shd_hf_only shd_hf_key(const char *key, shd_arch arch);

#endif
