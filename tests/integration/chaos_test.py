"""Many users of one daemon do whatever comes to their mind, at once. A job among theirs takes the very steps that
it takes alone, nothing hangs, and in the end the daemon holds nothing of them."""

import random
import threading
import time

import harness
from harness import EXIT_DONE, EXIT_JOB_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, count, untimed, wait_for

SECONDS = 8
USERS = count(6, 6, 4)
STEPS = count(100, 100, 40)


class Chaos(harness.TestCase):
    def user(self, daemon, number, until, problems):
        """One user: random commands on jobs of its own and of the others, some of them killed half way."""
        rng = random.Random(number)
        mine = ["u%d-%d" % (number, i) for i in range(3)]
        theirs = ["u%d-%d" % (user, i) for user in range(USERS) for i in range(3)]

        def command():
            name = rng.choice(mine if rng.random() < 0.7 else theirs)
            return rng.choice((
                lambda: ["submit", "--detach"] + daemon.tiny(
                    name, rng.choice((5, 50, 100000)), "--strategy", rng.choice(("ddp", "zero1", "zero2", "zero3")),
                    "--ranks", rng.choice((1, 2, 3)), "--priority", rng.choice((1, 10, 100)), data=rng.random() < 0.8),
                lambda: ["submit", "--detach"] + daemon.tiny(name, 20, "--eval-every", 3),
                lambda: ["--json", "attach", name, "--from", rng.choice((0, 1, 7))],
                lambda: ["generate", name, "--prompt", "abc", "--max-tokens", rng.choice((1, 20, 200))],
                lambda: ["pause", name], lambda: ["resume", name], lambda: ["cancel", name], lambda: ["delete", name],
                lambda: ["--json", "status"], lambda: ["status", "--watch"], lambda: ["jobs"],
                lambda: ["eval", name, "--data", daemon.text, "--max-tokens", rng.choice((40, 4000))],
                lambda: ["plan", "--model", rng.choice(("gpt-byte-1m", "gpt-byte-10m", "gpt2"))],
            ))()

        while time.monotonic() < until:
            argv = command()
            client = harness.Client(daemon.ctl_argv(argv), daemon.directory, daemon.environment(), {})
            if rng.random() < 0.3 or "attach" in argv or "--watch" in argv:
                time.sleep(rng.random() * 0.3)
                client.end()
                continue
            try:
                result = client.wait(30)
            except AssertionError as error:
                problems.append(str(error))
                return
            if result.rc not in (EXIT_DONE, EXIT_JOB_FAILED, EXIT_UNREACHABLE, EXIT_REFUSED):
                problems.append("%r: %r" % (argv, result))
            elif result.rc == EXIT_REFUSED and argv[0] == "plan":
                pass  # does not fit, and the plan says so
            elif result.rc != EXIT_DONE and not result.err.startswith("shardctl: "):
                problems.append("%r says nothing: %r" % (argv, result))
            elif result.rc == EXIT_UNREACHABLE and not ("deleted" in result.err or "cancelled" in result.err):
                problems.append("%r: %r" % (argv, result))

    def test_all_at_once(self):
        daemon = self.daemon("--max-jobs", "24", ranks=3)
        flags = ["--ranks", 2, "--strategy", "zero2", "--global-batch", 4]
        daemon.submit("calm", STEPS, *flags)
        daemon.wait_state("calm", "done")
        expected = [untimed(step) for step in daemon.history("calm")]
        daemon.ok("delete", "calm")
        fds = daemon.fds()

        daemon.submit("calm", STEPS, "--priority", 100, *flags)
        problems = []
        until = time.monotonic() + SECONDS
        users = [threading.Thread(target=self.user, args=(daemon, i, until, problems)) for i in range(USERS)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        self.assertEqual(problems, [], "\n".join(problems))
        for job in daemon.ok("--json", "jobs").lines:
            if job["name"] != "calm":
                daemon.ctl("cancel", job["id"])
                daemon.ok("delete", job["id"])
        daemon.wait_state("calm", "done")
        self.assertEqual([untimed(step) for step in daemon.history("calm")], expected)
        daemon.ok("delete", "calm")
        status = daemon.status()
        self.assertEqual([rank["memory"]["planned"] for rank in status["ranks"]], [0, 0, 0])
        self.assertEqual(status["jobs"], [])
        wait_for("one connection", lambda: daemon.status()["connections"] == 1)
        wait_for("%d descriptors, not %d" % (fds, daemon.fds()), lambda: daemon.fds() <= fds)


if __name__ == "__main__":
    harness.main()
