/* Questions about strings. Floor F0; pure. */
#ifndef SHD_DAEMON_BASE_TEXT_H
#define SHD_DAEMON_BASE_TEXT_H

#ifdef __cplusplus
extern "C" {
#endif

int shd_ends_with(const char *s, const char *end);

#ifdef __cplusplus
}
#endif
#endif
