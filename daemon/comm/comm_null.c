/* A communicator without others: waits for nobody and moves nothing, for planning. Floor F2. */
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/comm/comm.h"
#include "daemon/comm/comm_impl.h"

static const shd_comm_vtable null_vtable;

static shd_comm *create(shd_comm_family *family, uint32_t rank, uint32_t size,
                        const shd_comm *parent)
{
    shd_comm *comm = shd_calloc(1, sizeof(*comm));
    shd_comm_init(comm, &null_vtable, family, rank, size, parent);
    return comm;
}

shd_comm *shd_comm_null_create(uint32_t rank, uint32_t size)
{
    shd_comm_family *family = shd_comm_family_create();
    shd_comm *comm = create(family, rank, size, NULL);
    shd_comm_family_unref(family);
    return comm;
}

static int null_call(shd_comm *comm, const shd_comm_call *call, shd_device *dev, shd_error *err)
{
    (void)dev;
    SHD_TRY(shd_comm_family_check(comm->family, err));
    if (call->op == SHD_COMM_OP_ALL_GATHER_HOST && call->bytes > 0) {
        for (uint32_t i = 0; i < comm->size; i++) {
            memmove((char *)call->recv + i * call->bytes, call->send, call->bytes);
        }
    }
    return 0;
}

static int null_split(shd_comm *comm, const uint32_t *members, uint32_t n, shd_comm **out,
                      shd_error *err)
{
    SHD_TRY(shd_comm_family_check(comm->family, err));
    for (uint32_t i = 0; i < n; i++) {
        if (members[i] == comm->rank) {
            *out = create(comm->family, i, n, comm);
            return 0;
        }
    }
    return shd_fail(err, SHD_ECOMM, "split: rank %u is not in its own group", comm->rank);
}

static void null_abort(shd_comm *comm, int code, const char *message)
{
    pthread_mutex_lock(&comm->family->mutex);
    shd_comm_family_set(comm->family, code, message);
    pthread_mutex_unlock(&comm->family->mutex);
}

static void null_fini(shd_comm *comm)
{
    (void)comm;
}

static const shd_comm_vtable null_vtable = {
    .call = null_call,
    .split = null_split,
    .abort = null_abort,
    .fini = null_fini,
};
