"""Hugging Face checkpoints: they come in, train, are evaluated, make text, and go back."""

import json
import math
import os

import checkpoint
import harness
from harness import EXIT_JOB_FAILED, EXIT_REFUSED, count

FOREVER = 100000000
KINDS = {"llama": checkpoint.llama_config, "gpt2": checkpoint.gpt2_config}

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference.json"), encoding="ascii") as reference:
    REFERENCE = json.load(reference)


class Models(harness.TestCase):
    def model(self, daemon, name, *args, **kwargs):
        """A checkpoint beneath the daemon's data root; its directory and tensors."""
        path = os.path.join(daemon.data, name)
        return path, checkpoint.write(path, *args, **kwargs)

    def driven(self, daemon, name, model, *flags):
        """A job that waits for clients' batches: its weights stay as they came."""
        for flag, value in (("--seq-len", 64), ("--micro-batch", 1)):
            if flag not in flags:
                flags += (flag, value)
        daemon.ok("submit", "--detach", "--name", name, "--model", model, *flags)
        self.assertEqual(daemon.wait_state(name, "running", "failed")["state"], "running", daemon.job(name))

    def trained(self, daemon, name, model, steps, *flags):
        given = {flag for flag in flags if isinstance(flag, str)}
        for flag, value in (("--data", daemon.text), ("--seq-len", 32), ("--micro-batch", 2), ("--lr", "1e-3")):
            if flag not in given:
                flags += (flag, value)
        daemon.ok("submit", "--detach", "--name", name, "--model", model, "--steps", steps, *flags)
        job = daemon.wait_state(name, "done", "failed")
        self.assertEqual(job["state"], "done", job["reason"])

    def export(self, daemon, name, *flags):
        path = os.path.join(daemon.data, "export-of-" + name)
        return path, daemon.ok("--json", "export", name, "--output", path, *flags).json

    def text_file(self, daemon, content, name="text-file"):
        path = os.path.join(daemon.data, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return path

    # ---- there and back ----

    def test_import_and_export_without_a_step_changes_no_byte(self):
        daemon = self.daemon(ranks=3)
        cases = [("llama", "F32", 1, ()), ("llama", "BF16", 3, ("--dtype", "bf16")), ("gpt2", "F16", 2, ()),
                 ("gpt2", "F32", 1, ("--strategy", "ddp", "--ranks", 1)), ("llama", "BF16", 1, ("--ranks", 2))]
        for number, (kind, dtype, shards, flags) in enumerate(cases):
            with self.subTest(kind=kind, dtype=dtype, shards=shards):
                name = "m%d" % number
                path, tensors = self.model(daemon, name, KINDS[kind](), dtype, shards)
                self.driven(daemon, name, path, *flags)
                out, answer = self.export(daemon, name, *(("--max-shard-size", "20KB") if shards > 1 else ()))
                self.assertEqual(checkpoint.read(out), tensors)
                self.assertEqual((answer["tensors"], answer["step"]), (len(tensors), 0))
                self.assertEqual(sorted(answer["files"]), sorted(os.listdir(out)))
                if shards > 1:
                    self.assertIn("model.safetensors.index.json", answer["files"])
                for file in ("tokenizer.json", "tokenizer_config.json"):
                    with open(os.path.join(path, file), "rb") as a, open(os.path.join(out, file), "rb") as b:
                        self.assertEqual(a.read(), b.read(), file)
                with open(os.path.join(path, "config.json"), encoding="utf-8") as a, \
                        open(os.path.join(out, "config.json"), encoding="utf-8") as b:
                    before, after = json.load(a), json.load(b)
                self.assertEqual({key: value for key, value in before.items() if key not in ("torch_dtype", "dtype")},
                                 {key: value for key, value in after.items() if key not in ("torch_dtype", "dtype")})
                daemon.ok("cancel", name)
                daemon.ok("delete", name)

    def test_an_export_has_the_tokenizer_that_was_trained_with(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        other, _ = self.model(daemon, "other", with_tokenizer=False)
        checkpoint.write_json(other, "mine.json", dict(checkpoint.tokenizer(), post_processor=None))
        checkpoint.write_json(other, "special_tokens_map.json", {"eos_token": checkpoint.END})
        names = {"model.safetensors", "config.json"}
        cases = [("own", path, (), {"tokenizer.json", "tokenizer_config.json"}, os.path.join(path, "tokenizer.json")),
                 ("preset", "gpt2", ("--tokenizer", path), {"tokenizer.json", "tokenizer_config.json"},
                  os.path.join(path, "tokenizer.json")),
                 ("file", path, ("--tokenizer", os.path.join(other, "mine.json")),
                  {"tokenizer.json", "special_tokens_map.json"}, os.path.join(other, "mine.json")),
                 ("bytes", path, ("--tokenizer", "bytes"), set(), None)]
        for name, model, flags, carried, source in cases:
            with self.subTest(name):
                self.driven(daemon, name, model, *flags)
                out, _ = self.export(daemon, name)
                self.assertEqual(set(os.listdir(out)), names | carried)
                if source:
                    with open(source, "rb") as a, open(os.path.join(out, "tokenizer.json"), "rb") as b:
                        self.assertEqual(a.read(), b.read())
                daemon.ok("cancel", name)
                daemon.ok("delete", name)

    def test_directories_of_any_name_and_presets_that_begin_with_them(self):
        daemon = self.daemon()
        path, tensors = self.model(daemon, "named.model", checkpoint.gpt2_config(
            n_layer=4, n_head=4, n_embd=128, n_positions=256, vocab_size=256, bos_token_id=0, eos_token_id=0), with_tokenizer=False)
        checkpoint.write_json(path, "generation_config.json", {"eos_token_id": 10, "max_new_tokens": 10 ** 20})
        self.driven(daemon, "own", path)
        self.driven(daemon, "preset", "gpt-byte-1m", "--init-from", path)
        out, _ = self.export(daemon, "preset")
        self.assertEqual(checkpoint.read(out), tensors)
        self.assertIn("generation_config.json", os.listdir(out))
        checkpoint.write_json(path, "generation_config.json", {"eos_token_id": 256})
        for flag, flags in (("--model", ("--model", path)), ("--init-from", ("--model", "gpt-byte-1m", "--init-from", path))):
            self.assertRefused(daemon.ctl("submit", "--detach", "--seq-len", 64, *flags), EXIT_REFUSED,
                               flag + ":", "generation_config.json", "256")

    def test_a_step_an_export_and_on_from_there(self):
        daemon = self.daemon()
        path, before = self.model(daemon, "base")
        held_out = self.text_file(daemon, REFERENCE["text"])
        self.trained(daemon, "first", path, count(12, 4), "--strategy", "zero3")
        out, _ = self.export(daemon, "first")
        after = checkpoint.read(out)
        self.assertEqual({name: tensor[:2] for name, tensor in after.items()},
                         {name: tensor[:2] for name, tensor in before.items()})
        self.assertTrue(all(after[name][2] != before[name][2] for name in before), "everything was trained")
        loss = daemon.evaluate("first", held_out)["loss"]
        self.driven(daemon, "second", out, "--ranks", 1, "--seq-len", 32)
        again = daemon.evaluate("second", held_out)["loss"]
        self.assertAlmostEqual(loss, again, delta=1e-5 * loss)  # one window a batch here, two there
        half, _ = self.export(daemon, "second", "--dtype", "bf16")
        for name, (dtype, shape, data) in checkpoint.read(half).items():
            self.assertEqual((dtype, shape), ("BF16", before[name][1]))
            self.assertEqual(data, checkpoint.pack(checkpoint.unpack(after[name][2], "F32"), "BF16"), name)
        self.assertRefused(daemon.ctl("export", "second", "--output", half), EXIT_REFUSED, half)
        outside = os.path.join(daemon.directory, "beside-the-data-root")
        self.assertRefused(daemon.ctl("export", "second", "--output", outside), EXIT_REFUSED, outside)
        self.assertFalse(os.path.exists(outside))
        self.assertRefused(daemon.ctl("export", "second", "--output", half + "2", "--dtype", "int8"), EXIT_REFUSED,
                           "int8")

    def test_init_from(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "a")
        other, wanted = self.model(daemon, "b", seed=2)
        self.driven(daemon, "from-b", path, "--init-from", other)
        self.assertEqual(checkpoint.read(self.export(daemon, "from-b")[0]), wanted)
        daemon.ok("cancel", "from-b")
        found = []
        for ranks in (1, 2):
            name = "random%d" % ranks
            self.driven(daemon, name, path, "--init-from", "random", "--ranks", ranks, "--seed", 5)
            found.append(checkpoint.read(self.export(daemon, name)[0]))
            daemon.ok("cancel", name)
        self.assertEqual(found[0], found[1], "the same bits for every number of ranks")
        self.assertNotEqual(found[0]["lm_head.weight"], wanted["lm_head.weight"])

    # ---- numbers that transformers gives ----

    def test_perplexity_is_that_of_transformers(self):
        daemon = self.daemon()
        text = self.text_file(daemon, REFERENCE["text"])
        documents = self.text_file(
            daemon, "".join(json.dumps(document) + "\n" for document in REFERENCE["documents"]), "documents.jsonl")
        for kind, expected in REFERENCE["models"].items():
            with self.subTest(kind=kind):
                path, _ = self.model(daemon, kind, KINDS[kind]())
                self.driven(daemon, kind, path, "--seq-len", REFERENCE["length"], "--micro-batch", 2)
                for stride, (loss, tokens) in expected["files"]["text"].items():
                    found = daemon.evaluate(kind, text, "--stride", stride)
                    self.assertAlmostEqual(found["loss"], loss, delta=1e-5 * loss)
                    self.assertAlmostEqual(found["perplexity"], math.exp(found["loss"]), delta=1e-9 * found["perplexity"])
                    self.assertEqual((found["tokens"], found["step"]), (tokens, 0))
                    # All bytes but those of the first token, over all nats.
                    self.assertLess(len(REFERENCE["text"].encode()) - found["text_bytes"], 10)
                    self.assertAlmostEqual(found["bits_per_byte"] * found["text_bytes"] * math.log(2),
                                           found["loss"] * found["tokens"], delta=1e-6)
                for stride, (loss, tokens) in expected["files"]["documents"].items():
                    found = daemon.evaluate(kind, documents, "--stride", stride, "--packing", "off")
                    self.assertAlmostEqual(found["loss"], loss, delta=1e-5 * loss)
                    self.assertEqual(found["tokens"], tokens)
                lines = daemon.ok("--json", "eval", kind, "--text", REFERENCE["text"], "--logprobs").lines
                total = lines.pop()
                self.assertEqual(total["tokens"], len(REFERENCE["ids"]) - 1)
                self.assertAlmostEqual(total["loss"], expected["loss"], delta=1e-5 * expected["loss"])
                self.assertEqual([line["token"] for line in lines], REFERENCE["ids"][1:])
                for line, logprob in zip(lines, expected["logprobs"]):
                    self.assertAlmostEqual(line["logprob"], logprob, delta=2e-5 * max(1, -logprob), msg=line)
                daemon.ok("cancel", kind)

    def test_greedy_text_is_that_of_transformers(self):
        daemon = self.daemon()
        for kind, expected in REFERENCE["models"].items():
            path, _ = self.model(daemon, kind, KINDS[kind]())
            for strategy in ("ddp", "zero3"):
                with self.subTest(kind=kind, strategy=strategy):
                    self.driven(daemon, kind, path, "--strategy", strategy)
                    made = len(expected["greedy"])
                    the = ["generate", kind, "--prompt", REFERENCE["prompt"], "--temperature", 0, "--max-tokens", made]
                    lines = daemon.ok("--json", *the).lines
                    self.assertEqual([line["token"] for line in lines], expected["greedy"])
                    self.assertEqual("".join(line["text"] for line in lines), expected["greedy_text"])
                    self.assertEqual([line.get("finish") for line in lines], [None] * (made - 1) + ["length"])
                    self.assertEqual(daemon.ok(*the).out, expected["greedy_text"])
                    lines = daemon.ok("--json", *the, "--repetition-penalty", REFERENCE["penalty"]).lines
                    self.assertEqual([line["token"] for line in lines], expected["penalized"])
                    ids = ",".join(map(str, REFERENCE["prompt_ids"]))
                    lines = daemon.ok("--json", "generate", kind, "--tokens", ids, "--temperature", 0, "--stop",
                                      expected["greedy"][3], "--max-tokens", made).lines
                    cut = expected["greedy"].index(expected["greedy"][3]) + 1
                    self.assertEqual([line["token"] for line in lines], expected["greedy"][:cut])
                    self.assertEqual(lines[-1]["finish"], "stop")
                    daemon.ok("cancel", kind)
                    daemon.ok("delete", kind)

    def test_text_beside_others_is_the_same(self):
        """More streams than are at work at once, with caches that are taken from each other."""
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        self.driven(daemon, "m", path)

        def the(seed):
            return ["generate", "m", "--prompt", REFERENCE["prompt"], "--seed", seed, "--max-tokens", 40]

        alone = [daemon.ok(*the(seed)).out for seed in range(3)]
        self.assertEqual(len(set(alone)), 3)
        clients = [daemon.spawn(*the(number % 3)) for number in range(9)]
        for number, client in enumerate(clients):
            self.assertEqual(client.wait(60).out, alone[number % 3])

    def test_stop_texts_and_the_end_of_text(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        self.driven(daemon, "m", path)
        expected = REFERENCE["models"]["llama"]["greedy_text"]
        the = ["generate", "m", "--prompt", REFERENCE["prompt"], "--temperature", 0, "--max-tokens",
               len(REFERENCE["models"]["llama"]["greedy"])]
        self.assertEqual(daemon.ok(*the, "--stop", "ll").out, expected[:expected.index("ll")])
        self.assertEqual(daemon.ok(*the, "--stop", "never there").out, expected)
        # A model whose likeliest fourth token is its end of text.
        likely = REFERENCE["models"]["llama"]["greedy"][3]
        path, _ = self.model(daemon, "ending", checkpoint.llama_config(eos_token_id=[checkpoint.VOCAB - 1, likely]))
        self.driven(daemon, "ending", path)
        lines = daemon.ok("--json", "generate", "ending", *the[2:]).lines
        self.assertEqual([line["token"] for line in lines], REFERENCE["models"]["llama"]["greedy"][:4])
        self.assertEqual(lines[-1]["finish"], "stop")
        # One that says so beside its configuration only.
        path, _ = self.model(daemon, "beside")
        checkpoint.write_json(path, "generation_config.json", {"eos_token_id": [likely]})
        self.driven(daemon, "beside", path)
        self.assertEqual(daemon.ok("--json", "generate", "beside", *the[2:]).lines, lines)
        lines = daemon.ok("--json", "generate", "ending", *the[2:], "--ignore-eos").lines
        self.assertEqual([line["token"] for line in lines], REFERENCE["models"]["llama"]["greedy"])

    # ---- tokenizers ----

    def test_tokenize(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        file = os.path.join(path, "tokenizer.json")
        for source in (path, file):
            answer = daemon.ok("--json", "tokenize", "--tokenizer", source, "--text", REFERENCE["text"]).json
            self.assertEqual(answer["tokens"], REFERENCE["ids"])
            self.assertEqual(answer["vocab"], checkpoint.VOCAB)
        ids = ",".join(map(str, REFERENCE["ids"]))
        self.assertEqual(daemon.ok("tokenize", "--tokenizer", path, "--tokens", ids).out, REFERENCE["text"])
        self.assertEqual(daemon.ok("tokenize", "--tokenizer", path, "--text", checkpoint.END).out.split(),
                         [str(checkpoint.VOCAB - 1)])
        self.assertEqual(daemon.ok("tokenize", "--tokenizer", "bytes", "--text", "aä").out, "97 195 164\n")
        self.driven(daemon, "job", path)
        self.assertEqual(daemon.ok("tokenize", "job", "--text", REFERENCE["prompt"]).out.split(),
                         [str(i) for i in REFERENCE["prompt_ids"]])
        for flags, words in ((["--tokens", "999999"], ["999999"]), (["--data", "/etc/passwd"], ["/etc/passwd"])):
            self.assertRefused(daemon.ctl("tokenize", "--tokenizer", path, *flags), EXIT_REFUSED, *words)
        self.assertRefused(daemon.ctl("tokenize", "--tokenizer", daemon.text, "--text", "a"), EXIT_REFUSED, daemon.text)

    def test_tokenized_files_are_kept(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        text = self.text_file(daemon, REFERENCE["text"] * 50)
        lines = daemon.ok("--json", "tokenize", "--tokenizer", path, "--data", text).lines
        first, again = lines[-1], daemon.ok("--json", "tokenize", "--tokenizer", path, "--data", text).lines[-1]
        self.assertEqual(first, again)
        self.assertEqual(first["documents"], 1)
        self.assertGreaterEqual(first["count"], 49 * len(REFERENCE["ids"]))
        self.assertTrue(all(line["progress"] for line in lines[:-1]))
        with open(text, "a", encoding="utf-8") as file:
            file.write("more")
        changed = daemon.ok("--json", "tokenize", "--tokenizer", path, "--data", text).lines[-1]
        self.assertNotEqual(changed["digest"], first["digest"])
        self.assertGreater(changed["count"], first["count"])

    # ---- data ----

    def test_jsonl_masks_the_prompt(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        pairs = [("Question %d: " % i, " answer " * (i % 4 + 1)) for i in range(24)]
        data = self.text_file(daemon, "".join(
            json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in pairs), "d.jsonl")
        lengths = [len(daemon.ok("--json", "tokenize", "--tokenizer", path, "--text", completion).json["tokens"])
                   for _, completion in pairs[:4]]
        self.trained(daemon, "j", path, 24, "--data", data, "--packing", "off", "--ranks", 1, "--micro-batch", 1,
                     "--seq-len", 64)
        tokens = [step["tokens"] for step in daemon.history("j")]
        # One document a step, each once: its completion and the end of text behind it.
        self.assertEqual(sorted(tokens), sorted((length + 1) for length in lengths * 6))
        self.trained(daemon, "packed", path, 4, "--data", data, "--ranks", 1, "--micro-batch", 1)
        self.assertTrue(all(0 < step["tokens"] < 32 for step in daemon.history("packed")))
        for content, words in (('{"text": "a"}\n{"prompt": "b"}\n', ["line 2", "completion"]),
                               ('{"text": 5}\n', ["line 1", "text"]), ("not json\n", ["line 1"]), ("\n\n", [])):
            with self.subTest(content=content):
                bad = self.text_file(daemon, content, "bad.jsonl")
                result = daemon.ctl("submit", "--name", "bad", "--model", path, "--data", bad, "--steps", 3,
                                    "--seq-len", 16)
                self.assertIn(result.rc, (EXIT_REFUSED, EXIT_JOB_FAILED), repr(result))
                for word in words + [bad]:
                    self.assertIn(word, result.out + result.err)
                if daemon.find("bad"):
                    daemon.ok("delete", "bad")

    # ---- precision, freezing, checkpointing ----

    def test_precisions(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        steps = count(30, 8)
        losses = {}
        for dtype, reduce in (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp32")):
            with self.subTest(dtype=dtype, reduce=reduce):
                name = dtype + "-" + reduce
                self.trained(daemon, name, path, steps, "--dtype", dtype, "--reduce-dtype", reduce)
                job = [j for j in daemon.status()["jobs"] if j["name"] == name][0]
                self.assertEqual([job[key] for key in ("compute_dtype", "param_dtype", "reduce_dtype", "master_dtype",
                                                       "moment_dtype")], [dtype, dtype, reduce, "fp32", "fp32"])
                history = daemon.history(name)
                losses[name] = history[-1]["loss"]
                self.assertLess(history[-1]["loss"], history[0]["loss"])
                self.assertEqual([step.get("loss_scale", 0) > 0 for step in history], [dtype == "fp16"] * steps)
                self.assertEqual(job["loss_scale"] > 0, dtype == "fp16")
                times = [step["unix"] for step in history]
                self.assertEqual(times, sorted(times))
                plan = daemon.ok("--json", "plan", "--model", path, "--dtype", dtype, "--reduce-dtype", reduce,
                                 "--strategy", "zero3", "--ranks", 2, "--seq-len", 32).json
                part, tags = (plan["parameters"] + plan["padding"]) // 2, plan["memory"][0]["tags"]
                self.assertEqual(tags["params"]["planned"], (4 if dtype == "fp32" else 2) * part)
                self.assertEqual(tags["optimizer"]["planned"], (8 if dtype == "fp32" else 12) * part)
        for name, loss in losses.items():
            self.assertAlmostEqual(loss / losses["fp32-fp32"], 1, delta=0.02, msg=name)

    def test_an_overflow_skips_the_step_and_halves_the_scale(self):
        daemon = self.daemon()
        path, _ = self.model(daemon, "m")
        self.trained(daemon, "o", path, count(12, 6), "--dtype", "fp16", "--initial-scale-power", 32, "--hysteresis", 1)
        history = daemon.history("o")
        skipped = [step for step in history if step["skipped"]]
        self.assertTrue(skipped)
        self.assertEqual(history[0]["loss_scale"], 2.0 ** 32)
        for before, after in zip(history, history[1:]):
            self.assertEqual(after["loss_scale"], before["loss_scale"] / (2 if before["skipped"] else 1))
        job = daemon.status()["jobs"][0]
        self.assertEqual(job["skipped_steps"], len(skipped))
        log = daemon.ok("logs", "o").out
        self.assertIn("skipped", log)
        self.assertIn("loss scale", log)

    def test_frozen_parameters_cost_nothing_and_stay(self):
        daemon = self.daemon()
        path, before = self.model(daemon, "m")
        steps = count(6, 3)
        self.trained(daemon, "all", path, steps)
        self.trained(daemon, "part", path, steps, "--freeze", "model.embed_tokens.*,*.mlp.*", "--freeze", "lm_head.*")
        after = checkpoint.read(self.export(daemon, "part")[0])
        frozen = [name for name in before if "embed_tokens" in name or ".mlp." in name or "lm_head" in name]
        for name in before:
            self.assertEqual(before[name] == after[name], name in frozen, name)
        jobs = {job["name"]: job for job in daemon.status()["jobs"]}
        elements = sum(len(before[name][2]) // 4 for name in before)
        kept = sum(len(before[name][2]) // 4 for name in frozen)
        self.assertEqual((jobs["all"]["parameters"], jobs["all"]["trainable"]), (elements, elements))
        self.assertEqual((jobs["part"]["parameters"], jobs["part"]["trainable"]), (elements, elements - kept))
        tags = {name: job["memory"][0]["tags"] for name, job in jobs.items()}
        for tag in ("grads", "optimizer"):
            self.assertLess(tags["part"][tag]["peak"], tags["all"][tag]["peak"] / 2, tag)
        self.assertIn("parameters trained", daemon.ok("status").out)
        self.assertRefused(daemon.ctl("submit", "--model", path, "--data", daemon.text, "--freeze", "nothing.*"),
                           EXIT_REFUSED, "nothing.*")

    def test_planned_is_measured_and_checkpointing_changes_no_bit(self):
        daemon = self.daemon(ranks=2)
        path, _ = self.model(daemon, "m", checkpoint.llama_config(num_hidden_layers=4))
        for dtype in ("fp32", "bf16", "fp16"):
            losses, activations = [], []
            for mode in ("none", "selective", "full"):
                for strategy in count(("ddp", "zero2", "zero3"), ("zero3",)):
                    with self.subTest(dtype=dtype, mode=mode, strategy=strategy):
                        flags = ["--dtype", dtype, "--activation-checkpointing", mode, "--strategy", strategy,
                                 "--global-batch", 8, "--eval-every", 2, "--data", daemon.text, "--seq-len", 32,
                                 "--micro-batch", 2, "--dropout", "0.1", "--freeze", "model.layers.0.*"]
                        self.trained(daemon, "c", path, 3, *flags)
                        daemon.ok("generate", "c", "--prompt", "a", "--max-tokens", 3)
                        job = daemon.status()["jobs"][0]
                        plan = daemon.ok("--json", "plan", "--model", path, "--steps", 3, "--lr", "1e-3", *flags).json
                        for rank, promised in zip(job["memory"], plan["memory"]):
                            for tag, figure in rank["tags"].items():
                                self.assertEqual(figure["planned"], figure["peak"], tag)
                                self.assertEqual(figure["planned"], promised["tags"][tag]["planned"], tag)
                            self.assertEqual(rank["total"]["planned"], rank["total"]["peak"])
                        for kind in job["comm"]:
                            self.assertEqual(kind["step_bytes"]["planned"], kind["step_bytes"]["now"], kind["kind"])
                        self.assertEqual(job["checkpointing"], mode)
                        losses.append([(step["loss"], step["grad_norm"]) for step in daemon.history("c")])
                        if strategy == "zero3":
                            activations.append(job["memory"][0]["tags"]["activations"]["peak"])
                        daemon.ok("delete", "c")
            self.assertTrue(all(other == losses[0] for other in losses), losses)
            self.assertEqual(activations, sorted(activations, reverse=True))
            self.assertLess(activations[-1], activations[0])


class BadModels(harness.BystanderCase):
    """Directories that are not what they must be: an error that says which file and what, a daemon that stays up, a
    bystander that loses no step."""

    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.d.data, "model-%d" % len(os.listdir(self.d.data)))
        self.tensors = checkpoint.write(self.path)

    def tearDown(self):
        for job in self.d.ok("--json", "jobs").lines:
            if job["name"] == "bad":
                self.d.ok("delete", "bad")
        super().tearDown()

    def file(self, name):
        return os.path.join(self.path, name)

    def refused(self, *words, flags=()):
        """At once or when the ranks read it: the job does not live, and the words are said."""
        result = self.d.ctl("submit", "--name", "bad", "--model", self.path, "--data", self.d.text, "--steps", 2,
                            "--seq-len", 16, "--micro-batch", 1, *flags)
        self.assertIn(result.rc, (EXIT_REFUSED, EXIT_JOB_FAILED), repr(result))
        said = result.err if result.rc == EXIT_REFUSED else result.out
        for word in words:
            self.assertIn(str(word), said)
        if self.d.find("bad"):
            self.d.ok("delete", "bad")

    def rewrite(self, **changes):
        with open(self.file("config.json"), encoding="utf-8") as file:
            config = json.load(file)
        for key, value in changes.items():
            if value is None:
                config.pop(key)
            else:
                config[key] = value
        checkpoint.write_json(self.path, "config.json", config)

    def test_the_directory_itself_is_good(self):
        self.assertEqual(self.d.ctl("submit", "--name", "bad", "--model", self.path, "--data", self.d.text, "--steps", 2,
                                    "--seq-len", 16, "--micro-batch", 1).rc, 0)

    def test_files_that_are_missing(self):
        os.rename(self.file("config.json"), self.file("config"))
        self.refused("config.json", self.path)
        os.rename(self.file("config"), self.file("config.json"))
        os.rename(self.file("model.safetensors"), self.file("model"))
        self.refused("model.safetensors", self.path)
        self.assertRefused(self.d.ctl("plan", "--model", self.path + "-none"), EXIT_REFUSED, self.path + "-none")

    def test_safetensors(self):
        name = self.file("model.safetensors")
        with open(name, "rb") as file:
            good = file.read()

        def bad(content, *words):
            with self.subTest(words=words):
                with open(name, "wb") as file:
                    file.write(content)
                self.refused("model.safetensors", *words)

        size = int.from_bytes(good[:8], "little")
        header = json.loads(good[8:8 + size])

        def with_header(change):
            changed = json.loads(json.dumps(header))
            change(changed)
            text = json.dumps(changed).encode()
            return len(text).to_bytes(8, "little") + text + good[8 + size:]

        bad(good[:-100], "cut off")
        bad(good[:1000], "header")
        bad(b"", "0 bytes")
        bad((1 << 40).to_bytes(8, "little") + good[8:], str(1 << 40))
        bad((len(good) * 2).to_bytes(8, "little") + good[8:], str(len(good) * 2))
        bad(size.to_bytes(8, "little") + b"[" + good[9:])
        bad(good + b"x", "1 bytes")
        bad(with_header(lambda h: h["model.norm.weight"].update(data_offsets=[0, 96])), "overlap")
        bad(with_header(lambda h: h["model.norm.weight"].update(dtype="I64", shape=[12])), "model.norm.weight", "I64")
        bad(with_header(lambda h: h["model.norm.weight"].update(dtype="F99")), "F99")
        bad(with_header(lambda h: h["model.norm.weight"].update(shape=[4, 6])), "model.norm.weight", "[4, 6]", "[24]")
        bad(with_header(lambda h: h["model.norm.weight"].update(shape=[25])), "model.norm.weight", "[25]")
        missing = dict(self.tensors)
        missing.pop("model.layers.1.mlp.up_proj.weight")
        checkpoint.write_safetensors(name, missing)
        self.refused(self.path, "model.layers.1.mlp.up_proj.weight")
        more = dict(self.tensors, **{"model.layers.2.mlp.up_proj.weight": self.tensors["model.norm.weight"]})
        checkpoint.write_safetensors(name, more)
        self.refused(self.path, "model.layers.2.mlp.up_proj.weight")

    def test_index(self):
        path = self.path + "-cut"
        checkpoint.write(path, shards=3)
        self.path = path
        second = self.file("model-00002-of-00003.safetensors")
        os.rename(second, second + ".part")
        self.refused("model-00002-of-00003.safetensors")
        os.rename(second + ".part", second)
        index = self.file("model.safetensors.index.json")
        with open(index, encoding="utf-8") as file:
            content = json.load(file)
        content["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors"
        checkpoint.write_json(path, "model.safetensors.index.json", content)
        self.refused("model.norm.weight")
        content["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
        checkpoint.write_json(path, "model.safetensors.index.json", content)
        self.refused("../elsewhere.safetensors")
        with open(index, "w", encoding="utf-8") as file:
            file.write("{")
        self.refused("model.safetensors.index.json")

    def test_config(self):
        for changes, words in (
                ({"hidden_size": -5}, ["hidden_size", "-5"]),
                ({"hidden_size": "wide"}, ["hidden_size", "wide"]),
                ({"num_attention_heads": 0}, ["num_attention_heads", "0"]),
                ({"num_key_value_heads": 3}, ["num_key_value_heads", "3"]),
                ({"vocab_size": 1 << 40}, ["vocab_size"]),
                ({"num_hidden_layers": None}, ["num_hidden_layers"]),
                ({"rms_norm_eps": -1}, ["rms_norm_eps"]),
                ({"rope_theta": 0}, ["rope_theta", "0"]),
                ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["yarn"]),
                ({"hidden_act": "relu"}, ["hidden_act", "relu"]),
                ({"model_type": "mixtral"}, ["mixtral"]),
                ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
                ({"surprise": 5}, ["surprise"]),
        ):
            with self.subTest(changes=changes):
                with open(self.file("config.json"), encoding="utf-8") as file:
                    before = file.read()
                self.rewrite(**changes)
                self.refused(*words)
                with open(self.file("config.json"), "w", encoding="utf-8") as file:
                    file.write(before)
        for content in ("", "{", "[]", "{\"model_type\": 5}"):
            with self.subTest(content=content):
                with open(self.file("config.json"), "w", encoding="utf-8") as file:
                    file.write(content)
                self.refused("config.json")

    def test_tokenizer(self):
        good = checkpoint.tokenizer()

        def bad(change, *words):
            with self.subTest(words=words):
                changed = json.loads(json.dumps(good))
                change(changed)
                checkpoint.write_json(self.path, "tokenizer.json", changed)
                self.refused("tokenizer.json", *words)

        bad(lambda t: t["model"]["merges"].append("h"), "merge")
        bad(lambda t: t["model"]["merges"].append("zzz qqq"), "zzz")
        bad(lambda t: t["model"].update(type="Unigram"), "Unigram")
        bad(lambda t: t["model"].update(vocab=[]), "vocab")
        bad(lambda t: t.update(normalizer={"type": "Surprise"}), "Surprise")
        with open(self.file("tokenizer.json"), "w", encoding="utf-8") as file:
            file.write("{\"model\":")
        self.refused("tokenizer.json")

    def test_what_does_not_fit_together(self):
        result = self.d.ctl("submit", "--name", "bad", "--model", self.path, "--data", self.d.text, "--seq-len", 65)
        self.assertRefused(result, EXIT_REFUSED, "--seq-len 65", "64")
        result = self.d.ctl("submit", "--name", "bad", "--model", "gpt-byte-1m", "--data", self.d.text, "--tokenizer",
                            self.path, "--steps", 1)
        self.assertIn(result.rc, (EXIT_REFUSED, EXIT_JOB_FAILED))
        self.assertIn(str(checkpoint.VOCAB), result.out + result.err)
        result = self.d.ctl("submit", "--name", "bad", "--model", "gpt-byte-1m", "--init-from", self.path)
        self.assertEqual(result.rc, EXIT_REFUSED, repr(result))


if __name__ == "__main__":
    harness.main()
