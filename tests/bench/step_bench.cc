// Time of one optimizer step of the engine alone, without daemon and client. A tool for profiling:
//   step_bench MODEL MICRO_BATCH SEQ_LEN STRATEGY RANKS THREADS_PER_RANK STEPS
//              [fp32|bf16 [PREFETCH BUCKET_BYTES OVERLAP STREAM_THREADS]]
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/train/engine.h"

// Of all threads, in milliseconds: steadier than the clock where others use the machine.
static double CpuMs()
{
    rusage u = {};
    getrusage(RUSAGE_SELF, &u);
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

int main(int argc, char **argv)
{
    const std::string dtype = argc > 8 ? argv[8] : "fp32";
    if ((argc != 8 && argc != 9 && argc != 13) || (dtype != "fp32" && dtype != "bf16")) {
        fprintf(stderr,
                "usage: %s MODEL MICRO_BATCH SEQ_LEN STRATEGY RANKS THREADS STEPS [fp32|bf16 "
                "[PREFETCH BUCKET_BYTES OVERLAP STREAM_THREADS]]\n",
                argv[0]);
        return 2;
    }
    const uint32_t world = static_cast<uint32_t>(atoi(argv[5]));
    shd_spec spec = shd::SmallSpec(argv[4], world);
    shd_error err = {};
    if (shd_model_preset(argv[1], &spec.model, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    spec.micro_batch = static_cast<uint32_t>(atoi(argv[2]));
    spec.seq_len = static_cast<uint32_t>(atoi(argv[3]));
    spec.packing = 1;
    spec.dtype = dtype == "bf16" ? SHD_BF16 : SHD_F32;
    spec.global_batch = spec.micro_batch * world;
    shd::DataFile file(1 << 20, 97);
    spec.pipeline = SHD_PIPELINE_SETTINGS_DEFAULT;
    if (argc == 13) {
        spec.pipeline.prefetch = static_cast<uint32_t>(atoi(argv[9]));
        spec.pipeline.bucket_bytes = strtoull(argv[10], nullptr, 10);
        spec.pipeline.overlap = atoi(argv[11]);
    }
    const bool stream_threads = argc == 13 && atoi(argv[12]) != 0;
    shd::Engine engine(spec, file.Open(), nullptr, atoi(argv[6]), nullptr, stream_threads);
    std::vector<double> ms, cpu;
    for (int i = 0; i < atoi(argv[7]); i++) {
        const double before = CpuMs();
        const shd_work work = engine.Step();
        cpu.push_back(CpuMs() - before);
        ms.push_back(work.ms);
    }
    std::sort(ms.begin(), ms.end());
    std::sort(cpu.begin(), cpu.end());
    const double median = ms[ms.size() / 2];
    printf("%s %s b=%s T=%s %s W=%u x %s threads: median %.2f ms, best %.2f ms, CPU %.2f ms, %.0f "
           "tokens/s\n",
           argv[1], dtype.c_str(), argv[2], argv[3], argv[4], world, argv[6], median, ms[0],
           cpu[cpu.size() / 2], spec.global_batch * spec.seq_len / median * 1e3);
    return 0;
}
