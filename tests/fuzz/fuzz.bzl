"""Fuzz targets as tests: the committed corpus and a few seconds of its mutations."""

load("//deploy/bazel:shardd.bzl", "shd_cc_test")

def shd_fuzz_test(name, srcs, deps):
    """A test of LLVMFuzzerTestOneInput (in srcs) on corpus/<name without _fuzz>/."""
    folder = "corpus/" + name[:-len("_fuzz")]
    shd_cc_test(
        name = name,
        srcs = srcs + ["driver.cc"],
        data = native.glob([folder + "/*"]),
        env = {"FUZZ_CORPUS": native.package_name() + "/" + folder},
        deps = deps,
    )
