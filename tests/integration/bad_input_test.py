"""Bad input gets a clear error each; the daemon stays up, and a job that runs meanwhile takes all its steps."""

import os
import re
import struct

import harness
from harness import EXIT_DONE, EXIT_JOB_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE

MEMORY = 64 << 20  # of a rank; three jobs of 1m parameters fit


class BadInput(harness.BystanderCase):
    def submit(self, *flags, data=True):
        return self.d.ctl("submit", *self.d.tiny("bad", 5, *flags, data=data))

    def refused(self, flags, rc, *words, data=True):
        with self.subTest(flags=flags):
            self.assertRefused(self.submit(*flags, data=data), rc, *words)

    def file(self, name, content):
        path = os.path.join(self.d.data, name)
        with open(path, "wb") as file:
            file.write(content)
        return path


class Flags(BadInput):
    def test_usage(self):
        for args, words in (
                (["submit", "--modle", "gpt-byte-1m"], ["--modle", "--model"]),
                (["submit"], ["--model"]),
                (["submit", "--model"], ["--model"]),
                (["frobnicate"], ["frobnicate", "--help"]),
                ([], ["command", "--help"]),
                (["--jsn", "jobs"], ["--jsn"]),
                (["submit", "--model", "gpt-byte-1m", "--steps", "many"], ["--steps", "many"]),
                (["submit", "--model", "gpt-byte-1m", "--steps", "-5"], ["--steps", "-5"]),
                (["submit", "--model", "gpt-byte-1m", "--steps", "18446744073709551616"], ["--steps"]),
                (["submit", "--model", "gpt-byte-1m", "--lr", "nan"], ["--lr", "nan"]),
                (["submit", "--model", "gpt-byte-1m", "--micro-batch", "0"], ["--micro-batch", "0"]),
                (["submit", "--model", "gpt-byte-1m", "--micro-batch", "4294967296"], ["--micro-batch"]),
                (["submit", "--model", "gpt-byte-1m", "--global-batch", "-8"], ["--global-batch", "-8"]),
                (["submit", "--model", "gpt-byte-1m", "--seq-len", "0"], ["--seq-len", "0"]),
                (["submit", "--model", "gpt-byte-1m", "--ranks", "0"], ["--ranks", "0"]),
                (["submit", "--model", "gpt-byte-1m", "--priority", "101"], ["--priority", "101"]),
                (["submit", "--model", "gpt-byte-1m", "--shard-degrees", "1,2,3,4"], ["--shard-degrees"]),
                (["submit", "--model", "gpt-byte-1m", "--file", "/nonexistent.json"], ["/nonexistent.json"]),
                (["attach"], ["JOB"]),
                (["attach", "bystander", "more"], ["more"]),
                (["attach", "bystander", "--from", "x"], ["--from", "x"]),
                (["generate", "bystander"], ["--prompt"]),
                (["generate", "bystander", "--prompt-tokens", "1,256"], ["256"]),
                (["generate", "bystander", "--prompt", "a", "--temperature", "-1"], ["--temperature", "-1"]),
        ):
            with self.subTest(args=args):
                self.assertRefused(self.d.ctl(*args), EXIT_USAGE, *words)

    def test_values_that_the_daemon_refuses(self):
        for flags, words in (
                (["--model", "gpt-5"], ["gpt-5", "gpt-byte-1m"]),
                (["--strategy", "zero9"], ["zero9", "zero3"]),
                (["--ranks", 3], ["--ranks", "3", "2"]),
                (["--seq-len", 257], ["--seq-len", "257", "256"]),
                (["--global-batch", 7], ["--global-batch 7", "8"]),
                (["--global-batch", 1], ["--global-batch", "1"]),
                (["--lr", 1e9], ["--lr", "1e+09"]),
                (["--clip", 1e38], ["--clip"]),
                (["--beta1", 1], ["--beta1", "1"]),
                (["--eval-every", 5, "--eval-split", 0], ["--eval-every"]),
                (["--warmup", 6], ["--warmup", "6", "5"]),
                (["--shard-degrees", "2,1,1"], ["2,1,1"]),
                (["--shard-degrees", "3,3,3"], ["3"]),
                (["--strategy", "zero1", "--shard-degrees", "2,2,2"], ["zero1", "1,1,2", "2,2,2"]),
                (["--strategy", "hybrid_shard", "--shard-group", 3], ["--shard-group 3", "1 to 2"]),
                (["--strategy", "zero3", "--shard-group", 2], ["--shard-group 2", "no effect"]),
                (["--shard-group", 2], ["--shard-group 2", "hybrid_shard"]),
                (["--reshard-after-forward", 3], ["--reshard-after-forward 3", "1 or 2"]),
                (["--reshard-after-forward", "never"], ["--reshard-after-forward 'never'", "yes"]),
                (["--strategy", "ddp", "--reshard-after-forward", "no"], ["no effect", "P = 1"]),
                (["--strategy", "shard_grad_op", "--reshard-after-forward", "yes"], ["contradicts", "full_shard"]),
                (["--reshard-after-forward", "no", "--max-gathered", 4], ["--max-gathered 4"]),
                (["--determinism", "exact"], ["--determinism 'exact'", "world"]),
                (["--determinism", "world", "--reduction-width", 3], ["--reduction-width 3", "power of two"]),
                (["--schedule", "exotic"], ["exotic"]),
                (["--data-format", "parquet"], ["parquet", "llmc"]),
                (["--dtype", "fp8"], ["--dtype", "fp8", "fp32"]),
                (["--offload-params", "nvme"], ["--offload-params", "nvme"]),
                (["--checkpoint-every", 3], ["--checkpoint-every"]),
                (["--reduction-width", 8], ["--reduction-width 8", "--determinism world"]),
                (["--name", "no spaces"], ["no spaces"]),
                (["--name", "x" * 65], ["65", "64"]),
                (["--name", "bystander"], ["bystander", "taken"]),
        ):
            flags = [str(flag) for flag in flags]
            argv = self.d.tiny("bad", 5, *flags)
            if "--name" in flags:
                argv = argv[2:]
            if "--model" in flags:
                at = argv.index("--model")
                del argv[at:at + 2]
            with self.subTest(flags=flags):
                self.assertRefused(self.d.ctl("submit", *argv), EXIT_REFUSED, *words)
        result = self.d.ctl("submit", "--model", "gpt-byte-1m", "--data", self.d.text, "--steps", 0)
        self.assertRefused(result, EXIT_REFUSED, "--steps", "0")

    def test_job_file(self):
        for content, words in (
                ('{"model": "gpt-byte-1m",\n "stepz": 3}', [":2:", "stepz"]),
                ('{"model": "gpt-byte-1m",\n "steps": "many"}', [":2:", "steps"]),
                ('{"model": \n', [":"]),
                ("[1, 2]", ["object"]),
                ('{"steps": -1, "model": "gpt-byte-1m"}', ["steps", "-1"]),
                ('{"steps": 1, "steps": 2}', ["steps"]),
        ):
            with self.subTest(content=content):
                path = self.file("job.json", content.encode())
                self.assertRefused(self.d.ctl("submit", "--file", path), EXIT_USAGE, *words)

    def test_calls_on_a_job_that_is_not_there(self):
        for command in (["attach", "nosuch"], ["pause", "nosuch"], ["resume", "nosuch"], ["cancel", "nosuch"],
                        ["delete", "nosuch"], ["generate", "nosuch", "--prompt", "a"],
                        ["reshard", "nosuch", "--strategy", "ddp"]):
            with self.subTest(command=command):
                self.assertRefused(self.d.ctl(*command), EXIT_REFUSED, "nosuch")

    def test_what_this_version_lacks_says_so(self):
        self.assertRefused(self.d.ctl("checkpoint", "bystander"), EXIT_REFUSED, "checkpoint")

    def test_no_daemon(self):
        argv = [self.d.binary("shardctl"), "--socket", os.path.join(self.d.directory, "nobody.sock"), "jobs"]
        client = harness.Client(argv, self.d.directory, self.d.environment(), {})
        self.assertRefused(client.wait(), EXIT_UNREACHABLE, "nobody.sock")


class Files(BadInput):
    def test_missing_empty_unreadable(self):
        self.need_root()
        missing = os.path.join(self.d.data, "missing")
        empty, short = self.file("empty", b""), self.file("short", b"abc")
        secret = self.file("secret", b"x" * 5000)
        os.chmod(secret, 0o600)
        # The client looks first; the daemon does not rely on it.
        self.refused(["--data", missing], EXIT_USAGE, missing, "No such file")
        self.refused(["--data", empty], EXIT_USAGE, empty, "empty")
        self.refused(["--data", short], EXIT_REFUSED, short, "3 tokens", "17")
        result = self.d.ctl("submit", *self.d.tiny("bad", 5, "--data", secret), uid=61002)
        self.assertRefused(result, EXIT_USAGE, secret, "Permission denied")
        for uid, path, status, words in ((0, missing, 5, ["does not exist"]), (0, empty, 3, ["empty"]),
                                         (0, short, 3, ["3 tokens"]), (61002, secret, 7, ["61002"])):
            with self.subTest(path=path):
                answer = self.d.caller(uid=uid)("create", name="bad", data=path, seq_len=16, micro_batch=1)
                self.assertEqual(answer.get("status"), status, answer)
                for word in words + [path]:
                    self.assertIn(word, answer["message"])

    def test_token_ids_beyond_the_vocabulary(self):
        """The file is read as the job starts: the job fails and says which token stands where."""
        tokens = [token % 256 for token in range(4000)]
        tokens[1234] = 50256
        nanogpt = self.file("big.bin", struct.pack("<4000H", *tokens))
        result = self.submit("--data", nanogpt)
        self.assertEqual(result.rc, EXIT_JOB_FAILED, repr(result))
        job = self.d.job("bad")
        self.assertEqual((job["state"], job["step"]), ("failed", 0))
        for word in ("50256", "1234", "256", nanogpt):
            self.assertIn(word, job["reason"])
        self.d.ok("delete", "bad")

        header = [20240520, 1, 4000] + [0] * 253
        llmc = self.file("llmc.bin", struct.pack("<256i", *header) + struct.pack("<4000H", *tokens))
        result = self.submit("--data", llmc)
        self.assertEqual(result.rc, EXIT_JOB_FAILED, repr(result))
        self.assertIn("50256", self.d.job("bad")["reason"])
        self.d.ok("delete", "bad")

    def test_headers_that_lie(self):
        body = struct.pack("<4000H", *[1] * 4000)

        def llmc(*first):
            return struct.pack("<256i", *(list(first) + [0] * (256 - len(first))))

        for name, content, words in (
                ("more", llmc(20240520, 1, 5000) + body, ["5000", "8000"]),
                ("fewer", llmc(20240520, 1, 3999) + body, ["3999"]),
                ("negative", llmc(20240520, 1, -4000) + body, ["-4000"]),
                ("huge", llmc(20240520, 1, 2147483647) + body, ["2147483647"]),
                ("version", llmc(20240520, 9, 4000) + body, ["version 9"]),
                ("wide", llmc(20240801, 7, 4000) + body, ["4000", "4 bytes"]),
                ("cut", llmc(20240520, 1, 4000)[:512], ["512", "1024"]),
        ):
            path = self.file(name + ".bin", content)
            self.refused(["--data", path], EXIT_REFUSED, path, *words)
        path = self.file("text.bin", b"no header at all" * 100)
        self.refused(["--data", path, "--data-format", "llmc"], EXIT_REFUSED, path, "llm.c")
        path = self.file("odd.bin", b"x" * 4001)
        self.refused(["--data", path], EXIT_REFUSED, path, "odd")

    def changed(self, change):
        """A job whose file changes while it runs fails with the reason, without what follows the change."""
        path = harness.write_text(os.path.join(self.d.data, "moving"), 200000)
        self.d.submit("bad", 100000000, "--data", path)
        self.d.wait_step("bad", 3)
        change(path)
        job = self.d.wait_state("bad", "failed")
        self.assertIn(path, job["reason"])
        self.assertIn("changed", job["reason"])
        result = self.d.ctl("--json", "attach", "bad", "--from", 1)
        self.assertEqual(result.rc, EXIT_JOB_FAILED, repr(result))
        self.assertSteps(result.steps, job["step"])
        self.assertIn("changed", result.lines[-1]["reason"])
        self.d.ok("delete", "bad")

    def test_data_cut_while_the_job_runs(self):
        self.changed(lambda path: os.truncate(path, 100))

    def test_data_rewritten_while_the_job_runs(self):
        self.changed(lambda path: harness.write_text(path, 200000, seed=8))

    def test_data_removed_while_the_job_runs(self):
        """The daemon holds the file open, so a name that goes changes nothing."""
        path = harness.write_text(os.path.join(self.d.data, "gone"), 20000)
        self.d.submit("bad", 40, "--data", path)
        os.unlink(path)
        self.assertEqual(self.d.wait_state("bad", "done", "failed")["state"], "done")
        self.d.ok("delete", "bad")


class Batches(BadInput):
    """What clients send through the calls."""

    flags = ("--max-message", "64K", "--max-queue", "4")

    def setUp(self):
        super().setUp()
        self.caller = self.d.caller()
        self.job = self.caller.ok("create", name="driven", steps=0, seq_len=32, micro_batch=1, ranks=2)["id"]

    def tearDown(self):
        self.d.ok("cancel", "driven")
        self.d.ok("delete", "driven")
        super().tearDown()

    def fails(self, verb, status, *words, **values):
        with self.subTest(verb=verb, values=values):
            answer = self.caller(verb, **dict({"job": self.job, "seq": 1}, **values))
            self.assertFalse(answer["ok"], answer)
            self.assertEqual(answer["status"], status, answer)
            for word in words:
                self.assertIn(str(word), answer["message"])

    def test_batches(self):
        invalid = 3
        for verb in ("train", "backward", "forward"):
            self.fails(verb, invalid, "256", tokens="1,2,256")
            self.fails(verb, invalid, "-1", tokens="1,-1,3")
            self.fails(verb, invalid, "999", tokens="1,2,3", targets="1,2,999")
            self.fails(verb, invalid, tokens="1,2,3", targets="1,2")
            self.fails(verb, invalid, "33", "32", rows=1, len=33)
            self.fails(verb, invalid, rows=0)
            self.fails(verb, invalid, rows=1, len=0)
        self.fails("train", invalid, "lr", rows=1, lr="nan")
        self.fails("train", invalid, "clip", rows=1, clip="-1")
        self.fails("backward", 12, "mse", rows=1, loss="mse")
        # None of them took the number.
        self.assertEqual(self.caller.ok("train", job=self.job, seq=1, rows=2)["step"], 1)

    def test_message_over_the_limit(self):
        answer = self.caller("train", job=self.job, seq=1, rows=8000, len=32)
        self.assertFalse(answer["ok"])
        self.assertEqual(answer["status"], 8, answer)  # RESOURCE_EXHAUSTED
        self.assertIn("65536", answer["message"])
        self.assertIn("max_message", answer["message"])
        self.assertEqual(self.caller.ok("train", job=self.job, seq=1, rows=2)["step"], 1)

    def test_full_queue(self):
        self.caller.ok("train", job=self.job, seq=1, rows=2)
        self.d.ok("pause", "driven")
        waiting = [self.d.caller() for _ in range(4)]
        for i, caller in enumerate(waiting):
            caller.send("train", job=self.job, seq=2 + i, rows=2, seed=i)
            harness.wait_for("call %d in the queue" % i, lambda: self.caller("get", job=self.job)["next_seq"] == 3 + i)
        self.fails("train", 8, "queue full", "4", "max_queue", seq=6, rows=2)
        self.assertServes(self.d)
        queued = [job["queued"] for job in self.d.status()["jobs"] if job["name"] == "driven"]
        self.assertEqual(queued, [4])
        self.d.ok("resume", "driven")
        answers = [caller.receive() for caller in waiting]
        self.assertEqual([answer.get("step") for answer in answers], [2, 3, 4, 5])
        self.assertEqual(self.caller.ok("train", job=self.job, seq=6, rows=2)["step"], 6)

    def test_data_job_takes_no_batches(self):
        answer = self.caller("train", job="bystander", seq=1, rows=2)
        self.assertEqual(answer["status"], 9, answer)
        self.assertIn(self.d.text, answer["message"])


class Admission(BadInput):
    """What does not fit is refused with the numbers, and what is proposed fits."""

    flags = ("--memory-per-rank", str(MEMORY))

    def setUp(self):
        super().setUp()
        self.assertEqual(self.d.status()["ranks"][0]["budget"]["planned"], MEMORY)

    def check_proposals(self, text, flags):
        proposals = re.search(r"would fit:(.*)$", text).group(1).split(",")
        self.assertGreater(len(proposals), 0)
        for proposal in proposals:
            change = re.sub(r"\(.*?\)", "", proposal).split()
            self.assertTrue(change and change[0].startswith("--"), proposal)
            merged = dict(zip(flags[::2], flags[1::2]))
            merged.update(zip(change[::2], change[1::2]))
            argv = [word for pair in merged.items() for word in pair]
            with self.subTest(proposal=proposal):
                plan = self.d.ctl("--json", "plan", *argv)
                self.assertEqual(plan.rc, EXIT_DONE, repr(plan))
                self.assertTrue(plan.json["fits"])
                job = self.d.ctl("submit", "--detach", "--name", "bad", "--data", self.d.text, "--steps", 1, *argv)
                self.assertEqual(job.rc, EXIT_DONE, repr(job))
                self.assertEqual(self.d.wait_state("bad", "done", "failed")["state"], "done")
                self.d.ok("delete", "bad")

    def test_refused_with_numbers_and_a_way_out(self):
        flags = ["--model", "gpt-byte-1m", "--micro-batch", "64", "--global-batch", "128", "--strategy", "ddp",
                 "--seq-len", "256"]
        plan = self.d.ctl("--json", "plan", *flags)
        self.assertEqual(plan.rc, EXIT_REFUSED, repr(plan))
        self.assertFalse(plan.json["fits"])
        needs = int(re.search(r"needs (\d+) bytes", plan.json["verdict"]).group(1))
        self.assertGreater(needs, MEMORY)
        result = self.d.ctl("submit", "--data", self.d.text, *flags)
        self.assertRefused(result, EXIT_REFUSED, "does not fit", needs, "would fit:", "largest")
        has = int(re.search(r"has (\d+)", result.err).group(1))
        self.assertLess(has, needs)
        self.check_proposals(result.err.strip(), flags)

    def test_nothing_would_help(self):
        result = self.d.ctl("submit", "--data", self.d.text, "--model", "gpt2", "--tokenizer", "bytes", "--seq-len", "64", "--micro-batch", "1")
        self.assertRefused(result, EXIT_REFUSED, "does not fit", "needs", "has", "memory_per_rank")

    def test_memory_of_other_jobs_counts(self):
        names = []
        while len(names) < 32:
            flags = self.d.tiny("fill-%d" % len(names), 1000000, "--priority", 1, data=False)
            result = self.d.ctl("submit", "--detach", *flags)
            if result.rc != EXIT_DONE:
                break
            names.append("fill-%d" % len(names))
        self.assertRefused(result, EXIT_REFUSED, "does not fit")
        self.assertGreater(len(names), 0)
        planned = self.d.status()["ranks"][0]["memory"]["planned"]
        self.assertLessEqual(planned, MEMORY)
        for name in names:
            self.d.ok("cancel", name)
            self.d.ok("delete", name)
        self.assertLess(self.d.status()["ranks"][0]["memory"]["planned"], planned)


if __name__ == "__main__":
    harness.main()
