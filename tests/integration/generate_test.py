"""Text from the weights as they are, while training goes on."""

import os

import harness
from harness import EXIT_REFUSED, EXIT_USAGE, count, untimed

FOREVER = 100000000


class Generate(harness.TestCase):
    def finished(self, daemon, name="g", steps=None):
        daemon.submit(name, steps or count(60, 20, 10), "--lr", "3e-3")
        daemon.wait_state(name, "done")
        return name

    def tokens(self, daemon, *args, name="g"):
        return daemon.ok("--json", "generate", name, *args).lines

    def test_tokens_stream_while_training_goes_on(self):
        daemon = self.daemon()
        daemon.submit("g", FOREVER)
        daemon.wait_step("g", 2)
        client = daemon.spawn("--json", "generate", "g", "--prompt", "a", "--max-tokens", count(200, 40))
        # It streams: there are tokens before the end.
        harness.wait_for("some tokens", lambda: client.lines)
        result = client.wait(60)
        lines = result.lines
        self.assertEqual(len(lines), count(200, 40), repr(result))
        steps = [line["step"] for line in lines]
        self.assertEqual(steps, sorted(steps))
        self.assertGreater(steps[-1], steps[0] + 10, "training stood still while tokens were made")
        for line in lines:
            self.assertTrue(0 <= line["token"] < 256, line)
            self.assertLessEqual(line["logprob"], 0)
        step = daemon.job("g")["step"]
        daemon.wait_step("g", step + 3)

    def test_generation_changes_no_step(self):
        daemon = self.daemon()
        self.finished(daemon, "alone")
        daemon.submit("g", count(60, 20, 10), "--lr", "3e-3")
        talkers = [daemon.spawn("generate", "g", "--prompt", "a", "--max-tokens", 100) for _ in range(3)]
        daemon.wait_state("g", "done")
        for talker in talkers:
            self.assertEqual(talker.wait(60).rc, 0)
        self.assertEqual([untimed(step) for step in daemon.history("g")],
                         [untimed(step) for step in daemon.history("alone")])

    def test_same_seed_same_text(self):
        daemon = self.daemon()
        self.finished(daemon)
        one = daemon.ok("generate", "g", "--prompt", "the ", "--seed", 7, "--max-tokens", 60).out
        self.assertEqual(daemon.ok("generate", "g", "--prompt", "the ", "--seed", 7, "--max-tokens", 60).out, one)
        others = {daemon.ok("generate", "g", "--prompt", "the ", "--seed", seed, "--max-tokens", 60).out
                  for seed in range(5)}
        self.assertGreater(len(others), 3, "seeds give different text")
        # At once beside each other, too.
        clients = [daemon.spawn("generate", "g", "--prompt", "the ", "--seed", 7, "--max-tokens", 60) for _ in range(4)]
        for client in clients:
            self.assertEqual(client.wait().out, one)

    def test_temperature_0_is_the_likeliest(self):
        daemon = self.daemon()
        self.finished(daemon)
        the = ["generate", "g", "--prompt", "the ", "--max-tokens", 40]
        texts = {daemon.ok(*the, "--temperature", 0, "--seed", seed).out for seed in range(3)}
        self.assertEqual(len(texts), 1, "the seed has no part in it")
        self.assertEqual(daemon.ok(*the, "--top-k", 1).out, texts.pop())
        # Greedy tokens are at least as likely as any sampled one from the same prompt.
        best = self.tokens(daemon, "--prompt", "the ", "--temperature", 0, "--max-tokens", 1)[0]
        for seed in range(8):
            other = self.tokens(daemon, "--prompt", "the ", "--seed", seed, "--max-tokens", 1)[0]
            self.assertLessEqual(other["logprob"], best["logprob"] + 1e-6)

    def test_log_probabilities_are_those_of_forward(self):
        daemon = self.daemon()
        self.finished(daemon)
        made = self.tokens(daemon, "--prompt-tokens", "116,104,101", "--max-tokens", 5, "--temperature", "0.7")
        ids = [116, 104, 101] + [line["token"] for line in made]
        caller = daemon.caller()
        values = caller.ok("forward", job="g", tokens=",".join(map(str, ids)), logprobs=1)["logprobs"][0]
        for i, line in enumerate(made):
            self.assertAlmostEqual(values[2 + i], line["logprob"], places=4)

    def test_longer_than_the_sequence_length(self):
        daemon = self.daemon()
        self.finished(daemon)
        self.assertEqual(len(self.tokens(daemon, "--prompt", "x" * 100, "--max-tokens", 50)), 50)

    def test_trained_text_is_learnt(self):
        """A file of one sentence is known by heart soon: what is made shows what was trained."""
        daemon = self.daemon()
        path = os.path.join(daemon.data, "sentence")
        with open(path, "w", encoding="ascii") as file:
            file.write("abcdefghijklmnop" * 400)
        daemon.submit("g", 150, "--data", path, "--lr", "3e-3", "--micro-batch", 2)
        daemon.wait_state("g", "done")
        text = daemon.ok("generate", "g", "--prompt", "abcdefgh", "--temperature", 0, "--max-tokens", 16).out
        self.assertEqual(text, "ijklmnopabcdefgh")

    def test_every_strategy_makes_the_same_text(self):
        daemon = self.daemon()
        texts = set()
        for strategy in ("ddp", "zero1", "zero2", "zero3"):
            daemon.submit(strategy, count(30, 10, 5), "--strategy", strategy)
            daemon.wait_state(strategy, "done")
            texts.add(daemon.ok("generate", strategy, "--prompt", "a", "--max-tokens", 40, "--seed", 3).out)
        self.assertEqual(len(texts), 1)

    def test_bad_requests(self):
        daemon = self.daemon()
        self.finished(daemon, steps=2)
        for args, rc, word in (
                (["--prompt", "a", "--max-tokens", 0], EXIT_USAGE, "--max-tokens"),
                (["--prompt", "a", "--max-tokens", 100001], EXIT_REFUSED, "100001"),
                (["--prompt", "a", "--top-p", 1.5], EXIT_USAGE, "--top-p"),
                (["--prompt", "a", "--temperature", "nan"], EXIT_USAGE, "--temperature"),
                (["--prompt", ""], EXIT_USAGE, "--prompt"),
                (["--prompt", "a", "--prompt-tokens", "1"], EXIT_USAGE, "--prompt-tokens"),
                (["--prompt-tokens", "300"], EXIT_USAGE, "300"),
        ):
            with self.subTest(args=args):
                self.assertRefused(daemon.ctl("generate", "g", *args), rc, word)
        self.assertServes(daemon)


if __name__ == "__main__":
    harness.main()
