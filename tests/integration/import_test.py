"""A checkpoint far larger than what a rank keeps of it: loaded and written in pieces, within the plan; and whose files they are."""

import json
import os
import stat
import struct

import checkpoint
import harness
from harness import EXIT_REFUSED, count

OWNER, OTHER = 61001, 61002
WIDTH, LAYERS = count((512, 12), (128, 4), (64, 4))
RANKS = 4
BASE = 64 << 20  # resident memory beyond the plan, as in status_test.py


def write_zeros(path, config):
    """A checkpoint of zeros, which takes no place on disk; its bytes of tensors."""
    os.mkdir(path)
    header, end = {}, 0
    for name, shape in checkpoint.shapes(config):
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    with open(os.path.join(path, "config.json"), "w", encoding="ascii") as file:
        json.dump(config, file)
    return end


class Import(harness.TestCase):
    def test_a_checkpoint_larger_than_a_ranks_memory(self):
        daemon = self.daemon(ranks=RANKS)
        config = checkpoint.gpt2_config(n_embd=WIDTH, n_layer=LAYERS)
        path = os.path.join(daemon.data, "large")
        size = write_zeros(path, config)
        before = daemon.resident()
        daemon.ok("submit", "--detach", "--name", "large", "--model", path, "--strategy", "zero3", "--seq-len", 8,
                  "--micro-batch", 1, "--optimizer", "sgd", "--momentum", 0, "--prefetch", 0)
        highest = 0

        def running():
            nonlocal highest
            highest = max(highest, daemon.resident())
            return daemon.job("large")["state"] == "running"

        harness.wait_for("weights", running, 60)
        job = [job for job in daemon.status()["jobs"] if job["name"] == "large"][0]
        planned = 0
        for rank in job["memory"]:
            for figure in rank["tags"].values():
                self.assertLessEqual(figure["peak"], figure["planned"])
            self.assertLessEqual(rank["tags"]["params"]["peak"], size / RANKS + (1 << 20))
            self.assertEqual(rank["tags"]["params"]["peak"], rank["tags"]["params"]["planned"])
            planned += rank["total"]["planned"]
        if not harness.SANITIZER:
            self.assertLess(planned, 3.5 * size, "the model is not held whole by every rank")
            self.assertLessEqual(highest - before, planned + BASE)
        out = os.path.join(daemon.data, "out")
        answer = daemon.ok("--json", "export", "large", "--output", out, "--max-shard-size", size // 4,
                           seconds=120).json
        self.assertEqual(answer["bytes"]["now"], size)
        self.assertGreater(len(answer["files"]), 3)
        if not harness.SANITIZER:
            self.assertLessEqual(daemon.resident() - before, planned + BASE)

    def test_an_export_belongs_to_the_caller_alone(self):
        self.need_root()
        daemon = self.daemon()
        home = os.path.join(daemon.data, "home")
        os.mkdir(home)
        os.chown(home, OWNER, OWNER)
        os.chmod(home, 0o755)
        daemon.submit("job", 2, uid=OWNER)
        harness.wait_for("its end", lambda: daemon.job("job", uid=OWNER)["state"] == "done")
        out = os.path.join(home, "model")
        daemon.ok("export", "job", "--output", out, uid=OWNER)
        for name in [out] + [os.path.join(out, file) for file in os.listdir(out)]:
            found = os.stat(name)
            self.assertEqual((found.st_uid, found.st_gid), (OWNER, OWNER), name)
            self.assertEqual(stat.S_IMODE(found.st_mode), 0o755 if name == out else 0o644, name)
        # Where the caller may not write, the daemon does not either.
        self.assertRefused(daemon.ctl("export", "job", "--output", os.path.join(daemon.data, "x"), uid=OWNER),
                           EXIT_REFUSED, "uid %d may not write" % OWNER)
        link = os.path.join(home, "link")
        os.symlink("/", link)
        self.assertRefused(daemon.ctl("export", "job", "--output", os.path.join(link, "tmp", "x"), uid=OWNER),
                           EXIT_REFUSED, "data root")
        self.assertEqual(sorted(os.listdir(home)), ["link", "model"])
        # Nor does it read a model for one who may not.
        os.chmod(out, 0o700)
        self.assertRefused(
            daemon.ctl("submit", "--name", "other", "--model", out, "--detach", uid=OTHER), EXIT_REFUSED, out)


if __name__ == "__main__":
    harness.main()
