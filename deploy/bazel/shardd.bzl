"""The rules that every target of the project uses: common flags, nothing else to remember.

Language standards are set in .bazelrc (C17 for .c, C++17 for .cc); C++ is for GoogleTest and thin shims alone.
"""

_COPTS = [
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Werror",
]

_LINKOPTS = [
    "-lm",
    "-pthread",
]

# Default options and suppressions of the sanitizers, compiled in, so that every way of starting a program finds them.
_SANITIZER_DEPS = select({
    "//deploy/bazel:asan": ["//tests/sanitizers:asan_options"],
    "//deploy/bazel:tsan": ["//tests/sanitizers:tsan_options"],
    "//conditions:default": [],
})

def shd_cc_library(name, copts = [], linkopts = [], **kwargs):
    """cc_library with the project's warnings as errors. Takes every cc_library attribute."""
    native.cc_library(
        name = name,
        copts = _COPTS + copts,
        linkopts = linkopts + _LINKOPTS,
        linkstatic = True,
        **kwargs
    )

def shd_cc_binary(name, copts = [], linkopts = [], deps = [], **kwargs):
    """cc_binary with the project's warnings as errors. Takes every cc_binary attribute."""
    native.cc_binary(
        name = name,
        copts = _COPTS + copts,
        linkopts = linkopts + _LINKOPTS,
        deps = deps + _SANITIZER_DEPS,
        **kwargs
    )

def shd_cc_test(name, copts = [], linkopts = [], deps = [], size = "small", **kwargs):
    """cc_test on GoogleTest with its main. Takes every cc_test attribute (tags, data, args, env ...)."""
    native.cc_test(
        name = name,
        copts = _COPTS + copts,
        linkopts = linkopts + _LINKOPTS,
        linkstatic = True,
        size = size,
        deps = deps + ["//third_party:gtest_main"] + _SANITIZER_DEPS,
        **kwargs
    )

def shd_proto_c_library(name, src, visibility = None):
    """protobuf-c code of one .proto file; `#include "<package>/<file>.pb-c.h"` from the workspace root.

    Args:
      name: the cc_library.
      src: the .proto file, in this package.
      visibility: of the cc_library.
    """
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_gen",
        srcs = [src],
        outs = [stem + ".pb-c.h", stem + ".pb-c.c"],
        cmd = "protoc-c --proto_path=. --c_out=$(BINDIR) $(location %s)" % src,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb-c.c"],
        hdrs = [stem + ".pb-c.h"],
        linkstatic = True,
        visibility = visibility,
        deps = ["//third_party:protobuf_c"],
    )
