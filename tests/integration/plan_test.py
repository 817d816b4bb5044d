"""Plans for machines that are not this daemon: models by config.json alone, worlds of thousands of ranks, advice."""

import json
import os
import re
import shutil

import harness
from harness import EXIT_DONE, EXIT_REFUSED, EXIT_USAGE

NODES = ["--ranks-per-node", "8", "--flops", "400T", "--memory-bandwidth", "3T", "--node-bandwidth", "450G",
         "--net-bandwidth", "50G", "--node-latency", "2us", "--net-latency", "5us"]
CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train", "configs")


class Plans(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.d = self.daemon(ranks=2)

    def plan(self, *flags, rc=EXIT_DONE, **kwargs):
        result = self.d.ctl("--json", "plan", *flags, seconds=60, **kwargs)
        self.assertEqual(result.rc, rc, repr(result))
        return result.json

    def refused(self, *flags, rc=EXIT_REFUSED, words=()):
        self.assertRefused(self.d.ctl("plan", *flags), rc, *words)

    def config(self, name):
        """A config.json beneath the data root, and nothing beside it."""
        path = os.path.join(self.d.data, name + ".json")
        shutil.copyfile(os.path.join(CONFIGS, name + ".json"), path)
        return path

    # ---- large ----

    def test_a_trillion_parameters_on_16384_ranks(self):
        flags = ["--model", self.config("megatron-1t"), "--world", 16384, "--micro-batch", 1, "--global-batch", 65536,
                 "--dtype", "bf16", "--activation-checkpointing", "full", "--device-memory", "141G", *NODES]
        plan = self.plan(*flags)
        self.assertEqual(plan["parameters"], 1008038758400)  # Narayanan et al. 2021, table 1: 1008.0 billion
        self.assertTrue(plan["fits"])
        self.assertEqual(plan["degrees"], [16384] * 4)
        self.assertEqual(len(plan["memory"]), 1, "one rank for all")
        tags = plan["memory"][0]["tags"]
        states = plan["parameters"] + plan["padding"]
        self.assertEqual(tags["params"]["planned"], 2 * states // 16384)
        self.assertEqual(tags["optimizer"]["planned"], 12 * states // 16384)
        estimate = plan["estimate"]
        self.assertAlmostEqual(
            estimate["step_ms"], estimate["compute_ms"] + estimate["exposed_comm_ms"] + estimate["optimizer_ms"], 3)
        self.assertAlmostEqual(estimate["tokens_per_s"], 65536 * 2048 * 1000 / estimate["step_ms"], delta=1)
        self.assertTrue(0 < estimate["flops_share"] < 1, estimate)
        text = self.d.ok("plan", *flags, seconds=60).out
        for words in ("1.01T parameters", "16384 ranks in 2048 nodes of 8", "per rank (x16384)", "between nodes",
                      "a step would take", "tokens/s on all ranks", "fits: needs"):
            self.assertIn(words, text)

    def test_published_shapes(self):
        for name, parameters in (("gpt3-175b", 174604259328), ("llama-3.1-405b", 405853388800)):
            plan = self.plan("--model", self.config(name), "--world", 512, "--seq-len", 2048, "--micro-batch", 1,
                             "--dtype", "bf16")
            self.assertEqual(plan["parameters"], parameters)
            self.assertIsNone(plan["fits"], "no memory was stated")
            self.assertIsNone(plan["estimate"])
            self.assertIn("--device-memory", plan["verdict"])

    def test_a_directory_with_its_configuration_alone(self):
        path = os.path.join(self.d.data, "shapes")
        os.mkdir(path)
        shutil.copyfile(os.path.join(CONFIGS, "gpt3-175b.json"), os.path.join(path, "config.json"))
        for model in (path, os.path.join(path, "config.json")):
            plan = self.plan("--model", model, "--world", 512, "--seq-len", 64, "--micro-batch", 1)
            self.assertEqual(plan["parameters"], 174604259328)
        alone = os.path.join(path, "config.json")
        here = self.d.ctl("--json", "plan", "--model", alone, "--ranks", 2, "--seq-len", 64)
        self.assertEqual(here.rc, EXIT_REFUSED, "it does not fit here: %r" % here)
        self.assertEqual(here.json["parameters"], 174604259328)
        self.assertRefused(self.d.ctl("submit", "--model", alone, "--init-from", "random"), EXIT_REFUSED,
                           "configuration alone", "give its directory")

    # ---- the same figures ----

    def test_a_stated_machine_of_two_ranks_takes_what_two_ranks_take(self):
        flags = ["--model", "gpt-byte-1m", "--ranks", 2, "--seq-len", 64, "--micro-batch", 2, "--global-batch", 12,
                 "--strategy", "zero3"]
        here, there = self.plan(*flags), self.plan(*flags, "--ranks-per-node", 1)
        self.assertEqual(here["memory"][0]["tags"], there["memory"][0]["tags"])
        self.assertEqual(here["memory"][0]["total"], there["memory"][0]["total"])
        self.assertEqual([kind["step_bytes"] for kind in here["comm"]], [kind["step_bytes"] for kind in there["comm"]])
        for kind in there["comm"]:
            self.assertEqual(kind["between_nodes"], kind["step_bytes"], "every other rank is on another node")
        self.assertIsNone(here["machine"])
        self.assertEqual(there["machine"]["ranks_per_node"], 1)

    def test_only_a_stated_machine_has_more_ranks_than_the_daemon(self):
        self.refused("--model", "gpt2", "--ranks", 3, words=["--ranks 3", "has 2"])
        self.refused("--model", "gpt2", "--ranks", 3, "--advise", words=["--ranks 3", "has 2"])
        self.plan("--model", "gpt2", "--ranks", 3, "--device-memory", "100G")
        self.plan("--model", "gpt2", "--world", 3)
        self.refused("--model", "gpt2", "--world", 16385, words=["16384"])

    # ---- advice ----

    def advised(self, *flags, **kwargs):
        plan = self.plan(*flags, "--advise", **kwargs)
        self.assertGreater(len(plan["advice"]), 0)
        return plan

    def test_advice_is_what_it_says(self):
        flags = ["--model", self.config("gpt3-175b"), "--world", 1024, "--micro-batch", 1, "--dtype", "bf16",
                 "--device-memory", "80G", *NODES]
        plan = self.advised(*flags, "--activation-checkpointing", "full")
        times = [advice["step_ms"] for advice in plan["advice"]]
        self.assertEqual(times, sorted(times))
        for advice in plan["advice"][:3]:
            self.assertTrue(advice["fits"])
            again = ["--activation-checkpointing", advice["activation-checkpointing"], "--shard-degrees",
                     ",".join(map(str, advice["degrees"][:3]))]
            if advice["reshard-after-forward"] not in ("", "yes"):
                again += ["--reshard-after-forward", advice["reshard-after-forward"]]
            one = self.plan(*flags, *again)
            self.assertTrue(one["fits"])
            self.assertEqual(one["estimate"]["step_ms"], advice["step_ms"])
            self.assertEqual(int(re.search(r"needs (\d+) bytes", one["verdict"]).group(1)), advice["bytes"]["planned"])
            self.assertEqual(sum(kind["step_bytes"]["planned"] for kind in one["comm"]), advice["step_bytes"]["planned"])
            self.assertEqual(sum(kind["between_nodes"]["planned"] for kind in one["comm"]),
                             advice["between_nodes"]["planned"])
        text = self.d.ok("plan", *flags, "--activation-checkpointing", "full", "--advise", seconds=60).out
        self.assertIn("what fits, cheapest first", text)

    def proposals(self, plan):
        return plan["verdict"].split("would fit:")[1].split(", ")

    def follow(self, flags, proposal):
        """The plan of these flags, changed as proposed and in nothing else; it needs what was said."""
        change, needs = re.fullmatch(r"(.*) \((.*)\)", proposal.strip()).groups()
        change, _, without = change.partition(" without ")
        merged = dict(zip(flags[::2], flags[1::2]))
        for flag in without.split(" and ") if without else ():
            del merged[flag]
        words = change.split()
        merged.update(zip(words[::2], words[1::2]))
        again = self.plan(*[word for pair in merged.items() for word in pair])
        self.assertTrue(again["fits"], proposal)
        self.assertIn("(%s)" % needs, again["verdict"], proposal)
        return again

    def test_what_does_not_fit_names_what_would(self):
        flags = ["--model", self.config("gpt3-175b"), "--world", 1024, "--micro-batch", 16, "--dtype", "bf16",
                 "--device-memory", "40G"]
        plan = self.plan(*flags, rc=EXIT_REFUSED)
        self.assertFalse(plan["fits"])
        self.assertEqual(plan["advice"], [])
        for proposal in self.proposals(plan):
            again = self.follow(flags, proposal)
            self.assertEqual(again["spec"]["global-batch"], 16 * 1024, proposal)
        hopeless = self.plan(*flags[:-1], "1G", rc=EXIT_REFUSED)
        self.assertIn("no strategy, checkpointing or micro-batch makes it fit", hopeless["verdict"])

    def test_more_ranks_and_a_smaller_micro_batch(self):
        for ranks, memory, batch in ((4, "1G", 16), (3, "1130M", 24)):  # 16 do not divide over 3
            self.d = self.daemon("--memory-per-rank", memory, ranks=ranks)
            flags = ["--model", "gpt2", "--ranks", 2, "--seq-len", 1024, "--micro-batch", 8]
            proposals = self.proposals(self.plan(*flags, rc=EXIT_REFUSED))
            for proposal in proposals:
                again = self.follow(flags, proposal)
                self.assertEqual(again["spec"]["ranks"], ranks, proposal)
                self.assertEqual(again["spec"]["global-batch"], batch, proposal)

    def test_proposals_say_what_to_leave_out(self):
        self.d = self.daemon("--memory-per-rank", "84M", ranks=4)
        base = ["--model", "gpt-byte-10m", "--seq-len", 32, "--micro-batch", 1]
        for flags, without in (
                (["--ranks", 2, "--shard-degrees", "1,1,2"], "--shard-degrees"),
                (["--ranks", 4, "--strategy", "hybrid_shard", "--shard-group", 2], "--shard-group"),
                (["--ranks", 4, "--strategy", "hybrid_shard", "--shard-group", 2, "--reshard-after-forward", "no"],
                 "--shard-group and --reshard-after-forward"),
                (["--ranks", 2, "--reduction-width", 2], "--reduction-width")):
            with self.subTest(flags=flags):
                proposals = self.proposals(self.plan(*base, *flags, rc=EXIT_REFUSED))
                self.assertIn("without " + without, proposals[0])
                for proposal in proposals:
                    self.follow(base + flags, proposal)

    def test_advice_for_this_daemon(self):
        plan = self.advised("--model", "gpt-byte-1m")
        self.assertIsNone(plan["machine"])
        self.assertIsNone(plan["estimate"])
        self.assertEqual(len(plan["memory"]), 2)
        self.assertTrue(plan["fits"])
        self.assertEqual(plan["available"]["planned"], 2 << 30)
        self.assertTrue({"ddp", "zero3"} <= {advice["strategy"] for advice in plan["advice"]})

    # ---- refusals ----

    def test_patterns_that_help_names_match(self):
        text = re.sub(r"\s+", " ", self.d.ok("submit", "--help").out)
        shown = re.search(r"--freeze .*?such as (.*?);", text).group(1)
        patterns = re.findall(r"'([^']+)'", shown)
        self.assertEqual(len(patterns), 2, shown)
        for pattern in patterns:
            self.plan("--model", "smollm2-135m", "--seq-len", 32, "--micro-batch", 1, "--freeze", pattern)

    def test_bad_values_are_refused_by_name(self):
        machine = ["--model", "gpt2", "--world", 16]
        for flags, words in (
                (["--ranks-per-node", 5], ["--ranks-per-node 5", "does not divide"]),
                (["--ranks-per-node", 32], ["--ranks-per-node 32", "only 16"]),
                (["--flops", "1T"], ["--flops", "--node-bandwidth"]),
                (["--flops", "1T", "--node-bandwidth", "1G", "--ranks-per-node", 8], ["--net-bandwidth"]),
                (["--strategy", "hybrid_shard", "--shard-group", 3], ["--shard-group"])):
            with self.subTest(flags=flags):
                self.refused(*machine, *flags, words=words)
        for flags in (["--world", 0], ["--flops", "fast"], ["--device-memory", "80g"], ["--net-latency", "-1us"]):
            with self.subTest(flags=flags):
                self.refused("--model", "gpt2", *flags, rc=EXIT_USAGE, words=flags[:1])
        self.refused("--model", "gpt2", "--world", 16, "--ranks", 8, rc=EXIT_USAGE, words=["--world 16 and --ranks 8"])

    def test_configurations_are_read_with_the_callers_rights(self):
        path = self.config("gpt3-175b")
        os.chmod(path, 0o600)
        result = self.d.ctl("plan", "--model", path, "--world", 512, uid=4711)
        self.assertEqual(result.rc, EXIT_REFUSED, repr(result))
        self.assertIn("--model", result.err)
        outside = os.path.join(self.d.directory, "outside.json")
        shutil.copyfile(path, outside)
        self.refused("--model", outside, "--world", 512, words=["--model"])
        broken = os.path.join(self.d.data, "broken.json")
        with open(broken, "w", encoding="ascii") as file:
            json.dump({"model_type": "gpt2", "n_layer": -1}, file)
        self.refused("--model", broken, "--world", 512, words=["broken.json", "n_layer"])


if __name__ == "__main__":
    harness.main()
