/* Text of a model on standard output: a terminal gets whole characters that cannot drive it, a pipe
 * or file exactly the bytes. Main thread. */
#ifndef SHD_CLIENT_TEXTOUT_H
#define SHD_CLIENT_TEXTOUT_H

#include "client/buf.h"
#include "client/term.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes what `held` begins with in whole characters and takes it out; at the `end`, everything. */
void shc_textout(shc_buf *held, const shc_term *term, int end);

#ifdef __cplusplus
}
#endif
#endif
