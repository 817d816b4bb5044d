/* The version of shardd, in one place for the daemon, the client library and shardctl. Floor F0. */
#ifndef SHD_PROTO_SHD_VERSION_H
#define SHD_PROTO_SHD_VERSION_H

#define SHD_VERSION "0.1.0"

#endif
