// What a rank holds and sends, in closed form: written down from the papers and from the definition
// of the parts (daemon/shard/strategy.h), without the code that it is compared with.
//
// Of a unit of n elements (padding included; sizes in bytes: c of the compute dtype, r of sums of
// gradients, w of gradients as they travel, which is c when sums are fp32 and r otherwise) a rank
// holds
//   parameters  c n/p, all of c n when they persist        ZeRO: 2Ψ, stage 3 2Ψ/N at c = 2
//   gradients   r n/g                                                2Ψ, from stage 2 2Ψ/N
//   optimizer   4 s n/o, and 4 n/o of masters when c < 4             12Ψ, from stage 1 12Ψ/N at s =
//   2
// (Rajbhandari et al. 2020, figure 1 and section 3.1), and a frozen one its parameters alone. Under
// the level `world` come log2(V/W) partial sums of one atom, r n/W.
//
// A collective of m ranks in which each ends up with m pieces of b bytes is counted by what a rank
// sends: (m-1) b, which is what a ring takes and is optimal (Thakur, Rabenseifner & Gropp 2005,
// section 4.1). In a step of A accumulation rounds a rank sends for a unit
//   all_gather      in each round c n (p-1)/p for the first copy of its parameters, and for every
//                   further one c n (k-1)/k, where k is what stays (regather): p for "yes", k for
//                   FSDP2's reshard_after_forward = k; none with "no" (SHARD_GRAD_OP). And once
//                   c n/p (o/p-1)/(o/p): parameters that another rank of the optimizer's group has
//                   updated. ZeRO: Ψ forward and Ψ backward in stage 3, Ψ in stages 1 and 2
//                   (section 7); FSDP the same (Zhao et al. 2023, section 3.2); ZeRO++ hpZ: both
//                   within a node, and one gather between nodes (Wang et al. 2023, section 3.2);
//                   MiCS and hybrid sharding: within the group alone (Zhang et al. 2022, section
//                   3.2); Megatron's distributed optimizer: the same two over o/p.
//   reduce_scatter  in each round w n (W-1)/W: every gradient goes to all of the ranks that add it,
//                   a tree over leaves in their order, so that all strategies give the same bits.
//                   (MiCS's second hop is left out: it would add in another order.) Under the level
//                   `run` with g = 1 once a step instead: r n (W-1)/W.
//   all_reduce      once r n/o (m-1)/m over the m = W/o ranks that hold the same optimizer part:
//                   the gathering half of ddp's all-reduce, m = W; ZeRO: 2Ψ in all.
//   norm            once 8 bytes for every SHD_BLOCK elements, n/o (o-1) of them.
// Parameters that persist lie in one unit, are gathered by nobody, and their update goes to all:
// p = 1 for them. (Where p is 1 anyway they stay in the units of the model.)
//
// How many copies a round needs is the model's chain: embedding, L blocks, head, and back. A block
// is gathered for forward and for backward; not again when it is still there, because at most
// `prefetch` other units come in between: the last min(L, prefetch) blocks. The embedding is
// gathered once, its backward reads no parameter; twice when the head is tied to it and more than
// prefetch units lie between. A head of its own is gathered once: its backward follows at once.
#ifndef TESTS_TRAIN_CLOSED_FORMS_H
#define TESTS_TRAIN_CLOSED_FORMS_H

#include <algorithm>
#include <cstdint>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/shard/layout.h"
#include "daemon/train/spec.h"

namespace shd
{

struct FormUnit {
    uint64_t parameters, n;
    uint32_t copies; // a round
    bool persists;
};

inline uint64_t RoundUp(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

// Nothing is frozen.
inline std::vector<FormUnit> FormUnits(const shd_spec &spec)
{
    shd_model *model = nullptr;
    if (shd_model_create(&spec.model, &model, nullptr) != 0) {
        return {};
    }
    const uint32_t n_units = shd_model_n_units(model);
    std::vector<FormUnit> units(n_units, FormUnit{});
    FormUnit small = {0, 0, 0, true};
    for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
        const uint64_t numel = static_cast<uint64_t>(shd_param_numel(shd_model_param(model, i)));
        const bool persists = spec.strategy.p > 1 && numel < spec.pipeline.persist_below;
        FormUnit &unit = persists ? small : units[shd_model_param(model, i)->unit];
        unit.parameters += numel;
        unit.n += RoundUp(numel, SHD_PARAM_ALIGN);
    }
    shd_model_free(model);
    const uint32_t L = static_cast<uint32_t>(spec.model.n_layer), d = spec.pipeline.prefetch;
    const uint32_t limit = spec.pipeline.max_gathered;
    // Others between, of which the one that comes next is there anyway, and all up to it.
    const auto stays = [&](uint32_t between) {
        return between <= d && (limit == 0 || between + 1 <= limit);
    };
    for (uint32_t u = 0; u < n_units; u++) {
        const bool block = u >= 1 && u <= L;
        units[u].copies = block                            ? (stays(L - u + 1) ? 1 : 2)
                          : u == 0 && spec.model.tied != 0 ? (stays(L) ? 1 : 2)
                                                           : 1;
    }
    units.push_back(small);
    for (FormUnit &unit : units) {
        unit.n = RoundUp(unit.n, uint64_t{SHD_BLOCK} * spec.strategy.world);
    }
    units.erase(std::remove_if(units.begin(), units.end(),
                               [](const FormUnit &unit) { return unit.parameters == 0; }),
                units.end());
    return units;
}

inline uint64_t FormPadding(const shd_spec &spec)
{
    uint64_t padding = 0;
    for (const FormUnit &unit : FormUnits(spec)) {
        padding += unit.n - unit.parameters;
    }
    return padding;
}

struct FormStates {
    uint64_t params, grads, optimizer;
};

inline FormStates StatesOf(const shd_spec &spec)
{
    const shd_strategy &s = spec.strategy;
    const uint64_t c = shd_dtype_size(spec.dtype), r = shd_dtype_size(spec.reduce_dtype);
    const uint64_t states = shd_optim_states(&spec.optim) + (c < 4 ? 1 : 0);
    uint64_t partials = 0; // log2(V/W)
    if (spec.determinism == SHD_DETERMINISM_WORLD) {
        for (uint32_t v = s.world; v < spec.reduction_width; v *= 2) {
            partials++;
        }
    }
    FormStates sum = {};
    for (const FormUnit &unit : FormUnits(spec)) {
        sum.params += c * unit.n / (unit.persists ? 1 : s.p);
        sum.grads += r * (unit.n / s.g + partials * unit.n / s.world);
        sum.optimizer += 4 * states * unit.n / s.o;
    }
    return sum;
}

struct FormComm {
    uint64_t all_gather, reduce_scatter, all_reduce, norm; // bytes sent by a rank in a step
};

inline FormComm CommOf(const shd_spec &spec)
{
    const shd_strategy &s = spec.strategy;
    const uint64_t c = shd_dtype_size(spec.dtype), r = shd_dtype_size(spec.reduce_dtype);
    const uint64_t w = r == 4 ? c : r, W = s.world, A = spec.accumulation;
    const bool once = spec.determinism == SHD_DETERMINISM_RUN && s.g == 1;
    FormComm sum = {};
    for (const FormUnit &unit : FormUnits(spec)) {
        const uint64_t n = unit.n, p = unit.persists ? 1 : s.p, k = unit.persists ? 1 : s.regather;
        sum.all_gather += A * c * (n / p * (p - 1) + (unit.copies - 1) * (n / k * (k - 1)));
        sum.all_gather += c * (n / s.o) * (s.o / p - 1);
        sum.reduce_scatter += once ? r * (n / W) * (W - 1) : A * w * (n / W) * (W - 1);
        sum.all_reduce += r * (n / W) * (W / s.o - 1);
        sum.norm += 8 * (n / s.o / SHD_BLOCK) * (s.o - 1);
    }
    return sum;
}

} // namespace shd

#endif
