"""Data through the whole: text and JSONL through tokenizers, the token cache, and files that change."""

import json
import os
import shutil
import signal
import time

import harness
from harness import count, untimed

OWNER, OTHER = 4001, 4002
TOKENIZERS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "data", "tokenizers")


def documents(path, n, word="in the beginning was the word", prompts=False):
    with open(path, "w") as out:
        for i in range(n):
            text = "%s, number %d." % (word, i)
            out.write(json.dumps({"prompt": "Say: ", "completion": text} if prompts else {"text": text}) + "\n")
    os.chmod(path, 0o644)
    return path


class Data(harness.TestCase):
    def cached(self, daemon):
        return sorted(name for name in os.listdir(os.path.join(daemon.state, "tokens")) if name.endswith(".tokens"))

    def losses(self, daemon, name, *flags):
        daemon.submit(name, 6, *flags)
        daemon.wait_state(name, "done")
        return [step["loss"] for step in daemon.history(name)]

    def test_documents_train_alike_on_every_strategy(self):
        daemon = self.daemon()
        lines = documents(os.path.join(daemon.data, "lines.jsonl"), 200)
        asked = documents(os.path.join(daemon.data, "asked.jsonl"), 200, prompts=True)
        for number, (path, packing) in enumerate(((lines, "on"), (lines, "off"), (asked, "on"), (asked, "off"))):
            runs = [self.losses(daemon, "%s-%d" % (strategy, number), "--data", path, "--packing", packing, "--strategy", strategy)
                    for strategy in ("ddp", "zero3")]
            self.assertEqual(runs[0], runs[1])
            self.assertEqual(len(runs[0]), 6)
        self.assertEqual(len(self.cached(daemon)), 2, "one file for each text, however it is cut")

    def test_masked_prompts_are_not_counted(self):
        daemon = self.daemon()
        asked = documents(os.path.join(daemon.data, "asked.jsonl"), 50, word="x", prompts=True)
        daemon.submit("asked", 2, "--data", asked, "--packing", "off", "--seq-len", 64)
        daemon.wait_state("asked", "done")
        for step in daemon.history("asked"):
            # Two documents of "Say: " and "x, number N.": 12 or 13 targets each, none of the prompt.
            self.assertIn(step["tokens"], (24, 25, 26))

    def test_a_text_is_tokenized_once_and_again_after_a_restart_it_is_there(self):
        daemon = self.daemon()
        lines = documents(os.path.join(daemon.data, "lines.jsonl"), count(20000, 2000, 1000))
        first = self.losses(daemon, "first", "--data", lines)
        made = os.stat(os.path.join(daemon.state, "tokens", self.cached(daemon)[0]))
        daemon.process.kill()
        daemon.process.wait()
        daemon.start()
        self.assertEqual(self.losses(daemon, "second", "--data", lines), first)
        again = os.stat(os.path.join(daemon.state, "tokens", self.cached(daemon)[0]))
        self.assertEqual((made.st_ino, made.st_mtime_ns), (again.st_ino, again.st_mtime_ns))

    def test_a_file_that_changes_under_its_job(self):
        daemon = self.daemon()
        lines = documents(os.path.join(daemon.data, "lines.jsonl"), 200)
        daemon.submit("long", 1000000, "--data", lines)
        daemon.wait_step("long", 3)
        with open(lines, "a") as out:
            out.write("\n")
        job = daemon.wait_state("long", "failed")
        self.assertIn("has changed since it was opened", job["reason"])
        self.assertServes(daemon)
        self.losses(daemon, "new", "--data", lines)  # of the new contents

    def test_bad_files(self):
        daemon = self.daemon()
        bad = os.path.join(daemon.data, "bad.jsonl")
        with open(bad, "w") as out:
            out.write('{"text": "a"}\n{"text": 5}\n')
        result = daemon.ctl("submit", *daemon.tiny("bad", 3, "--data", bad))
        self.assertEqual(result.rc, harness.EXIT_JOB_FAILED, repr(result))
        self.assertIn("line 2: not an object with \"text\"", daemon.job("bad")["reason"])
        self.assertEqual(self.cached(daemon), [])
        broken = os.path.join(daemon.data, "tokenizer.json")
        with open(os.path.join(TOKENIZERS, "gpt2.json")) as file:
            text = file.read()
        for contents, word in ((text[:1000], "not JSON"), (text.replace('"merges":["', '"merges":["one two three","', 1), "merge 0"),
                               (text.replace("ByteLevel", "Whitespace", 1), "'Whitespace'")):
            with open(broken, "w") as out:
                out.write(contents)
            result = daemon.ctl("submit", *daemon.tiny("bad-tokenizer", 3, "--tokenizer", broken))
            self.assertRefused(result, harness.EXIT_REFUSED, "--tokenizer", word)

    def test_cancel_while_tokenizing(self):
        daemon = self.daemon()
        lines = documents(os.path.join(daemon.data, "lines.jsonl"), count(1000000, 300000, 100000))
        daemon.submit("slow", 3, "--data", lines)
        daemon.ok("cancel", "slow")
        self.assertEqual(daemon.job("slow")["state"], "cancelled")
        self.assertServes(daemon)
        daemon.ok("delete", "slow")

    def test_a_stop_does_not_wait_for_a_text(self):
        daemon = self.daemon()
        lines = documents(os.path.join(daemon.data, "lines.jsonl"), count(1000000, 300000, 100000))
        daemon.submit("slow", 3, "--data", lines)
        begin = time.monotonic()
        daemon.stop(signal.SIGTERM)
        self.assertLess(time.monotonic() - begin, harness.patience(10))

    def test_tokenize(self):
        daemon = self.daemon()
        for name in ("llama3.json", "sp_bpe.model"):
            shutil.copy(os.path.join(TOKENIZERS, name), daemon.data)
        llama = os.path.join(daemon.data, "llama3.json")
        text = "In the beginning God created caf\u00e9 \U0001f600"
        tokens = daemon.ok("--json", "tokenize", "--tokenizer", llama, "--text", text).json["tokens"]
        self.assertEqual(tokens[0], 1200, "<|begin_of_text|>")
        self.assertLess(len(tokens), len(text.encode()))
        back = daemon.ok("tokenize", "--tokenizer", llama, "--tokens", ",".join(map(str, tokens[1:]))).out
        self.assertEqual(back.rstrip("\n"), text)
        model = os.path.join(daemon.data, "sp_bpe.model")
        tokens = daemon.ok("--json", "tokenize", "--tokenizer", model, "--text", text).json["tokens"]
        back = daemon.ok("tokenize", "--tokenizer", model, "--tokens", ",".join(map(str, tokens[1:]))).out
        self.assertEqual(back.rstrip("\n"), text)
        # A directory as Llama 2 and Mistral have it: the tokenizer.json is of another kind.
        both = os.path.join(daemon.data, "both")
        os.mkdir(both)
        shutil.copy(model, os.path.join(both, "tokenizer.model"))
        with open(llama) as file, open(os.path.join(both, "tokenizer.json"), "w") as out:
            out.write(file.read().replace('"byte_fallback":false', '"byte_fallback":true', 1))
        self.assertEqual(daemon.ok("--json", "tokenize", "--tokenizer", both, "--text", text).json["tokens"], tokens)
        # Tokens that were added beside it would be read as other ones.
        for added, good in (({"<s>": 1, "\u2581the": 0}, False), ({"<s>": 1}, True), ({"<|im_start|>": 100000}, False)):
            with open(os.path.join(both, "added_tokens.json"), "w") as out:
                json.dump(added, out)
            answer = daemon.ctl("tokenize", "--tokenizer", both, "--text", text)
            if good:
                self.assertEqual(answer.out.split(), list(map(str, tokens)))
            else:
                self.assertRefused(answer, harness.EXIT_REFUSED, "added_tokens.json", list(added)[-1])
        os.unlink(os.path.join(both, "added_tokens.json"))
        os.unlink(os.path.join(both, "tokenizer.model"))
        self.assertRefused(daemon.ctl("tokenize", "--tokenizer", both, "--text", text), harness.EXIT_REFUSED, "byte_fallback")
        lines = documents(os.path.join(daemon.data, "lines.jsonl"), 300)
        done = daemon.ok("--json", "tokenize", "--tokenizer", llama, "--data", lines).lines[-1]
        self.assertEqual(done["documents"], 300)
        self.assertEqual(os.path.basename(done["path"]), self.cached(daemon)[0])

    def test_only_who_may_read_a_text_gets_its_tokens(self):
        self.need_root()
        daemon = self.daemon()
        lines = documents(os.path.join(daemon.data, "lines.jsonl"), 100)
        os.chown(lines, OWNER, OWNER)
        os.chmod(lines, 0o600)
        daemon.submit("mine", 3, "--data", lines, uid=OWNER)
        daemon.wait_state("mine", "done", seconds=60)
        refused = daemon.caller(uid=OTHER)("create", name="theirs", steps=3, seq_len=16, micro_batch=1, data=lines)
        self.assertEqual(refused.get("errno"), -4, refused)
        self.assertIn("may not read it", refused["message"])
        path = os.path.join(daemon.state, "tokens", self.cached(daemon)[0])
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertEqual(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700)


if __name__ == "__main__":
    harness.main()
