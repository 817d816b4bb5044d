"""Fuzz targets: as tests the committed corpus and a few seconds of its mutations, and for libFuzzer (see tests/fuzz/run)."""

load("//deploy/bazel:shardd.bzl", "shd_cc_binary", "shd_cc_test")

def shd_fuzz_test(name, srcs, deps):
    """A test of LLVMFuzzerTestOneInput (in srcs) on corpus/<name without _fuzz>/; <name>_libfuzzer is for --config=fuzz."""
    folder = "corpus/" + name[:-len("_fuzz")]
    shd_cc_test(
        name = name,
        srcs = srcs + ["driver.cc"],
        data = native.glob([folder + "/*"]),
        env = {"FUZZ_CORPUS": native.package_name() + "/" + folder},
        deps = deps,
    )
    shd_cc_binary(
        name = name + "_libfuzzer",
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps,
    )
