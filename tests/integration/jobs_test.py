"""Several jobs at once: they share the ranks, pause, resume, are cancelled and deleted, and fail alone."""

import harness
from harness import EXIT_JOB_FAILED, EXIT_REFUSED, count, untimed

FOREVER = 100000000


def tag_bytes(status, name, what):
    """The sum of a figure over tags and ranks of a job."""
    job = [job for job in status["jobs"] if job["name"] == name][0]
    return sum(figure[what] for rank in job["memory"] for figure in rank["tags"].values())


class Sharing(harness.TestCase):
    def test_equal_jobs_progress_alike(self):
        daemon = self.daemon()
        names = ["a", "b", "c"]
        for name in names:
            daemon.submit(name, FOREVER)
        for name in names:
            daemon.wait_step(name, 1)
        start = {name: daemon.job(name)["step"] for name in names}
        daemon.wait_step("a", start["a"] + count(150, 40, 30))
        taken = [daemon.job(name)["step"] - start[name] for name in names]
        self.assertGreater(min(taken), 0.7 * max(taken), taken)

    def test_priority_gives_steps(self):
        daemon = self.daemon()
        daemon.submit("low", FOREVER, "--priority", 10)
        daemon.submit("high", FOREVER, "--priority", 30)
        for name in ("low", "high"):
            daemon.wait_step(name, 1)
        low, high = daemon.job("low")["step"], daemon.job("high")["step"]
        daemon.wait_step("low", low + count(100, 40, 20))
        jobs = {job["name"]: job["step"] for job in daemon.ok("--json", "jobs").lines}
        ratio = (jobs["high"] - high) / (jobs["low"] - low)
        self.assertGreater(ratio, 2.2, "3 is due")
        self.assertLess(ratio, 3.8, "3 is due")

    def test_jobs_on_different_ranks(self):
        """Jobs that need fewer ranks than there are spread over them."""
        daemon = self.daemon(ranks=4)
        names = ["j%d" % i for i in range(4)]
        for name in names:
            daemon.submit(name, FOREVER, "--ranks", 1)
        used = [daemon.job(name)["ranks"] for name in names]
        self.assertEqual(sorted(used), [[0], [1], [2], [3]])
        daemon.submit("wide", FOREVER, "--ranks", 4)
        for name in names + ["wide"]:
            daemon.wait_step(name, 3)

    def test_sharing_changes_no_number(self):
        daemon = self.daemon()
        steps = count(60, 25, 12)
        daemon.submit("alone", steps)
        daemon.wait_state("alone", "done")
        for name, priority in (("x", 10), ("y", 30), ("z", 1)):
            daemon.submit(name, steps, "--priority", priority)
        daemon.submit("other", FOREVER, "--seed", 5)
        alone = [untimed(step) for step in daemon.history("alone")]
        for name in ("x", "y", "z"):
            daemon.wait_state(name, "done")
            self.assertEqual([untimed(step) for step in daemon.history(name)], alone)


class Life(harness.TestCase):
    def test_pause_and_resume(self):
        daemon = self.daemon()
        steps = count(300, 80, 50)
        daemon.submit("p", steps)
        daemon.submit("other", FOREVER)
        daemon.wait_step("p", 5)
        paused = daemon.ok("--json", "pause", "p").json
        self.assertEqual(paused["state"], "paused")
        self.assertLess(paused["step"], steps)
        # The other job takes many steps; this one none, not even one that was under way.
        daemon.wait_step("other", daemon.job("other")["step"] + count(80, 30, 15))
        self.assertEqual(daemon.job("p")["step"], paused["step"])
        self.assertEqual(daemon.ok("--json", "pause", "p").json["state"], "paused")
        # What is paused still answers.
        self.assertEqual(len(daemon.ok("--json", "generate", "p", "--prompt", "a", "--max-tokens", 5).lines), 5)
        self.assertEqual(daemon.ok("--json", "resume", "p").json["state"], "running")
        daemon.wait_state("p", "done")
        lines = daemon.ok("--json", "attach", "p", "--from", 0).lines
        self.assertSteps(harness.steps_of(lines), steps)
        states = [line["state"] for line in lines if "state" in line]
        self.assertEqual(states, ["queued", "running", "paused", "running", "done"])
        daemon.ok("cancel", "other")

    def test_pause_changes_no_number(self):
        daemon = self.daemon()
        steps = count(120, 40, 25)
        daemon.submit("straight", steps)
        daemon.wait_state("straight", "done")
        daemon.submit("halting", steps)
        for at in (5, 10, 20):
            daemon.wait_step("halting", at)
            daemon.ctl("pause", "halting")
            daemon.ctl("resume", "halting")
        daemon.wait_state("halting", "done")
        self.assertEqual([untimed(step) for step in daemon.history("halting")],
                         [untimed(step) for step in daemon.history("straight")])

    def test_cancel_frees_memory(self):
        daemon = self.daemon()
        daemon.submit("c", FOREVER)
        daemon.wait_step("c", 2)
        status = daemon.status()
        self.assertGreater(tag_bytes(status, "c", "now"), 0)
        self.assertTrue(all(rank["memory"]["planned"] > 0 for rank in status["ranks"]))
        watcher = daemon.spawn("--json", "attach", "c", "--from", 1)
        harness.wait_for("a watcher", lambda: watcher.lines)
        self.assertEqual(daemon.ok("--json", "cancel", "c").json["state"], "cancelled")
        result = watcher.wait()
        self.assertEqual(result.rc, EXIT_JOB_FAILED, repr(result))
        self.assertEqual(result.lines[-1]["state"], "cancelled")
        status = daemon.status()
        self.assertEqual(tag_bytes(status, "c", "now"), 0)
        self.assertEqual([rank["memory"]["planned"] for rank in status["ranks"]], [0, 0])
        for command in (["pause", "c"], ["resume", "c"], ["generate", "c", "--prompt", "a"]):
            self.assertRefused(daemon.ctl(*command), EXIT_REFUSED, "cancelled")
        # Twice is once.
        self.assertEqual(daemon.ok("--json", "cancel", "c").json["state"], "cancelled")
        self.assertSteps(daemon.ctl("--json", "attach", "c", "--from", 1).steps, daemon.job("c")["step"])

    def test_delete(self):
        daemon = self.daemon()
        made = daemon.submit("d", FOREVER)
        daemon.wait_step("d", 1)
        self.assertRefused(daemon.ctl("delete", "d"), EXIT_REFUSED, "running", "cancel")
        daemon.ok("cancel", "d")
        daemon.ok("delete", "d")
        self.assertEqual(daemon.ok("--json", "jobs").lines, [])
        for ref in ("d", made["id"]):
            self.assertRefused(daemon.ctl("attach", ref), EXIT_REFUSED, ref)
        # A job that is done holds its weights until it is deleted.
        daemon.submit("d", 3)
        daemon.wait_state("d", "done")
        self.assertGreater(daemon.status()["ranks"][0]["memory"]["planned"], 0)
        self.assertRefused(daemon.ctl("cancel", "d"), EXIT_REFUSED, "done")
        daemon.ok("generate", "d", "--prompt", "a", "--max-tokens", 2)
        daemon.ok("delete", "d")
        self.assertEqual(daemon.status()["ranks"][0]["memory"]["planned"], 0)

    def test_delete_ends_the_watchers(self):
        daemon = self.daemon()
        daemon.submit("d", 5)
        daemon.wait_state("d", "done")
        caller = daemon.caller()
        generating = daemon.spawn("--json", "generate", "d", "--prompt", "a", "--max-tokens", 100000)
        harness.wait_for("tokens", lambda: len(generating.lines) > 2)
        daemon.ok("delete", "d")
        self.assertRefused(generating.wait(), harness.EXIT_JOB_FAILED, "deleted")
        self.assertEqual(caller("get", job="d")["status"], 5)

    def test_many_jobs_come_and_go(self):
        """Memory of a hundred jobs is given back."""
        daemon = self.daemon()
        resident = 0
        rounds = count(100, 24, 8)
        for i in range(rounds):
            daemon.submit("j", 2, "--strategy", ("ddp", "zero1", "zero2", "zero3")[i % 4])
            if i % 3:
                daemon.wait_state("j", "done")
            else:
                daemon.ctl("cancel", "j")
            daemon.ok("delete", "j")
            if i == rounds // 4:
                resident = daemon.resident()
        self.assertEqual([rank["memory"]["planned"] for rank in daemon.status()["ranks"]], [0, 0])
        if not harness.SANITIZER:
            self.assertLess(daemon.resident() - resident, 8 << 20)

    def test_creation_is_idempotent_by_request_id(self):
        daemon = self.daemon()
        callers = [daemon.caller() for _ in range(6)]
        for caller in callers:
            caller.send("create", request="r-1", name="once", steps=2, data=daemon.text, seq_len=16, micro_batch=1)
        answers = [caller.receive() for caller in callers]
        self.assertTrue(all(answer["ok"] for answer in answers), answers)
        self.assertEqual(len({answer["id"] for answer in answers}), 1)
        self.assertEqual(len(daemon.ok("--json", "jobs").lines), 1)
        daemon.wait_state("once", "done")
        again = callers[0].ok("create", request="r-1", name="once", steps=2)
        self.assertEqual((again["id"], again["state"]), (answers[0]["id"], "done"))
        # Without an id each request is a job of its own; a name is taken once.
        self.assertFalse(callers[0]("create", name="once", steps=2)["ok"])
        self.assertNotEqual(callers[0].ok("create", steps=2)["id"], callers[0].ok("create", steps=2)["id"])
        daemon.ok("delete", "once")
        gone = callers[0]("create", request="r-1", steps=2)
        self.assertEqual(gone["status"], 5, gone)
        self.assertIn("deleted", gone["message"])

    def test_list_and_names(self):
        daemon = self.daemon()
        first = daemon.submit("alpha", 3)
        unnamed = daemon.ok("--json", "submit", "--detach", *daemon.tiny("", 3)[2:]).json
        self.assertEqual(unnamed["name"], unnamed["id"])
        jobs = daemon.ok("--json", "jobs").lines
        self.assertEqual([job["id"] for job in jobs], [first["id"], unnamed["id"]], "the oldest first")
        self.assertEqual(daemon.job(first["id"])["name"], "alpha")
        daemon.wait_state("alpha", "done")
        table = daemon.ok("jobs").out.splitlines()
        self.assertEqual(table[0].split(), ["ID", "NAME", "OWNER", "STATE", "STEP", "LOSS", "STRATEGY", "RANKS", "AGE"])
        self.assertEqual(table[1].split()[:2] + table[1].split()[3:5], [first["id"], "alpha", "done", "3/3"])

    def test_limit_of_jobs(self):
        daemon = self.daemon("--max-jobs", "2")
        daemon.submit("a", 2)
        daemon.submit("b", 2)
        self.assertRefused(daemon.ctl("submit", *daemon.tiny("c", 2)), EXIT_REFUSED, "2 jobs", "max_jobs")
        daemon.wait_state("a", "done")
        daemon.ok("delete", "a")
        daemon.submit("c", 2)


class Failure(harness.TestCase):
    def test_numbers_that_end_end_the_job_alone(self):
        """Weight decay that blows the weights up: steps are skipped, then the job fails and says why."""
        daemon = self.daemon()
        steps = count(300, 100, 40)
        daemon.submit("bystander", steps)
        result = daemon.ctl("--json", "submit", *daemon.tiny("wild", FOREVER, "--lr", 100, "--weight-decay", 100,
                                                             "--schedule", "constant"), seconds=60)
        self.assertEqual(result.rc, EXIT_JOB_FAILED, repr(result))
        taken = result.steps
        self.assertSteps(taken, len(taken))
        skipped = [step["skipped"] for step in taken]
        self.assertEqual(skipped, sorted(skipped), "a step of finite numbers follows one without")
        self.assertGreater(sum(skipped), 1)
        self.assertFalse(skipped[0])
        self.assertIn("not finite", result.lines[-1]["reason"])
        text = daemon.ctl("attach", "wild", "--from", 1)
        self.assertEqual(text.rc, EXIT_JOB_FAILED)
        self.assertIn("not finite", text.out)
        failed = daemon.job("wild")
        self.assertEqual(failed["state"], "failed")
        self.assertIn("not finite", failed["reason"])
        self.assertIn("learning rate", failed["reason"])
        self.assertEqual(tag_bytes(daemon.status(), "wild", "now"), 0)
        self.assertRefused(daemon.ctl("generate", "wild", "--prompt", "a"), EXIT_REFUSED, "failed", "not finite")
        daemon.wait_state("bystander", "done")
        self.assertSteps(daemon.history("bystander"), steps)
        daemon.ok("delete", "wild")


if __name__ == "__main__":
    harness.main()
