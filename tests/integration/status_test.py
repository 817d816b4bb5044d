"""What status and plan say is what is so: bytes by tag planned and used, communication, the table people read."""

import re
import signal
import time

import harness
from harness import EXIT_DONE, EXIT_REFUSED, count

FOREVER = 100000000
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")

# Resident memory of a daemon of two ranks beyond what its jobs have planned: code and libraries (gRPC, protobuf, oneDNN),
# stacks and allocator caches of its threads, histories. Measured: 17 MiB without a job, 27 with one, 38 after 1,000
# attaches by 64 clients, with 200 connections open, and beside a job of 280 MiB.
BASE = 64 << 20


class Status(harness.TestCase):
    def memory(self, daemon, name):
        return [job for job in daemon.status()["jobs"] if job["name"] == name][0]["memory"]

    def test_planned_is_peak_for_every_strategy_and_world(self):
        daemon = self.daemon(ranks=4)
        for ranks in (1, 2, 3, 4):
            for strategy in STRATEGIES:
                with self.subTest(ranks=ranks, strategy=strategy):
                    flags = ["--strategy", strategy, "--ranks", ranks, "--micro-batch", 2, "--global-batch", 4 * ranks,
                             "--seq-len", 24, "--eval-every", 2]
                    daemon.submit("m", 3, *flags)
                    daemon.wait_state("m", "done")
                    daemon.ok("generate", "m", "--prompt", "a", "--max-tokens", 2)
                    memory = self.memory(daemon, "m")
                    self.assertEqual([rank["rank"] for rank in memory], list(range(ranks)))
                    plan = daemon.ok("--json", "plan", "--model", "gpt-byte-1m", "--steps", 3, "--data", daemon.text,
                                     *flags).json
                    for rank, promised in zip(memory, plan["memory"]):
                        for tag, figure in rank["tags"].items():
                            self.assertEqual(figure["planned"], figure["peak"], tag)
                            self.assertLessEqual(figure["now"], figure["peak"], tag)
                            self.assertEqual(figure["planned"], promised["tags"][tag]["planned"], tag)
                        self.assertEqual(rank["total"]["planned"], rank["total"]["peak"])
                        self.assertEqual(rank["total"]["planned"], promised["total"]["planned"])
                    job = daemon.status()["jobs"][0]
                    for kind, promised in zip(job["comm"], plan["comm"]):
                        self.assertEqual(kind["kind"], promised["kind"])
                        self.assertEqual(kind["step_bytes"]["planned"], kind["step_bytes"]["now"], kind["kind"])
                        self.assertEqual(kind["step_bytes"]["planned"], promised["step_bytes"]["planned"], kind["kind"])
                    daemon.ok("delete", "m")

    def test_model_state_follows_the_formulas(self):
        """4 bytes each of parameters and gradients, 8 of optimizer state (fp32 trains on its parameters themselves),
        each over its degree; padding is what plan says."""
        daemon = self.daemon(ranks=4)
        for strategy, degrees in (("ddp", (1, 1, 1)), ("zero1", (1, 1, 4)), ("zero2", (1, 4, 4)), ("zero3", (4, 4, 4))):
            with self.subTest(strategy=strategy):
                plan = daemon.ok("--json", "plan", "--model", "gpt-byte-1m", "--strategy", strategy, "--ranks", 4,
                                 "--micro-batch", 1, "--seq-len", 16, "--prefetch", 0).json
                self.assertEqual(plan["degrees"], list(degrees) + [4])
                elements = plan["parameters"] + plan["padding"]
                tags = plan["memory"][0]["tags"]
                self.assertEqual(tags["params"]["planned"], 4 * elements // degrees[0])
                self.assertEqual(tags["optimizer"]["planned"], 8 * elements // degrees[2])
                self.assertGreaterEqual(tags["grads"]["planned"], 4 * elements // degrees[1])
                gradient_traffic = sum(c["step_bytes"]["planned"] for c in plan["comm"] if c["kind"] in
                                       ("all_gather", "reduce_scatter", "all_reduce"))
                passes = 3 if strategy == "zero3" else 2
                self.assertEqual(gradient_traffic, passes * 4 * elements * 3 // 4)

    def test_presets_say_their_degrees(self):
        daemon = self.daemon(ranks=4)
        for flags, name, degrees, reshard in (
                (["--strategy", "no_shard"], "ddp", (1, 1, 1), None),
                (["--strategy", "shard_grad_op"], "shard_grad_op", (4, 4, 4), "no"),
                (["--strategy", "hybrid_shard"], "zero3", (4, 4, 4), "yes"),
                (["--strategy", "hybrid_shard", "--shard-group", 2], "hybrid_shard", (2, 2, 2), "yes"),
                (["--strategy", "mics", "--shard-group", 2], "hybrid_shard", (2, 2, 2), "yes"),
                (["--strategy", "hybrid_shard_zero2", "--shard-group", 2], "hybrid_shard_zero2", (2, 2, 2), "no"),
                (["--strategy", "hpz", "--shard-group", 2], "hpz", (2, 4, 4), "yes"),
                (["--strategy", "hpz", "--shard-group", 1], "zero2", (1, 4, 4), None),
                (["--strategy", "megatron", "--shard-group", 2], "megatron", (2, 2, 4), "yes"),
                (["--shard-degrees", "1,2,4"], "custom", (1, 2, 4), None),
                (["--reshard-after-forward", 2], "zero3", (4, 4, 4), "2"),
                (["--reshard-after-forward", "no"], "shard_grad_op", (4, 4, 4), "no"),
        ):
            with self.subTest(flags=flags):
                asked = flags[1] if flags[0] == "--strategy" else ""
                plan = daemon.ok("--json", "plan", "--model", "gpt-byte-1m", *flags).json
                self.assertEqual((plan["spec"]["strategy"], tuple(plan["degrees"])), (name, degrees + (4,)))
                self.assertEqual(plan["spec"].get("reshard-after-forward"), reshard)
                self.assertEqual(plan["asked_strategy"], asked)
                job = daemon.submit("p", 1, *flags)
                self.assertEqual((job["strategy"], tuple(job["degrees"])), (name, degrees + (4,)))
                self.assertEqual((job["reshard_after_forward"], job["asked_strategy"]), (reshard, asked))
                daemon.wait_state("p", "done")
                status = daemon.status()["jobs"][0]
                self.assertEqual((status["strategy_in_use"], tuple(status["degrees"])), (name, degrees + (4,)))
                self.assertEqual(status["reshard_after_forward"], reshard)
                text = daemon.ok("plan", "--model", "gpt-byte-1m", *flags).out
                self.assertIn("%s p,g,o %u,%u,%u of 4 ranks" % ((name,) + degrees), text)
                self.assertEqual("(what %s is here)" % asked in text, asked not in ("", name))
                daemon.ok("delete", "p")

    def test_what_is_in_use_is_shown(self):
        daemon = self.daemon(ranks=2)
        daemon.submit("s", FOREVER, "--strategy", "full_shard", "--global-batch", 4)
        daemon.wait_step("s", 2)
        job = daemon.status()["jobs"][0]
        self.assertEqual(job["degrees"], [2, 2, 2, 2])
        self.assertIn(job["strategy_in_use"], ("zero3", "full_shard"))
        self.assertEqual([job[key] for key in ("param_dtype", "reduce_dtype", "master_dtype", "moment_dtype")],
                         ["fp32"] * 4)
        self.assertEqual((job["determinism"], job["reduction_width"], job["accumulation"]), ("strategy", 2, 2))
        self.assertEqual((job["spec"]["seq-len"], job["spec"]["micro-batch"], job["spec"]["seed"]), (16, 1, 1))
        for key in ("grad_norm", "lr", "step_ms", "tokens_per_s"):
            self.assertGreater(job[key], 0, key)
        status = daemon.status()
        for key in ("version", "pid", "uptime_s", "resident", "connections", "socket", "state_dir", "ranks"):
            self.assertIn(key, status)
        self.assertEqual((status["socket"], status["state_dir"]), (daemon.socket, daemon.state))
        self.assertEqual(len(status["ranks"]), 2)
        harness.wait_for("busy ranks", lambda: daemon.status()["ranks"][0]["busy"] > 0.1)
        watcher = daemon.spawn("--json", "attach", "s")
        harness.wait_for("a watcher", lambda: daemon.status()["jobs"][0]["watchers"] == 1)
        watcher.kill()

    def test_every_byte_figure_is_an_object(self):
        daemon = self.daemon()
        daemon.submit("s", 3)
        daemon.wait_state("s", "done")
        status = daemon.status()

        def figures(value, key=""):
            if isinstance(value, dict):
                if set(value) == {"planned", "now", "peak"}:
                    yield key
                    return
                for name, item in value.items():
                    yield from figures(item, name)
            elif isinstance(value, list):
                for item in value:
                    yield from figures(item, key)

        found = set(figures(status))
        self.assertLessEqual({"resident", "memory", "budget", "params", "grads", "optimizer", "gathered", "activations",
                              "total", "reserved", "step_bytes", "total_bytes"}, found)
        self.assertEqual(status["resident"]["planned"], None)
        self.assertGreater(status["resident"]["now"], 1 << 20)

    def test_the_table(self):
        """Its shape, with every number and name that changes replaced."""
        daemon = self.daemon(ranks=2)
        daemon.submit("shown", 3, "--strategy", "zero3")
        daemon.wait_state("shown", "done")
        text = daemon.ok("status").out
        job = daemon.job("shown")
        text = text.replace(daemon.directory, "DIR").replace(job["id"], "ID").replace(job["owner"], "USER")
        text = re.sub(r"▕[^▕\n]*▏", "BAR", text)
        text = re.sub(r"\bcpu-\S+", "ISA", text)
        text = re.sub(r"\d+(\.\d+)*([:.]\d+)*", "N", text)
        text = re.sub(r"N [KMGT]iB|N B\b", "BYTES", text)
        text = re.sub(r"N[kMG]\b", "N", text)
        shape = [re.sub(r" +", " ", line).strip() for line in text.splitlines()]
        expected = """
shardd N · up N · pid N · resident BYTES · N connection
socket DIR/shardd.sock · state DIR/state

RANK DEVICE ISA THREADS BUSY PLANNED BUDGET
N cpu ISA N N% BYTES BYTES BAR
N cpu ISA N N% BYTES BYTES BAR

shown · job ID · done · step N/N · loss N · N tokens/s
gpt-byte-N · N parameters · zeroN p,g,o N,N,N of N ranks · batch N = N x N x N of N tokens
compute fpN, params fpN · reduce fpN, master fpN, moments fpN · adamw · checkpointing none
tokenizer bytes · determinism strategy (width N) · exposed communication N% · N queued · N watching · owner USER
""".strip().splitlines()
        # Model names end in a letter after the number.
        shape = [line.replace("gpt-byte-Nm", "gpt-byte-N") for line in shape]
        head = [line for line in shape[:len(expected)]]
        self.assertEqual(head, expected, daemon.ok("status").out)
        rest = "\n".join(shape[len(expected):])
        for row in ("memory per rank (xN) planned now peak", "params BYTES BYTES BYTES", "total BYTES BYTES BYTES",
                    "sent by a rank planned/step last step total calls", "all_gather BYTES BYTES BYTES N",
                    "reduce_scatter BYTES BYTES BYTES N"):
            self.assertIn(row, rest)
        # No line is wider than a terminal, none ends in blanks.
        for line in daemon.ok("status").out.splitlines():
            self.assertEqual(line, line.rstrip())
            self.assertLessEqual(len(line), 132, line)

    def test_status_without_jobs(self):
        daemon = self.daemon()
        self.assertIn("no jobs; shardctl submit makes one", daemon.ok("status").out)
        self.assertEqual(daemon.status()["jobs"], [])

    def test_plan_of_a_large_model_is_quick_and_takes_nothing(self):
        daemon = self.daemon()
        resident = daemon.resident()
        for model, parameters in (("gpt2", 124439808), ("gpt2-medium", 354823168), ("gpt2-large", 774030080),
                                  ("gpt2-xl", 1557611200)):
            with self.subTest(model=model):
                began = time.monotonic()
                plan = daemon.ctl("--json", "plan", "--model", model, "--strategy", "zero3", "--micro-batch", 1)
                self.assertLess(time.monotonic() - began, harness.patience(3))
                self.assertIn(plan.rc, (EXIT_DONE, EXIT_REFUSED), repr(plan))
                self.assertEqual(plan.json["parameters"], parameters)
                self.assertEqual(plan.json["fits"], plan.rc == EXIT_DONE)
                self.assertGreaterEqual(plan.json["memory"][0]["total"]["planned"], 16 * parameters // 2)
        if not harness.SANITIZER:
            self.assertLess(daemon.resident() - resident, 64 << 20)
        self.assertEqual(daemon.status()["ranks"][0]["memory"]["planned"], 0)
        text = daemon.ctl("plan", "--model", "gpt2-xl", "--strategy", "zero3").out
        self.assertIn("does not fit", text)

    def test_resident_memory_stays_within_the_plan_and_a_constant(self):
        daemon = self.daemon()
        daemon.ok("submit", "--detach", "--name", "ten", "--model", "gpt-byte-10m", "--data", daemon.text,
                  "--steps", count(12, 3), "--micro-batch", 2, "--seq-len", 128)
        daemon.wait_state("ten", "done")
        for _ in range(20):
            daemon.ok("status")
        daemon.ok("generate", "ten", "--prompt", "a", "--max-tokens", 5)
        status = daemon.status()
        planned = sum(rank["memory"]["planned"] for rank in status["ranks"])
        resident = daemon.resident()
        self.assertGreater(planned, 16 * 10000000)
        if not harness.SANITIZER:
            self.assertLess(resident, planned + BASE)
            # And what is reported is what the system says.
            self.assertAlmostEqual(status["resident"]["now"] / resident, 1, delta=0.2)
        daemon.ok("delete", "ten")
        if not harness.SANITIZER:
            harness.wait_for("memory given back", lambda: daemon.resident() < BASE)

    def test_watch_refreshes(self):
        daemon = self.daemon()
        daemon.submit("w", FOREVER)
        client = daemon.spawn("--json", "status", "--watch")
        harness.wait_for("two reports", lambda: len(client.lines) >= 2, 30)
        first, second = client.lines[:2]
        self.assertGreater(second["uptime_s"], first["uptime_s"])
        self.assertGreater(second["jobs"][0]["step"], first["jobs"][0]["step"])
        client.kill(signal.SIGINT)
        self.assertEqual(client.wait().rc, EXIT_DONE)


if __name__ == "__main__":
    harness.main()
