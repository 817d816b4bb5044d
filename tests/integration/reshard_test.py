"""A living job is cut otherwise, over another number of ranks: its losses go on as if nothing had happened."""

import time

import harness
from harness import EXIT_DONE, EXIT_REFUSED, count, untimed, wait_for

OWNER, OTHER, MATE, GROUP = 61001, 61002, 61003, 61001
BATCH = 12
STAGING = 2 << 20
# 40 steps: the strategies that follow the first one, and the step after which each comes.
START = ["--ranks", 4, "--strategy", "zero3"]
SWITCHES = {10: ["--strategy", "ddp", "--ranks", 2],
            20: ["--strategy", "hybrid_shard", "--shard-group", 2, "--ranks", 4],
            30: ["--strategy", "zero2", "--ranks", 3, "--determinism", "strategy"]}
SHAPES = {0: ([4, 4, 4, 4], 4), 10: ([1, 1, 1, 2], 2), 20: ([2, 2, 2, 4], 4), 30: ([1, 3, 3, 3], 3)}
WORLD = ["--determinism", "world", "--reduction-width", 4]


class Reshard(harness.TestCase):
    def reshard(self, daemon, name, *flags, **kwargs):
        return daemon.ok("--json", "reshard", name, *flags, **kwargs).json

    def status_of(self, daemon, name):
        return next(job for job in daemon.status()["jobs"] if job["name"] == name)

    def assertMemory(self, daemon, name, stepped):
        """Every rank holds what was planned, and after a step has held it."""
        for rank in self.status_of(daemon, name)["memory"]:
            for tag in rank["tags"].values():
                if stepped:
                    self.assertEqual(tag["peak"], tag["planned"], tag)
                self.assertLessEqual(tag["peak"], tag["planned"], tag)
            self.assertLessEqual(rank["total"]["peak"], rank["total"]["planned"])

    def drive(self, daemon, name, steps, switches):
        job = daemon.submit(name, steps, "--global-batch", BATCH, "--warmup", 2, "--lr", "3e-3", *START, *WORLD,
                            data=False)
        daemon.wait_state(name, "running")
        caller = daemon.caller()
        answers = []
        for step in range(1, steps + 1):
            answers.append(caller.ok("train", job=job["id"], seq=step, rows=BATCH, seed=step % 5))
            if step in switches:
                moved = self.reshard(daemon, name, *switches[step])
                degrees, ranks = SHAPES[step]
                self.assertEqual((moved["degrees"], len(moved["ranks"]), moved["step"]), (degrees, ranks, step))
                self.assertEqual(moved["state"], "running")
                shown = self.status_of(daemon, name)
                self.assertEqual(shown["degrees"], degrees)
                self.assertEqual(len(shown["memory"]), ranks)
                self.assertEqual(shown["determinism"], "strategy" if ranks == 3 else "world")
                self.assertMemory(daemon, name, stepped=False)
            elif step - 1 in switches:
                self.assertMemory(daemon, name, stepped=True)
        caller.end()
        return answers

    def test_forty_steps_over_four_strategies(self):
        daemon = self.daemon(ranks=4)
        steps = 40
        want = self.drive(daemon, "stays", steps, {})
        got = self.drive(daemon, "moves", steps, SWITCHES)
        self.assertLess(got[-1]["loss"], got[0]["loss"] - 0.3, "it learns")
        for step, (a, b) in enumerate(zip(want, got), 1):
            a, b = untimed(a), untimed(b)
            if step <= 30:
                self.assertEqual(a, b, "powers of two under the level world: the same bits")
            else:
                # Three ranks sum the same twelve leaves in another order. The bound is derived in
                # tests/train/reshard_test.cc.
                self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-4 * a["loss"])
                self.assertAlmostEqual(a["grad_norm"], b["grad_norm"], delta=1e-3 * a["grad_norm"])
                self.assertEqual((a["samples"], a["lr"], a["tokens"]), (b["samples"], b["lr"], b["tokens"]))
        self.assertEqual(want[30]["loss"], got[30]["loss"], "the first loss after the switch is of the same weights")
        # Whoever attaches sees the changes among the steps.
        daemon.wait_state("moves", "done")
        lines = daemon.ok("--json", "attach", "moves", "--from", 0).lines
        notes = [line for line in lines if "resharded" in line.get("reason", "")]
        self.assertEqual([note["step"] for note in notes], sorted(SWITCHES))
        self.assertTrue(all(note["state"] == "running" for note in notes))
        self.assertIn("to zero2 (1,3,3 of 3)", notes[2]["reason"])
        self.assertIn("resharded from", daemon.ok("logs", "moves").out)

    def test_every_strategy_of_one_world(self):
        """On its own data, paused and resumed anywhere: the same bits at the level strategy."""
        steps = count(600, 200, 60)
        daemon = self.daemon(ranks=4)
        flags = ["--ranks", 4, "--global-batch", 8, "--eval-every", steps // 2]
        daemon.submit("stays", steps, *flags)
        daemon.submit("moves", steps, *flags, "--strategy", "zero3")
        daemon.wait_state("moves", "running")
        for strategy in ("ddp", "zero1", "hpz", "zero2", "megatron", "shard_grad_op", "zero3"):
            more = ["--shard-group", 2] if strategy in ("hpz", "megatron") else []
            self.assertEqual(self.reshard(daemon, "moves", "--strategy", strategy, *more)["strategy"], strategy)
        for name in ("stays", "moves"):
            self.assertEqual(daemon.wait_state(name, "done", "failed")["state"], "done")
        want, got = ([untimed(step) for step in daemon.history(name)] for name in ("stays", "moves"))
        self.assertSteps(got, steps)
        self.assertEqual(want, got)
        # A job that is done serves its weights from fewer ranks.
        text = daemon.ok("generate", "stays", "--prompt", "a", "--max-tokens", 16, "--temperature", 0).out
        self.assertEqual(self.reshard(daemon, "moves", "--ranks", 1)["ranks"], [0])
        self.assertEqual(daemon.ok("generate", "moves", "--prompt", "a", "--max-tokens", 16, "--temperature", 0).out,
                         text)
        self.assertEqual(daemon.job("moves")["state"], "done")

    def test_a_paused_job_stays_paused(self):
        daemon = self.daemon(ranks=2)
        daemon.submit("p", 100000000, "--ranks", 2)
        daemon.wait_step("p", 1)
        at = daemon.ok("--json", "pause", "p").json["step"]
        moved = self.reshard(daemon, "p", "--ranks", 1, "--micro-batch", 2)
        self.assertEqual((moved["state"], moved["step"]), ("paused", at))
        self.assertEqual(self.status_of(daemon, "p")["accumulation"], 1)
        daemon.ok("resume", "p")
        daemon.wait_step("p", at + 2)

    def test_a_client_that_is_killed_changes_nothing(self):
        """The move happens whole or not at all, and the job goes on."""
        steps = count(400, 150, 50)
        daemon = self.daemon(ranks=2)
        daemon.submit("stays", steps, "--ranks", 2)
        daemon.submit("moves", steps, "--ranks", 2, "--strategy", "zero3")
        daemon.wait_state("moves", "running", "done")
        for i in range(count(40, 15, 4)):
            strategy = ("ddp", "zero1", "zero2", "zero3")[i % 4]
            client = daemon.spawn("--json", "reshard", "moves", "--strategy", strategy)
            time.sleep(0.002 * i)  # before, while and after the daemon knows of it
            client.kill()
            client.process.wait()
            # Asked again it is refused as long as the first is under way, and then done.
            wait_for("an end", lambda s=strategy: daemon.ctl("reshard", "moves", "--strategy", s).rc == EXIT_DONE)
            self.assertEqual(daemon.job("moves")["strategy"], strategy)
        for name in ("stays", "moves"):
            self.assertEqual(daemon.wait_state(name, "done", "failed")["state"], "done")
        self.assertEqual(*[[untimed(step) for step in daemon.history(name)] for name in ("stays", "moves")])

    def planned_by(self, daemon, strategy):
        """Bytes that a job takes of each of its two ranks."""
        daemon.submit("p", 1, "--ranks", 2, "--strategy", strategy)
        planned = daemon.status()["ranks"][0]["memory"]["planned"]
        daemon.wait_state("p", "done", "failed")
        daemon.ok("delete", "p")
        return planned

    def test_what_does_not_fit_is_refused_and_the_job_goes_on(self):
        """Old, new and staging must fit together: to the byte."""
        roomy = self.daemon(ranks=2)
        old, new = self.planned_by(roomy, "zero3"), self.planned_by(roomy, "ddp")
        want = None
        for budget, fits in ((old + new + STAGING - 1, False), (old + new + STAGING, True)):
            with self.subTest(fits=fits):
                daemon = self.daemon("--memory-per-rank", str(budget), ranks=2)
                daemon.submit("j", 30, "--ranks", 2, "--strategy", "zero3", "--global-batch", 4, data=False)
                daemon.wait_state("j", "running")
                caller = daemon.caller()
                steps = [caller.ok("train", job="j", seq=seq, rows=4) for seq in (1, 2)]
                result = daemon.ctl("reshard", "j", "--strategy", "ddp")
                if fits:
                    self.assertEqual(result.rc, EXIT_DONE, repr(result))
                else:
                    self.assertRefused(result, EXIT_REFUSED, "does not fit", new + STAGING, budget - old, budget,
                                       "goes on as it was")
                now = daemon.status()
                self.assertEqual([rank["memory"]["planned"] for rank in now["ranks"]], [new if fits else old] * 2)
                self.assertEqual(now["jobs"][0]["strategy"], "ddp" if fits else "zero3")
                steps += [caller.ok("train", job="j", seq=seq, rows=4) for seq in (3, 4)]
                want = want or [untimed(step) for step in steps]
                self.assertEqual([untimed(step) for step in steps], want)

    def test_refusals(self):
        daemon = self.daemon(ranks=4)
        daemon.submit("j", 0, "--ranks", 2, "--global-batch", 8, *WORLD, data=False)
        daemon.wait_state("j", "running")
        for flags, words in ((["--strategy", "zero4"], ["zero4"]),
                             (["--ranks", 9], ["--ranks 9"]),
                             (["--ranks", 3, "--determinism", "strategy"], ["--ranks 4", "--global-batch 8"]),
                             (["--micro-batch", 3], ["--micro-batch 3", "would do"]),
                             (["--shard-degrees", "2,1,2"], ["2"])):
            with self.subTest(flags=flags):
                self.assertRefused(daemon.ctl("reshard", "j", *flags), EXIT_REFUSED, *words)
        caller = daemon.caller()
        caller.ok("backward", job="j", seq=1, rows=4)
        self.assertRefused(daemon.ctl("reshard", "j", "--strategy", "ddp"), EXIT_REFUSED, "OptimStep")
        caller.ok("optim", job="j", seq=2)
        text = daemon.ok("reshard", "j", "--strategy", "ddp").out
        self.assertEqual(text, "j: ddp p,g,o 1,1,1 of 2 ranks from step 1 on\n")
        daemon.ok("cancel", "j")
        self.assertRefused(daemon.ctl("reshard", "j", "--strategy", "zero3"), EXIT_REFUSED, "cancelled")

    def test_generations_and_exports_meanwhile(self):
        daemon = self.daemon(ranks=2)
        daemon.submit("g", 0, "--ranks", 2, "--seq-len", 128, data=False)
        daemon.wait_state("g", "running")
        want = daemon.ok("generate", "g", "--prompt", "ab", "--max-tokens", 100, "--temperature", 1, "--seed", 3).out
        client = daemon.spawn("generate", "g", "--prompt", "ab", "--max-tokens", 100, "--temperature", 1, "--seed", 3)
        exports = []
        for i, strategy in enumerate(("ddp", "zero1", "zero3", "zero2", "zero3")):
            path = "%s/export%d" % (daemon.data, i)
            exports.append((path, daemon.spawn("export", "g", "--output", path)))
            self.reshard(daemon, "g", "--strategy", strategy, "--ranks", 1 + i % 2, "--micro-batch", 2 - i % 2)
        client.wait(60)
        with open(client.out_path, "rb") as file:
            self.assertEqual(file.read().decode("utf-8", "replace"), want)
        weights = set()
        for path, export in exports:
            self.assertEqual(export.wait(60).rc, EXIT_DONE)
            with open(path + "/model.safetensors", "rb") as file:
                weights.add(file.read())
        self.assertEqual(len(weights), 1, "the same weights, whoever held them")


class Access(harness.TestCase):
    def test_owner_alone(self):
        self.need_root()
        daemon = self.daemon("--share-with-group", "yes", ranks=2)
        daemon.submit("mine", 0, "--ranks", 2, data=False, uid=OWNER, gid=GROUP)
        wait_for("a job", lambda: daemon.find("mine", uid=OWNER)["state"] == "running")
        flags = ["reshard", "mine", "--strategy", "ddp"]
        self.assertRefused(daemon.ctl(*flags, uid=OTHER), EXIT_REFUSED, "no job 'mine'")
        self.assertRefused(daemon.ctl(*flags, uid=MATE, gid=GROUP), EXIT_REFUSED, "belongs to uid %d" % OWNER)
        self.assertEqual(daemon.find("mine", uid=OWNER)["strategy"], "zero3")
        self.assertEqual(daemon.ok("--json", *flags, uid=OWNER, gid=GROUP).json["strategy"], "ddp")


if __name__ == "__main__":
    harness.main()
