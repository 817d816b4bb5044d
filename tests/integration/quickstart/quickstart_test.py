"""deploy/quickstart with the programs of this build: it trains as well as it promises, shows what it promises, and
leaves nothing running and no file."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import harness

ROOT = os.getcwd()  # of the runfiles: deploy/quickstart stands there
HELD_OUT = 1.75  # nats per byte
SECONDS = 180
FIRST_STEP_SECONDS = 15  # from the start of a quickstart that is built already


class Quickstart(harness.TestCase):
    def setUp(self):
        self.tmp = harness.new_directory("shd-it-")
        self.mark = "shardd-test-" + uuid.uuid4().hex
        self.env = dict(os.environ, SHARDD_BIN_DIR=harness.BINARIES, TMPDIR=self.tmp, SHARDD_TEST_MARK=self.mark)

    def tearDown(self):
        self.assertEqual(self.running(), [], "left running")
        self.assertEqual(os.listdir(self.tmp), [], "files left")
        os.rmdir(self.tmp)

    def running(self):
        """Processes that have the mark in their environment."""
        found = []
        for pid in os.listdir("/proc"):
            try:
                with open("/proc/%s/environ" % pid, "rb") as file:
                    if self.mark.encode() in file.read():
                        found.append(pid)
            except (OSError, ValueError):
                pass
        return found

    def test_trains_and_leaves_nothing(self):
        started = time.monotonic()
        child = harness.start([os.path.join(ROOT, "deploy/quickstart")], env=self.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, evaluations, began, reached, first_step = "", [], None, None, None
        with child.stdout:
            for raw in child.stdout:
                line = raw.decode("utf-8", "replace")
                print(line, end="")
                text += line
                if line.startswith("Training "):
                    began = time.monotonic()
                if first_step is None and re.search(r"step +1[/ ]", line):
                    first_step = time.monotonic() - started
                found = re.search(r"eval at step (\d+)\s+loss (\d+\.\d+)", line)
                if found:
                    evaluations.append((int(found.group(1)), float(found.group(2))))
                    if evaluations[-1][1] < HELD_OUT and reached is None:
                        reached = time.monotonic() - began
        self.assertEqual(child.wait(), 0, text)
        self.assertGreater(len(evaluations), 1, text)
        self.assertEqual(sorted(evaluations), evaluations)
        self.assertLess(evaluations[-1][1], HELD_OUT)
        self.assertLess(reached, SECONDS, "seconds of training to a held-out loss below %.2f" % HELD_OUT)
        self.assertIsNotNone(first_step, text)
        self.assertLess(first_step, FIRST_STEP_SECONDS, "seconds to the first step")
        # Memory by tag, as planned and used.
        for tag in ("params", "grads", "optimizer", "gathered", "activations", "comm", "total"):
            self.assertRegex(text, r"(?m)^.*\b%s +[\d.]+ \w+ +[\d.]+ \w+ +[\d.]+ \w+" % tag)
        self.assertIn("zero3", text)
        # A sample follows its heading: words, most of them of the alphabet that was trained.
        sample = text.split("A sample of text")[1].split("Stopping the daemon")[0].strip()
        self.assertGreater(len(sample), 100)
        letters = sum(c.isascii() and (c.isalpha() or c in " ,.;:\n'") for c in sample)
        self.assertGreater(letters, 0.9 * len(sample), sample)
        self.assertIn("the daemon is stopped", text)

    def test_interrupted(self):
        """Ctrl-C in the middle of the training: everything is taken down."""
        with open(os.path.join(self.tmp, "out"), "w+b") as out:
            child = harness.start([os.path.join(ROOT, "deploy/quickstart")], env=self.env, stdin=subprocess.DEVNULL,
                                  stdout=out, stderr=subprocess.STDOUT)

            def shown():
                with open(out.name, "rb") as file:
                    return file.read()

            harness.wait_for("training", lambda: b"step 1/" in shown() or b"Training" in shown(), 60)
            time.sleep(1)
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.wait(60), 130, shown().decode("utf-8", "replace"))
        os.unlink(out.name)

    def test_usage(self):
        for args, word in ((["--frobnicate"], "--frobnicate"), (["--steps", "0"], "0"), (["--ranks", "x"], "x")):
            with self.subTest(args=args):
                done = subprocess.run([os.path.join(ROOT, "deploy/quickstart")] + args, env=self.env,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, check=False)
                self.assertEqual(done.returncode, 2)
                self.assertIn(word, done.stderr)


if __name__ == "__main__":
    harness.main()
