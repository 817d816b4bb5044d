"""A job driven by clients: calls with sequence numbers happen once and in order, whatever is sent again."""

import harness
from harness import count

FAILED_PRECONDITION = 9


class Drive(harness.TestCase):
    def setUp(self):
        self.d = self.daemon()
        self.caller = self.d.caller()

    def create(self, name="driven", **more):
        values = dict({"steps": 0, "seq_len": 16, "micro_batch": 1, "ranks": 2}, **more)
        return self.caller.ok("create", name=name, **values)["id"]

    def job(self, name="driven"):
        return self.d.job(name)

    def fails(self, answer, status, *words):
        self.assertFalse(answer["ok"], answer)
        self.assertEqual(answer["status"], status, answer)
        for word in words:
            self.assertIn(str(word), answer["message"])

    # ---- TrainStep ----

    def test_loop(self):
        steps = count(100, 60)
        job = self.create()
        answers = [self.caller.ok("train", job=job, seq=i + 1, rows=2, seed=i % 4) for i in range(steps)]
        self.assertEqual([answer["step"] for answer in answers], list(range(1, steps + 1)))
        self.assertEqual([answer["samples"] for answer in answers], [2 * (i + 1) for i in range(steps)])
        self.assertTrue(all(answer["tokens"] == 2 * 15 for answer in answers), "the last token of each has no target")
        self.assertLess(answers[-1]["loss"], answers[0]["loss"] - 0.5, "four batches over and over are learnt")
        self.assertEqual(self.job()["next_seq"], steps + 1)
        # Whoever attaches sees the very answers.
        self.d.ok("cancel", "driven")
        seen = self.d.ctl("--json", "attach", "driven", "--from", 1).steps
        self.assertSteps(seen, steps)
        for answer, step in zip(answers, seen):
            for key in ("loss", "grad_norm", "lr", "tokens", "skipped", "samples", "step_ms"):
                self.assertEqual(answer[key], step[key])

    def test_the_number_of_steps_ends_the_job(self):
        job = self.create(steps=3)
        for seq in (1, 2, 3):
            self.caller.ok("train", job=job, seq=seq, rows=2)
        self.assertEqual(self.job()["state"], "done")
        self.fails(self.caller("train", job=job, seq=4, rows=2), FAILED_PRECONDITION, "done")
        # Its weights are there, and its last answers.
        self.caller.ok("forward", job=job, rows=1)
        self.assertEqual(self.caller.ok("train", job=job, seq=3, rows=2)["step"], 3)

    # ---- sequence numbers ----

    def test_an_answered_number_is_answered_again_and_not_executed(self):
        job = self.create()
        first = [self.caller.ok("train", job=job, seq=seq, rows=2, seed=seq) for seq in (1, 2, 3)]
        for _ in range(3):
            for seq in (2, 1, 3):
                # Another batch under an old number is not looked at.
                self.assertEqual(self.caller.ok("train", job=job, seq=seq, rows=4, seed=99), first[seq - 1])
        self.assertEqual(self.job()["step"], 3)
        # From another connection too.
        self.assertEqual(self.d.caller().ok("train", job=job, seq=3, rows=2, seed=3), first[2])
        self.assertEqual(self.caller.ok("train", job=job, seq=4, rows=2)["step"], 4)

    def test_retries_change_no_number(self):
        once, again = self.create("once"), self.create("again")
        for seq in range(1, count(20, 8)):
            a = self.caller.ok("train", job=once, seq=seq, rows=2, seed=seq)
            b = self.caller.ok("train", job=again, seq=seq, rows=2, seed=seq)
            self.assertEqual(self.caller.ok("train", job=again, seq=seq, rows=2, seed=seq), b)
            a.pop("step_ms"), b.pop("step_ms")
            self.assertEqual(a, b)

    def test_a_gap_is_refused(self):
        job = self.create()
        self.fails(self.caller("train", job=job, seq=2, rows=2), FAILED_PRECONDITION, "seq 2", "gap", "next is 1")
        self.fails(self.caller("train", job=job, seq=0, rows=2), FAILED_PRECONDITION, "next is 1")
        self.caller.ok("train", job=job, seq=1, rows=2)
        self.fails(self.caller("train", job=job, seq=3, rows=2), FAILED_PRECONDITION, "seq 3", "next is 2")
        self.fails(self.caller("optim", job=job, seq=1), FAILED_PRECONDITION, "TrainStep", "OptimStep")
        self.assertEqual(self.job()["step"], 1)

    def test_an_answer_too_old_to_be_kept_says_so(self):
        job = self.create()
        last = 0
        for seq in range(1, 400):
            self.caller.ok("train", job=job, seq=seq, tokens="1,2,3")
            last = seq
            if seq % 50 == 0 and not self.caller("train", job=job, seq=1, tokens="1,2,3")["ok"]:
                break
        answer = self.caller("train", job=job, seq=1, tokens="1,2,3")
        self.fails(answer, FAILED_PRECONDITION, "seq 1", "no longer kept", "next is %d" % (last + 1))
        self.assertEqual(self.job()["step"], last)

    def test_two_clients_race_for_the_same_numbers(self):
        """Both send every number: each is executed once, and both get its answer."""
        job = self.create()
        callers = [self.d.caller(), self.d.caller()]
        steps = count(60, 20)
        for seq in range(1, steps + 1):
            for caller in callers[::1 if seq % 2 else -1]:
                caller.send("train", job=job, seq=seq, rows=2, seed=seq)
            answers = [caller.receive() for caller in callers]
            self.assertTrue(answers[0]["ok"], answers)
            self.assertEqual(answers[0], answers[1])
            self.assertEqual(answers[0]["step"], seq)
        self.assertEqual(self.job()["step"], steps)

    def test_sixteen_clients_race_ahead(self):
        """Each sends the number that it believes is next; whoever is late gets the stored answer or is told the gap."""
        job = self.create()
        callers = [self.d.caller() for _ in range(count(16, 6))]
        done = {}
        for _ in range(count(20, 8)):
            for i, caller in enumerate(callers):
                caller.send("train", job=job, seq=len(done) + 1 + i % 2, rows=2, seed=1)
            for i, caller in enumerate(callers):
                answer = caller.receive()
                if answer["ok"]:
                    self.assertEqual(done.setdefault(answer["step"], answer), answer)
                else:
                    self.fails(answer, FAILED_PRECONDITION, "gap")
        self.assertEqual(sorted(done), list(range(1, self.job()["step"] + 1)))

    def test_a_client_killed_with_a_call_under_way(self):
        job = self.create()
        self.caller.ok("train", job=job, seq=1, rows=2)
        self.d.ok("pause", "driven")
        victim = self.d.caller()
        victim.send("train", job=job, seq=2, rows=2, seed=5)
        harness.wait_for("the call in the queue", lambda: self.caller.ok("get", job=job)["next_seq"] == 3)
        victim.process.kill()
        victim.process.wait()
        self.d.ok("resume", "driven")
        # It was accepted, so it counts; its answer waits for whoever asks.
        self.assertEqual(self.caller.ok("train", job=job, seq=2, rows=2, seed=5)["step"], 2)
        self.assertEqual(self.job()["step"], 2)

    # ---- ForwardBackward, OptimStep, Forward ----

    def test_forward_backward_and_optim_step_are_train_step(self):
        whole, parts = self.create("whole"), self.create("parts")
        seq = 0
        for i in range(1, count(12, 5)):
            a = self.caller.ok("train", job=whole, seq=i, rows=2, seed=i)
            b = self.caller.ok("backward", job=parts, seq=seq + 1, rows=2, seed=i)
            c = self.caller.ok("optim", job=parts, seq=seq + 2)
            seq += 2
            self.assertEqual(a["loss"], b["loss"])
            for key in ("step", "loss", "grad_norm", "lr", "tokens", "samples"):
                self.assertEqual(a[key], c[key], key)

    def test_gradients_add_up(self):
        """Two calls of one round each are one step of two rounds: the loss is the mean over all tokens."""
        job = self.create()
        a = self.caller.ok("backward", job=job, seq=1, rows=2, seed=1)
        b = self.caller.ok("backward", job=job, seq=2, rows=2, len=8, seed=2)
        step = self.caller.ok("optim", job=job, seq=3)
        tokens = a["tokens"] + b["tokens"]
        self.assertEqual((a["tokens"], b["tokens"], step["tokens"]), (30, 14, 44))
        self.assertAlmostEqual(step["loss"], (a["loss"] * a["tokens"] + b["loss"] * b["tokens"]) / tokens, places=6)
        self.assertEqual(step["step"], 1)
        self.fails(self.caller("optim", job=job, seq=4), FAILED_PRECONDITION, "no gradients", "ForwardBackward")

    def test_overrides(self):
        job = self.create()
        self.assertEqual(self.caller.ok("train", job=job, seq=1, rows=2, lr="0.015625")["lr"], 0.015625)
        before = self.caller.ok("forward", job=job, rows=2, seed=9)["loss"]
        self.assertEqual(self.caller.ok("train", job=job, seq=2, rows=2, lr="0")["lr"], 0)
        same = self.caller.ok("forward", job=job, rows=2, seed=9)["loss"]
        self.assertEqual(same, before, "a step of rate 0 moves nothing")
        self.caller.ok("train", job=job, seq=3, rows=2)
        self.assertNotEqual(self.caller.ok("forward", job=job, rows=2, seed=9)["loss"], before)

    def test_forward_changes_nothing(self):
        job = self.create()
        self.caller.ok("train", job=job, seq=1, rows=2)
        first = self.caller.ok("forward", job=job, rows=3, seed=9)
        for _ in range(3):
            self.assertEqual(self.caller.ok("forward", job=job, rows=3, seed=9), first)
        self.assertEqual(self.caller.ok("get", job=job)["next_seq"], 2)
        self.assertEqual(self.caller.ok("backward", job=job, seq=2, rows=3, seed=9)["loss"], first["loss"])

    def test_logprobs_make_the_loss(self):
        job = self.create()
        for verb, more in (("forward", {}), ("backward", {"seq": 1})):
            answer = self.caller.ok(verb, job=job, tokens="5,6,7,8,9", targets="6,7,-100,9,10", logprobs=1, **more)
            self.assertEqual(answer["tokens"], 4)
            values = answer["logprobs"][0]
            self.assertEqual(len(values), 5)
            self.assertEqual(values[2], 0, "an ignored target")
            self.assertTrue(all(value < 0 for i, value in enumerate(values) if i != 2), values)
            self.assertAlmostEqual(answer["loss"], -sum(values) / 4, places=5)
        self.assertEqual(self.caller.ok("forward", job=job, rows=2)["logprobs"], [])

    def test_masked_tokens_and_uneven_lengths(self):
        job = self.create()
        nothing = self.caller.ok("forward", job=job, tokens="1,2,3", targets="-100,-100,-100")
        self.assertEqual((nothing["tokens"], nothing["loss"]), (0, 0))
        # Padding is not seen: alone or beside a longer sequence a sequence has the same loss.
        alone = self.caller.ok("forward", job=job, tokens="1,2,3,4", logprobs=1)["logprobs"][0]
        self.assertEqual(len(alone), 4)
        step = self.caller.ok("train", job=job, seq=1, tokens="1,2,3", targets="-100,-100,-100")
        self.assertEqual(step["tokens"], 0)

    # ---- beside others ----

    def test_reads_go_on_beside_steps(self):
        """Forward calls and generation of others between the steps of a client change none of its numbers."""
        quiet, busy = self.create("quiet"), self.create("busy")
        steps = count(30, 10)
        expected = [self.caller.ok("train", job=quiet, seq=i + 1, rows=2, seed=i) for i in range(steps)]
        talk = self.d.spawn("--json", "generate", "busy", "--prompt", "a", "--max-tokens", 100000)
        other = self.d.caller()
        for i in range(steps):
            other.send("forward", job=busy, rows=2, seed=i)
            answer = self.caller.ok("train", job=busy, seq=i + 1, rows=2, seed=i)
            self.assertTrue(other.receive()["ok"])
            self.assertEqual((answer["loss"], answer["grad_norm"]), (expected[i]["loss"], expected[i]["grad_norm"]))
        self.assertGreater(len(talk.lines), 0)

    def test_eval_of_the_client(self):
        self.create()
        self.caller.ok("train", job="driven", seq=1, rows=2)
        found = self.d.evaluate("driven", self.d.text, "--max-tokens", 100)
        self.assertGreater(found["loss"], 0)
        self.assertLess(found["loss"], 7)
        self.assertEqual((found["tokens"], found["step"]), (100, 1))
        self.assertEqual(self.d.job("driven")["step"], 1)


if __name__ == "__main__":
    harness.main()
