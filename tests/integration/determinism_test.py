"""The same job gives the same bits: again, under every strategy, in another daemon, with other threads, beside
other jobs."""

import harness
from harness import count, untimed

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "no_shard", "full_shard", "shard_grad_op")
GROUPED = ("hybrid_shard", "hybrid_shard_zero2", "mics", "hpz", "megatron")


class Determinism(harness.TestCase):
    def lines(self, daemon, name):
        """The job's JSON lines without the figures of clocks, as text."""
        lines = daemon.ok("--json", "attach", name, "--from", 0).lines
        for line in lines:
            line.pop("ms", None)
        return [repr(untimed(line)) for line in lines]

    def run_job(self, daemon, name, *flags):
        steps = count(30, 12, 4)
        daemon.submit(name, steps, "--eval-every", steps // 2, "--warmup", 3, "--lr", "1e-3", *flags)
        self.assertEqual(daemon.wait_state(name, "done", "failed")["state"], "done")
        lines = self.lines(daemon, name)
        self.assertGreater(len(lines), steps)
        return lines

    def test_strategies_worlds_and_repetition(self):
        daemon = self.daemon(ranks=4)
        for ranks in count((1, 2, 3, 4), (1, 2, 3, 4), (2, 3)):
            for accumulation in count((1, 4), (1, 4), (2,)):
                shape = ["--ranks", ranks, "--global-batch", ranks * accumulation, "--clip", "0.5"]
                expected = None
                grouped = GROUPED if ranks % 4 == 0 and accumulation > 1 else ()
                for strategy in STRATEGIES + grouped + STRATEGIES[:1]:
                    with self.subTest(ranks=ranks, accumulation=accumulation, strategy=strategy):
                        group = ["--shard-group", 2] if strategy in grouped else []
                        lines = self.run_job(daemon, "d", "--strategy", strategy, *group, *shape)
                        expected = expected or lines
                        self.assertEqual(lines, expected)
                        daemon.ok("delete", "d")

    def test_threads_other_daemons_and_company(self):
        expected = self.run_job(self.daemon(), "d", "--ranks", 2)
        for threads in (2, 3):
            self.assertEqual(self.run_job(self.daemon(threads=threads), "d", "--ranks", 2), expected)
        crowded = self.daemon(ranks=3)
        for i in range(3):
            crowded.submit("noise%d" % i, 100000000, "--seed", i + 2, "--ranks", i % 3 + 1)
        self.assertEqual(self.run_job(crowded, "d", "--ranks", 2), expected)

    def test_how_movement_lies_beside_compute(self):
        shape = ["--ranks", 2, "--global-batch", 4]
        expected = self.run_job(self.daemon(), "d", "--overlap", "off", "--prefetch", 0, *shape)
        for threads in ("yes", "no"):
            daemon = self.daemon("--stream-threads", threads)
            for flags in (["--prefetch", 2, "--bucket-bytes", "1M"],
                          ["--reshard-after-forward", "no", "--persist-below", 1000],
                          ["--max-gathered", 2, "--activation-checkpointing", "full"]):
                with self.subTest(threads=threads, flags=flags):
                    self.assertEqual(self.run_job(daemon, "d", *flags, *shape), expected)
                    daemon.ok("delete", "d")

    def test_the_seed_matters(self):
        daemon = self.daemon()
        self.assertNotEqual(self.run_job(daemon, "a", "--seed", 1), self.run_job(daemon, "b", "--seed", 2))

    def test_held_out_loss_is_the_same_for_every_strategy(self):
        daemon = self.daemon()
        losses = set()
        for strategy in ("ddp", "zero3"):
            self.run_job(daemon, strategy, "--strategy", strategy)
            losses.add(daemon.evaluate(strategy, daemon.text, "--max-tokens", 640)["loss"])
        self.assertEqual(len(losses), 1)


if __name__ == "__main__":
    harness.main()
