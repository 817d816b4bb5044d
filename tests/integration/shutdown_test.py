"""SIGTERM and SIGINT: the step that runs is finished, everybody is told, the daemon ends with 0 and leaves nothing."""

import os
import signal
import time

import harness
from harness import EXIT_DONE, EXIT_UNREACHABLE, count

FOREVER = 100000000


class Shutdown(harness.TestCase):
    def ended(self, daemon, rc):
        self.assertEqual(rc, 0, daemon.log[-4000:])
        self.assertFalse(os.path.exists(daemon.socket), "the socket is still there")
        self.assertIn("stopped", daemon.log.splitlines()[-1])
        daemon.check_log()

    def test_stop_during_steps(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                daemon = self.daemon()
                daemon.submit("s", FOREVER)
                watcher = daemon.spawn("--json", "attach", "s", "--from", 1)
                daemon.wait_step("s", 10)
                harness.wait_for("the watcher's first line", lambda: watcher.lines)
                pid = daemon.pid
                began = time.monotonic()
                self.ended(daemon, daemon.stop(number))
                self.assertLess(time.monotonic() - began, harness.patience(5))
                self.assertFalse(os.path.exists("/proc/%d" % pid), "a zombie")
                # The watcher saw each step once up to the last one, and is told that the daemon is gone.
                result = watcher.wait()
                self.assertEqual(result.rc, EXIT_UNREACHABLE, repr(result))
                steps = result.steps
                self.assertSteps(steps, len(steps))
                last = int(daemon.log.split("at step ")[-1].split(",")[0])
                self.assertEqual(steps[-1]["step"], last, "the running step's result is sent before the stream ends")

    def test_a_long_step_is_finished(self):
        """A step of the larger model takes long enough to be caught in the middle."""
        daemon = self.daemon()
        caller = daemon.caller()
        job = caller.ok("create", name="long", model="gpt-byte-10m", seq_len=128, micro_batch=2, ranks=2)["id"]
        caller.ok("train", job=job, seq=1, rows=4, len=128)
        caller.send("train", job=job, seq=2, rows=4, len=128, seed=2)
        time.sleep(0.05)
        daemon.process.send_signal(signal.SIGTERM)
        answer = caller.receive()
        self.assertTrue(answer["ok"] or answer["status"] == 14, answer)
        if answer["ok"]:
            self.assertEqual(answer["step"], 2)
        self.ended(daemon, daemon.stop())
        self.assertIn("at step %d," % (2 if answer["ok"] else 1), daemon.log)

    def test_calls_that_wait_are_told(self):
        daemon = self.daemon()
        caller = daemon.caller()
        job = caller.ok("create", name="held", seq_len=16, micro_batch=1, ranks=2)["id"]
        caller.ok("train", job=job, seq=1, rows=2)
        daemon.ok("pause", "held")
        waiting = daemon.caller()
        waiting.send("train", job=job, seq=2, rows=2)
        harness.wait_for("the call in the queue", lambda: caller.ok("get", job=job)["next_seq"] == 3)
        talker = daemon.spawn("generate", "held", "--prompt", "a", "--max-tokens", 100000)
        harness.wait_for("text", lambda: talker.out)
        rc = daemon.stop()
        answer = waiting.receive()
        self.assertEqual(answer["status"], 14, answer)
        self.assertIn("stopping", answer["message"])
        self.assertIn("not executed", answer["message"])
        self.assertEqual(talker.wait().rc, EXIT_UNREACHABLE)
        self.ended(daemon, rc)

    def test_second_start_on_the_same_state(self):
        daemon = self.daemon()
        for _ in range(3):
            daemon.submit("again", 5)
            daemon.wait_state("again", "done")
            self.ended(daemon, daemon.stop())
            daemon.start()
            self.assertServes(daemon)
            self.assertEqual(daemon.ok("--json", "jobs").lines, [])

    def test_stop_with_many_jobs_in_every_state(self):
        daemon = self.daemon()
        for name, steps in (("done", 2), ("running", FOREVER), ("paused", FOREVER), ("cancelled", FOREVER)):
            daemon.submit(name, steps)
        daemon.wait_state("done", "done")
        daemon.wait_step("paused", 1)
        daemon.ok("pause", "paused")
        daemon.ok("cancel", "cancelled")
        watchers = [daemon.spawn("--json", "attach", name, "--from", 1) for name in ("running", "paused")]
        harness.wait_for("watchers", lambda: all(watcher.lines for watcher in watchers))
        idle = [daemon.connect() for _ in range(20)]
        self.ended(daemon, daemon.stop())
        for raw in idle:
            raw.close()
        for watcher in watchers:
            self.assertEqual(watcher.wait().rc, EXIT_UNREACHABLE)

    def test_stop_at_once_when_told_twice(self):
        daemon = self.daemon("--stop-grace-ms", "600000")
        daemon.submit("s", FOREVER)
        daemon.wait_step("s", 2)
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGINT)
        self.ended(daemon, daemon.stop())

    def test_stop_while_clients_come_and_go(self):
        daemon = self.daemon()
        daemon.submit("s", FOREVER)
        clients = [daemon.spawn("--json", "attach", "s", "--from", 1) for _ in range(count(20, 6))]
        # Right in the middle of connecting and being answered.
        time.sleep(0.1)
        self.ended(daemon, daemon.stop())
        for client in clients:
            result = client.wait()
            self.assertEqual(result.rc, EXIT_UNREACHABLE, repr(result))
            if result.steps:
                self.assertSteps(result.steps, result.steps[-1]["step"])

    def test_right_after_the_start(self):
        for _ in range(count(10, 4)):
            daemon = self.daemon()
            self.ended(daemon, daemon.stop())

    def test_the_client_says_what_happened(self):
        daemon = self.daemon()
        daemon.stop()
        self.assertRefused(daemon.ctl("jobs"), EXIT_UNREACHABLE, daemon.socket)
        self.assertEqual(daemon.start().ctl("jobs").rc, EXIT_DONE)


if __name__ == "__main__":
    harness.main()
