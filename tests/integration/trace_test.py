"""shardctl trace: a timeline that viewers read, of exactly the steps that were asked for."""

import json
import os

import harness
from harness import EXIT_DONE, EXIT_REFUSED, EXIT_USAGE


class TraceTest(harness.TestCase):
    def trace(self, daemon, job, *more):
        path = os.path.join(daemon.directory, "trace.json")
        result = daemon.ok("--json", "trace", job, "-o", path, *more)
        with open(path, encoding="utf-8") as file:
            return result.json, json.load(file)["traceEvents"]

    def test_a_timeline_of_steps(self):
        daemon = self.daemon()
        daemon.submit("t", 100000, "--global-batch", 6, "--strategy", "zero3")
        daemon.wait_step("t", 3)
        summary, events = self.trace(daemon, "t", "--steps", 2)
        self.assertEqual((summary["steps"], summary["dropped"]), (2, 0))
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual(len(spans), summary["events"])
        self.assertEqual({e["pid"] for e in spans}, {0, 1})
        steps = sorted({e["args"]["step"] for e in spans})
        self.assertEqual(len(steps), 2)
        self.assertEqual(steps[1], steps[0] + 1)
        self.assertGreaterEqual(steps[0], 4)
        names = {e["name"] for e in spans}
        self.assertLessEqual({"forward", "backward", "all_gather", "reduce_scatter", "norm", "optimizer"}, names)
        for rank in 0, 1:
            mine = [e for e in spans if e["pid"] == rank and e["args"]["step"] == steps[0]]
            self.assertEqual({e["args"]["round"] for e in mine if e["name"] == "forward"}, {0, 1, 2})
            for lane in {e["tid"] for e in mine}:
                line = sorted((e["ts"], e["ts"] + e["dur"]) for e in mine if e["tid"] == lane)
                for before, after in zip(line, line[1:]):
                    self.assertLessEqual(before[1], after[0] + 0.001, "spans of a lane follow one another")
            self.assertGreater(summary["ranks"][rank]["compute_ms"], 0)
            self.assertLessEqual(summary["ranks"][rank]["hidden_ms"], summary["ranks"][rank]["communication_ms"])
        rows = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"}
        self.assertIn((1, "rank 1"), rows)
        self.assertIn((0, "gather"), rows)
        status = next(j for j in daemon.ok("--json", "status").json["jobs"] if j["name"] == "t")
        self.assertTrue(0 <= status["exposed_comm"] <= 1, status["exposed_comm"])
        self.assertIn("exposed communication", daemon.ok("status").out)
        text = daemon.ok("trace", "t", "-o", os.path.join(daemon.directory, "more.json")).out
        self.assertIn("rank 1:", text)
        self.assertIn("of 1 step", text)

    def test_steps_of_a_client(self):
        """A step that is driven in parts is seen whole: its gradients and its optimizer."""
        daemon = self.daemon()
        caller = daemon.caller()
        job = caller.ok("create", name="mine", seq_len=16, micro_batch=1, ranks=2)["id"]
        caller.ok("backward", job=job, seq=1, rows=2)
        path = os.path.join(daemon.directory, "trace.json")
        tracer = daemon.spawn("--json", "trace", "mine", "-o", path)
        harness.wait_for("the file of the tracer", lambda: os.path.exists(path + ".part"))
        seq = 2
        while tracer.process.poll() is None:
            caller.ok("optim", job=job, seq=seq)
            caller.ok("backward", job=job, seq=seq + 1, rows=2)
            seq += 2
        self.assertEqual(tracer.wait().rc, EXIT_DONE)
        with open(path, encoding="utf-8") as file:
            spans = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
        self.assertEqual(len({e["args"]["step"] for e in spans}), 1)
        self.assertLessEqual({"forward", "backward", "optimizer"}, {e["name"] for e in spans})

    def test_refusals(self):
        daemon = self.daemon()
        daemon.submit("short", 2)
        daemon.wait_state("short", "done")
        path = os.path.join(daemon.directory, "trace.json")
        self.assertRefused(daemon.ctl("trace", "short", "-o", path), EXIT_REFUSED, "done")
        self.assertRefused(daemon.ctl("trace", "nobody", "-o", path), EXIT_REFUSED, "nobody")
        self.assertRefused(daemon.ctl("trace", "short"), EXIT_USAGE, "--output")
        self.assertRefused(daemon.ctl("trace", "short", "-o", "/dev/null/x"), EXIT_USAGE, "/dev/null/x")
        self.assertRefused(daemon.ctl("trace", "short", "-o", path, "--steps", 0), EXIT_USAGE, "--steps")
        self.assertFalse(os.path.exists(path) or os.path.exists(path + ".part"))


if __name__ == "__main__":
    harness.main()
