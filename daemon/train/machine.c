/* Checking a machine; see machine.h. Floor F4; pure. */
#include "daemon/train/machine.h"

/* Above every machine there is, and far from what doubles cannot add. */
#define MOST_RATE 1e24
#define MOST_LATENCY 3600.0

static int rate(const char *flag, double value, double most, double *out, shd_error *err)
{
    *out = value;
    if (!(value >= 0 && value <= most)) {
        return shd_fail(err, SHD_EINVAL, "--%s %.9g: must be 0 to %.9g", flag, value, most);
    }
    return 0;
}

/* A rate that a time needs. */
static int needed(const char *flag, double value, const char *between, shd_error *err)
{
    return value > 0 ? 0
                     : shd_fail(err, SHD_EINVAL,
                                "--flops asks for a time, which depends on --%s: give the bytes "
                                "per second that a rank sends %s",
                                flag, between);
}

int shd_machine_resolve(const Shard__V1__Machine *in, uint32_t world, shd_machine *out,
                        shd_error *err)
{
    *out = (shd_machine){.ranks_per_node = in->ranks_per_node != 0 ? in->ranks_per_node : world,
                         .device_memory = in->device_memory};
    if (out->ranks_per_node > world) {
        return shd_fail(err, SHD_EINVAL,
                        "--ranks-per-node %u: there are only %u ranks; give at most that",
                        out->ranks_per_node, world);
    }
    if (world % out->ranks_per_node != 0) {
        return shd_fail(err, SHD_EINVAL,
                        "--ranks-per-node %u does not divide the %u ranks; all nodes are alike",
                        out->ranks_per_node, world);
    }
    SHD_TRY(rate("flops", in->flops, MOST_RATE, &out->flops, err));
    SHD_TRY(rate("memory-bandwidth", in->memory_bandwidth, MOST_RATE, &out->memory_bandwidth, err));
    SHD_TRY(rate("node-bandwidth", in->node_bandwidth, MOST_RATE, &out->node_bandwidth, err));
    SHD_TRY(rate("net-bandwidth", in->net_bandwidth, MOST_RATE, &out->net_bandwidth, err));
    SHD_TRY(rate("node-latency", in->node_latency, MOST_LATENCY, &out->node_latency, err));
    SHD_TRY(rate("net-latency", in->net_latency, MOST_LATENCY, &out->net_latency, err));
    if (out->flops == 0) {
        return 0;
    }
    if (out->ranks_per_node > 1) {
        SHD_TRY(needed("node-bandwidth", out->node_bandwidth, "to the others of its node", err));
    }
    return out->ranks_per_node < world
               ? needed("net-bandwidth", out->net_bandwidth, "to other nodes", err)
               : 0;
}
