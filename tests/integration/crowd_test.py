"""64 clients at once, 1,000 attaches and detaches: no step is lost, and the daemon keeps nothing of them.

Under AddressSanitizer the daemon's exit is checked by its leak detection: Daemon.finish() wants status 0 and no report.
"""

import subprocess

import harness
from harness import count, wait_for

CLIENTS = 64
WATCHES = 1000
STEPS = count(1000, 300, 60)

# What 1,000 connections may leave behind in memory: the allocator's and gRPC's caches settle in the warm-up, a leak of
# one connection (13 KiB of server alone) would be 13 MiB. The history of the job that goes on is counted apart.
GROWTH = 8 << 20
HISTORY_PER_STEP = 256


class Crowd(harness.TestCase):
    def crowd(self, daemon, job, watches, first_steps):
        done = subprocess.run(
            [daemon.binary("crowd"), daemon.socket, job, str(CLIENTS), str(watches), str(first_steps)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=harness.patience(150), check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        for report in harness.REPORTS:
            self.assertNotIn(report, done.stderr)
        result = harness.Result(done.returncode, done.stdout, done.stderr).json
        self.assertEqual(result["watches"], watches)
        return result

    def settled(self, daemon, fds):
        """Waits until only our own question's connection is open, and the descriptors are what they were."""
        wait_for("one connection", lambda: daemon.status()["connections"] == 1, 30)
        wait_for("%d descriptors, there are %d" % (fds, daemon.fds()), lambda: daemon.fds() <= fds, 30)

    def test_64_clients_1000_watches(self):
        daemon = self.daemon("--watch-history", "1000000")
        # Runs on while they come and go.
        daemon.submit("long", 100000000)
        daemon.wait_step("long", 64)
        fds = daemon.fds()
        self.crowd(daemon, "long", count(300, 128), 64)  # warm-up: caches of allocator and gRPC
        self.settled(daemon, fds)
        threads = daemon.threads()
        step, resident = daemon.job("long")["step"], daemon.resident()

        result = self.crowd(daemon, "long", WATCHES, 64)
        self.assertGreaterEqual(result["steps"], WATCHES)
        self.settled(daemon, fds)
        self.assertLessEqual(daemon.threads(), threads + 16, "threads grow with clients")
        self.assertEqual(daemon.status()["jobs"][0]["watchers"], 0)
        grown = daemon.resident() - resident
        steps = daemon.job("long")["step"] - step
        self.assertGreater(steps, 0, "the job stood still")
        if not harness.SANITIZER:  # a sanitizer keeps freed memory in quarantine
            self.assertLess(grown, GROWTH + steps * HISTORY_PER_STEP,
                            "%d bytes more after %d watches and %d steps" % (grown, WATCHES, steps))
        daemon.ok("cancel", "long")
        history = daemon.ctl("--json", "attach", "long", "--from", 1, seconds=60)
        self.assertEqual(history.rc, harness.EXIT_JOB_FAILED, repr(history))
        self.assertSteps(history.steps, daemon.job("long")["step"])

    def test_64_processes_watch_one_job_to_its_end(self):
        daemon = self.daemon()
        clients = count(64, 16)
        daemon.submit("seen", STEPS)
        watchers = [daemon.spawn("--json", "attach", "seen", "--from", 1) for _ in range(clients)]
        results = [watcher.wait(120) for watcher in watchers]
        for result in results:
            self.assertEqual(result.rc, harness.EXIT_DONE, repr(result))
            self.assertSteps(result.steps, STEPS)
            self.assertEqual(result.out, results[0].out)
        wait_for("no watchers", lambda: daemon.status()["connections"] == 1)

    def test_a_reader_that_sleeps_stalls_nobody(self):
        daemon = self.daemon("--max-stream-buffer", "4K")
        daemon.submit("watched", count(1500, 200, 60))
        # Watches and never reads: its socket and its share of the daemon's buffer fill up.
        sleeper = harness.start(
            daemon.ctl_argv(["--json", "attach", "watched", "--from", "1"]), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(sleeper.stdout.close)
        self.addCleanup(sleeper.wait)
        self.addCleanup(sleeper.kill)
        daemon.wait_state("watched", "done")
        self.assertSteps(daemon.history("watched"), count(1500, 200, 60))
        # It wakes up and has missed nothing.
        steps = harness.steps_of(harness.Result(0, sleeper.stdout.read().decode(), "").lines)
        self.assertSteps(steps, count(1500, 200, 60))


if __name__ == "__main__":
    harness.main()
