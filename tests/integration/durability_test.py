"""A client that dies changes nothing: the job goes on, and who attaches later sees every step once."""

import signal

import harness
from harness import count, untimed, wait_for

STEPS = count(600, 150, 60)


class Durability(harness.TestCase):
    def follow_until(self, client, step):
        def probe():
            steps = harness.steps_of(client.lines)
            return steps if steps and steps[-1]["step"] >= step else None

        return wait_for("step %d at a client" % step, probe)

    def test_kill_9_of_the_submitting_client(self):
        daemon = self.daemon()
        client = daemon.spawn("--json", "submit", *daemon.tiny("kept", STEPS))
        self.follow_until(client, 10)
        client.kill(signal.SIGKILL)
        seen = harness.steps_of(client.lines)
        at_kill = daemon.job("kept")
        self.assertEqual(client.wait().rc, -signal.SIGKILL)
        self.assertIn(at_kill["state"], ("running", "done"))
        self.assertLess(at_kill["step"], STEPS, "the job ended before its client was killed; nothing is shown")

        # While it runs, and once it has ended.
        during = daemon.spawn("--json", "attach", "kept", "--from", 1)
        self.assertGreater(daemon.wait_step("kept", at_kill["step"] + 5)["step"], at_kill["step"])
        followed = during.wait(60)
        self.assertEqual(followed.rc, harness.EXIT_DONE, repr(followed))
        self.assertSteps(followed.steps, STEPS)
        after = daemon.history("kept")
        self.assertSteps(after, STEPS)
        self.assertEqual(followed.steps, after)
        self.assertSteps(seen, seen[-1]["step"])
        self.assertEqual(seen, after[:len(seen)])
        self.assertEqual(daemon.job("kept")["state"], "done")

    def test_a_killed_client_leaves_the_numbers_of_a_job_that_nobody_watched(self):
        daemon = self.daemon()
        steps = count(200, 60, 30)
        daemon.submit("alone", steps)
        daemon.wait_state("alone", "done")
        alone = [untimed(step) for step in daemon.history("alone")]
        client = daemon.spawn("--json", "submit", *daemon.tiny("watched", steps))
        watchers = [daemon.spawn("--json", "attach", "alone", "--from", 1) for _ in range(3)]
        self.follow_until(client, 5)
        for each in watchers + [client]:
            each.kill(signal.SIGKILL)
            each.wait()
        daemon.wait_state("watched", "done")
        self.assertEqual([untimed(step) for step in daemon.history("watched")], alone)

    def test_watchers_die_at_once_and_another_sees_all(self):
        daemon = self.daemon()
        daemon.submit("busy", STEPS)
        watchers = [daemon.spawn("--json", "attach", "busy", "--from", 1) for _ in range(8)]
        for watcher in watchers:
            self.follow_until(watcher, 3)
        for watcher in watchers:
            watcher.kill(signal.SIGKILL)
        for watcher in watchers:
            watcher.wait()
        daemon.wait_state("busy", "done")
        self.assertSteps(daemon.history("busy"), STEPS)
        self.assertServes(daemon)

    def test_interrupt_detaches_and_says_so(self):
        daemon = self.daemon()
        client = daemon.spawn("submit", *daemon.tiny("left", STEPS))
        daemon.wait_step("left", 5)
        client.kill(signal.SIGINT)
        result = client.wait()
        self.assertEqual(result.rc, harness.EXIT_DONE, repr(result))
        self.assertIn("detached; the job goes on: shardctl attach left", result.out)
        daemon.wait_state("left", "done")
        self.assertSteps(daemon.history("left"), STEPS)

    def test_attach_from_the_middle_and_from_beyond(self):
        daemon = self.daemon()
        steps = count(60, 30, 20)
        daemon.submit("short", steps)
        daemon.wait_state("short", "done")
        whole = daemon.history("short")
        for first in (1, 2, steps // 2, steps):
            tail = daemon.ok("--json", "attach", "short", "--from", first)
            self.assertSteps(tail.steps, steps, first)
            self.assertEqual(tail.steps, whole[first - 1:])
            self.assertEqual([line["state"] for line in tail.lines if "state" in line][-1:], ["done"])
        beyond = daemon.ok("--json", "attach", "short", "--from", steps + 1)
        self.assertEqual(beyond.steps, [])

    def test_attach_before_the_first_step(self):
        daemon = self.daemon()
        # One job keeps the ranks busy, so that the next one's watchers are there before its first step.
        daemon.submit("first", STEPS, "--priority", 100)
        daemon.submit("next", count(50, 20))
        watchers = [daemon.spawn("--json", "attach", "next") for _ in range(3)] + [
            daemon.spawn("--json", "attach", "next", "--from", 1)]
        results = [watcher.wait(60) for watcher in watchers]
        self.assertSteps(results[-1].steps, count(50, 20))
        for result in results[:-1]:
            self.assertEqual(result.rc, harness.EXIT_DONE, repr(result))
            if result.steps:
                self.assertSteps(result.steps, count(50, 20), result.steps[0]["step"])
                self.assertEqual(result.steps, results[-1].steps[-len(result.steps):])

    def test_kill_9_of_a_generating_client(self):
        daemon = self.daemon()
        daemon.submit("talker", STEPS)
        daemon.wait_step("talker", 1)
        client = daemon.spawn("--json", "generate", "talker", "--prompt", "a", "--max-tokens", 100000)
        wait_for("tokens", lambda: len(client.lines) > 3)
        client.kill(signal.SIGKILL)
        client.wait()
        daemon.wait_state("talker", "done")
        self.assertSteps(daemon.history("talker"), STEPS)
        self.assertEqual(daemon.status()["jobs"][0]["queued"], 0)


if __name__ == "__main__":
    harness.main()
