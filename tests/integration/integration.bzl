"""Tests of the whole, written in Python on tests/integration/harness.py."""

_PROGRAMS = [
    "//client:shardctl",
    "//daemon:shardd",
    "//tests/integration:caller",
    "//tests/integration:crowd",
]

def integration_test(name, exclusive = False, size = "medium", data = [], tags = [], args = [], **kwargs):
    """Runs NAME.py with the programs of this build.

    Args:
      name: the test; its file is name.py.
      exclusive: nothing else may run meanwhile.
      size: as of every test.
      data: more files that it needs.
      tags: as of every test.
      args: more arguments.
      **kwargs: as of sh_test.
    """
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tests/integration:run.sh"],
        args = ["$(location %s.py)" % name] +
               ["--program=$(location %s)" % program for program in _PROGRAMS] +
               select({
                   "//deploy/bazel:asan": ["--sanitizer=asan"],
                   "//deploy/bazel:tsan": ["--sanitizer=tsan"],
                   "//conditions:default": [],
               }) + args,
        data = _PROGRAMS + data + [
            name + ".py",
            "//tests/integration:harness.py",
        ],
        tags = tags + (["exclusive"] if exclusive else []),
        **kwargs
    )
