"""Finds the CUDA Toolkit, if there is one, and tells BUILD files through @local_config_cuda//:cuda.bzl.

The build never needs CUDA. HAVE_CUDA, CUDA_HOME and CUDA_VERSION say what was found; the file `found` says it in one
line for people.
"""

def _cuda_configure_impl(ctx):
    home, version = "", ""
    for candidate in [ctx.os.environ.get("CUDA_HOME"), ctx.os.environ.get("CUDA_PATH"), "/usr/local/cuda"]:
        if not candidate or not ctx.path(candidate + "/bin/nvcc").exists:
            continue
        result = ctx.execute([candidate + "/bin/nvcc", "--version"])
        if result.return_code != 0:
            continue
        home = candidate
        for word in result.stdout.replace(",", " ").replace("\n", " ").split(" "):
            if word.startswith("V") and "." in word:
                version = word[1:]
        break

    ctx.file("cuda.bzl", "HAVE_CUDA = %r\nCUDA_HOME = %r\nCUDA_VERSION = %r\n" % (bool(home), home, version))
    ctx.file("found", ("CUDA Toolkit %s in %s\n" % (version, home)) if home else "no CUDA Toolkit\n")
    ctx.file("BUILD", "exports_files([\"cuda.bzl\", \"found\"])\n")

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "CUDA_PATH"],
    local = True,
)
