/* The flags of a job's specification, for submit and plan, and the same from a JSON file. */
#ifndef SHD_CLIENT_SPEC_OPTIONS_H
#define SHD_CLIENT_SPEC_OPTIONS_H

#include "client/options.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Must be the first member of a command's arguments: the table has base 0. */
typedef struct shc_spec_args {
    Shard__V1__JobSpec spec;
    char *file; /* of --file */
} shc_spec_args;

extern const shc_option_table shc_spec_table;

void shc_spec_init(shc_spec_args *args);

/* Fills what --file, if given, says and no flag has said; `given` is what the parser noted for the
 * table. 0, or -1 with a message that names file, line where known, and key. */
int shc_spec_read_file(shc_spec_args *args, const unsigned char *given, shc_keep *keep,
                       shc_buf *message);

#ifdef __cplusplus
}
#endif
#endif
