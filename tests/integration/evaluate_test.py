"""shardctl eval on files: every format, beside training, against Forward, and when something goes wrong meanwhile."""

import json
import os
import struct

import harness
from harness import EXIT_JOB_FAILED, EXIT_REFUSED, EXIT_USAGE, count, untimed, wait_for

OWNER, OTHER = 4001, 4002


class Evaluate(harness.TestCase):
    def write(self, daemon, name, content):
        path = os.path.join(daemon.data, name)
        with open(path, "wb") as out:
            out.write(content)
        os.chmod(path, 0o644)
        return path

    def test_formats_agree_and_forward_gives_the_same(self):
        daemon = self.daemon()
        daemon.submit("driven", 0, data=False)
        text = b"in the beginning was the word, and the word was with us. " * 5
        files = {
            "text": self.write(daemon, "a.txt", text),
            "nanogpt": self.write(daemon, "a.bin", struct.pack("<%dH" % len(text), *text)),
            "llmc": self.write(daemon, "b.bin", struct.pack("<256i", 20240520, 1, len(text), *([0] * 253))
                               + struct.pack("<%dH" % len(text), *text)),
            "jsonl": self.write(daemon, "a.jsonl", json.dumps({"text": text.decode()}).encode()),
        }
        found = {kind: untimed(daemon.evaluate("driven", path)) for kind, path in files.items()}
        for kind in files:
            found[kind].pop("ms")
            self.assertEqual(found[kind], found["text"], kind)
        self.assertEqual((found["text"]["tokens"], found["text"]["text_bytes"]), (len(text) - 1, len(text) - 1))
        # The first window alone, through Forward: to the bit.
        rows = ",".join(map(str, text[:16]))
        forward = daemon.caller().ok("forward", job="driven", tokens=rows, targets=",".join(map(str, text[1:17])))
        first = daemon.evaluate("driven", files["text"], "--max-tokens", 16)
        self.assertEqual((first["loss"], first["tokens"], first["windows"]), (forward["loss"], 16, 1))
        short = daemon.ok("--json", "eval", "driven", "--text", text.decode()).json
        self.assertAlmostEqual(short["loss"], found["text"]["loss"], delta=1e-9)
        self.assertEqual(short["tokens"], found["text"]["tokens"])

    def test_beside_training_nothing_of_it_changes(self):
        steps = count(60, 20)
        daemon = self.daemon()
        daemon.submit("alone", steps)
        daemon.wait_state("alone", "done")
        expected = [untimed(step) for step in daemon.history("alone")]
        daemon.submit("beside", steps, "--strategy", "zero3")
        clients = [daemon.spawn("--json", "eval", "beside", "--data", daemon.text, "--max-tokens", 4000) for _ in range(4)]
        results = [client.wait(120) for client in clients]
        daemon.wait_state("beside", "done", seconds=120)
        self.assertEqual([untimed(step) for step in daemon.history("beside")], expected)
        at = {}
        for result in results:
            self.assertEqual(result.rc, 0, repr(result))
            found = result.lines[-1]
            self.assertEqual(found["tokens"], 4000)
            self.assertEqual(at.setdefault(found["step"], found["loss"]), found["loss"], "one set of weights, one loss")
        again = daemon.evaluate("beside", daemon.text, "--max-tokens", 4000)
        self.assertEqual(again["step"], steps)
        for rank in [job for job in daemon.status()["jobs"] if job["name"] == "beside"][0]["memory"]:
            for tag, figure in rank["tags"].items():
                self.assertEqual(figure["planned"], figure["peak"], tag)

    def test_a_client_that_goes_lets_the_steps_go_on(self):
        daemon = self.daemon()
        long = harness.write_text(os.path.join(daemon.data, "long"), count(4000000, 1000000))
        daemon.submit("job", 100000000)
        daemon.wait_step("job", 2)
        for _ in range(3):
            client = daemon.spawn("--json", "eval", "job", "--data", long)
            wait_for("progress", lambda: any(line.get("progress") == "evaluating" for line in client.lines))
            at = daemon.job("job")["step"]
            self.assertEqual(daemon.job("job")["step"], at)
            client.kill()
            client.wait()
            daemon.wait_step("job", at + 3)
        client = daemon.spawn("--json", "eval", "job", "--data", long)
        wait_for("progress", lambda: any(line.get("progress") == "evaluating" for line in client.lines))
        daemon.ok("cancel", "job")
        self.assertRefused(client.wait(), EXIT_JOB_FAILED, "cancelled")
        self.assertServes(daemon)

    def test_a_file_that_changes_meanwhile(self):
        daemon = self.daemon()
        long = harness.write_text(os.path.join(daemon.data, "long"), count(4000000, 1000000))
        daemon.submit("job", 100000000)
        client = daemon.spawn("--json", "eval", "job", "--data", long)
        wait_for("progress", lambda: any(line.get("progress") == "evaluating" for line in client.lines))
        with open(long, "a", encoding="ascii") as out:
            out.write("more")
        result = client.wait()
        self.assertEqual(result.rc, EXIT_REFUSED, repr(result))
        self.assertIn("has changed since it was opened", result.err)
        daemon.wait_step("job", daemon.job("job")["step"] + 3)
        self.assertEqual(daemon.job("job")["state"], "running")

    def test_who_may_read_what(self):
        self.need_root()
        daemon = self.daemon()
        daemon.submit("mine", 0, data=False, uid=OWNER)
        secret = self.write(daemon, "secret", b"not for all of you")
        os.chown(secret, OTHER, OTHER)
        os.chmod(secret, 0o600)
        self.assertRefused(daemon.ctl("eval", "mine", "--data", secret, uid=OWNER), EXIT_USAGE, "secret")
        refused = daemon.ctl("eval", "mine", "--data", daemon.text, uid=OTHER)
        self.assertRefused(refused, EXIT_REFUSED, "no job 'mine'")
        daemon.evaluate("mine", daemon.text, "--max-tokens", 10, uid=OWNER)
        self.assertRefused(daemon.ctl("eval", "mine", "--data", "/etc/passwd", uid=OWNER), EXIT_REFUSED, "data roots")
        self.assertRefused(daemon.ctl("eval", "mine", "--data", daemon.text, "--stride", 17, uid=OWNER), EXIT_REFUSED, "stride 17")


if __name__ == "__main__":
    harness.main()
