/* What backends of comm.h share: the table of functions, the handle, and the family, which is all
 * communicators that an abort reaches. Floor F2; private to daemon/comm. */
#ifndef SHD_DAEMON_COMM_COMM_IMPL_H
#define SHD_DAEMON_COMM_COMM_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/comm/comm.h"

typedef enum shd_comm_op {
    SHD_COMM_OP_ALL_GATHER = 0,
    SHD_COMM_OP_ALL_TO_ALL,
    SHD_COMM_OP_BROADCAST,
    SHD_COMM_OP_ALL_GATHER_HOST,
    SHD_COMM_OP_BARRIER,
    SHD_COMM_OP_SPLIT,
    SHD_COMM_OP_COUNT
} shd_comm_op;

/* One collective as one rank calls it. */
typedef struct shd_comm_call {
    shd_comm_op op;
    shd_comm_kind kind;
    const void *send;
    void *recv;
    size_t bytes;
    size_t stride; /* all_to_all */
    uint32_t root; /* broadcast */
} shd_comm_call;

typedef struct shd_comm_counter {
    _Atomic uint64_t bytes, calls;
} shd_comm_counter;

typedef struct shd_comm_vtable {
    /* Runs any op but SPLIT. `dev` is NULL where no device memory is touched. */
    int (*call)(shd_comm *comm, const shd_comm_call *call, shd_device *dev, shd_error *err);
    int (*split)(shd_comm *comm, const uint32_t *members, uint32_t n, shd_comm **out,
                 shd_error *err);
    void (*abort)(shd_comm *comm, int code, const char *message);
    void (*fini)(shd_comm *comm);
} shd_comm_vtable;

typedef struct shd_comm_family shd_comm_family;

/* Backends embed this first. */
struct shd_comm {
    const shd_comm_vtable *vtable;
    shd_comm_family *family; /* one reference */
    uint32_t rank, size;
    uint32_t timeout_ms;
    shd_comm_counter *counters; /* [SHD_COMM_KIND_COUNT]; borrowed from the parent by a child */
    int owns_counters;
};

struct shd_comm_family {
    _Atomic uint32_t refs;
    _Atomic int code; /* 0 until aborted; `message` does not change once it is set */
    char message[SHD_ERROR_MESSAGE_MAX];
    pthread_mutex_t mutex; /* guards the first abort and `groups` */
    void *groups;          /* the backend's: whom to wake */
};

/* CLOCK_MONOTONIC. */
uint64_t shd_comm_now_ns(void);

/* A family with one reference. */
shd_comm_family *shd_comm_family_create(void);
shd_comm_family *shd_comm_family_ref(shd_comm_family *family);
void shd_comm_family_unref(shd_comm_family *family);

/* Records the first abort; later ones change nothing. The mutex is held by the caller. */
void shd_comm_family_set(shd_comm_family *family, int code, const char *message);

/* 0, or fails with what the family was aborted with. */
int shd_comm_family_check(const shd_comm_family *family, shd_error *err);

/* Fills the common part. `parent` is NULL for a handle of its own counters. */
void shd_comm_init(shd_comm *comm, const shd_comm_vtable *vtable, shd_comm_family *family,
                   uint32_t rank, uint32_t size, const shd_comm *parent);

/* "all_gather of 100 bytes (reduce_scatter)", into buf. */
void shd_comm_call_describe(const shd_comm_call *call, char *buf, size_t len);

#endif
