"""Who may do what, with real processes of other users: jobs of others, group and admin rules, data files."""

import os

import harness
from harness import EXIT_DONE, EXIT_REFUSED, count

OWNER, OTHER, MATE, ADMIN, DEPUTY = 61001, 61002, 61003, 61004, 61005  # users that no file of the system names
GROUP, ADMIN_GROUP, ALLOWED_GROUP = 61001, 61050, 61060
STEPS = count(400, 80, 50)


class Access(harness.TestCase):
    def setUp(self):
        self.need_root()

    def commands(self, name):
        """Every command that names a job."""
        return [
            ["attach", name, "--from", 1], ["pause", name], ["resume", name], ["cancel", name], ["delete", name],
            ["generate", name, "--prompt", "a"], ["eval", name, "--data", "/etc/passwd"], ["checkpoint", name],
            ["export", name, "--output", "/tmp/nowhere"], ["reshard", name, "--strategy", "ddp"],
        ]

    def test_another_user_sees_nothing_and_changes_nothing(self):
        daemon = self.daemon()
        made = daemon.submit("secret", STEPS, uid=OWNER)
        self.assertEqual(made["owner_uid"], OWNER)
        daemon.wait_step("secret", 2)
        self.assertEqual(daemon.ok("--json", "jobs", uid=OTHER).out, "")
        self.assertEqual(daemon.status(uid=OTHER)["jobs"], [])
        self.assertEqual(len(daemon.ok("jobs", uid=OTHER).out.strip().splitlines()), 1, "more than the heading")
        self.assertNotIn("secret", daemon.ok("status", uid=OTHER).out)
        for ref in ("secret", made["id"]):
            for command in self.commands(ref):
                with self.subTest(command=command):
                    result = daemon.ctl(*command, uid=OTHER)
                    self.assertRefused(result, EXIT_REFUSED, "no job '%s'" % ref)
                    # Not to be told from a job that does not exist.
                    nothing = "n" * len(ref)
                    absent = daemon.ctl(*[nothing if word == ref else word for word in command], uid=OTHER)
                    self.assertEqual(absent.err.replace(nothing, ref), result.err)
                    self.assertEqual(absent.rc, result.rc)
        # The name is free for others: nothing tells that somebody uses it.
        daemon.submit("secret", 3, uid=OTHER)
        self.assertEqual(daemon.job("secret", uid=OTHER)["owner_uid"], OTHER)
        done = daemon.spawn("--json", "attach", "secret", "--from", 1, uid=OWNER).wait(60)
        self.assertEqual(done.rc, EXIT_DONE, repr(done))
        self.assertSteps(done.steps, STEPS)

    def test_another_user_cannot_drive(self):
        daemon = self.daemon()
        owner, other = daemon.caller(uid=OWNER), daemon.caller(uid=OTHER)
        job = owner.ok("create", name="driven", steps=0, seq_len=16, micro_batch=1)
        owner.ok("train", job=job["id"], seq=1, rows=2)
        for verb in ("train", "backward", "optim", "forward", "get", "cancel"):
            for ref in ("driven", job["id"]):
                with self.subTest(verb=verb, ref=ref):
                    answer = other(verb, job=ref, seq=2, rows=2)
                    self.assertFalse(answer["ok"])
                    self.assertEqual(answer["status"], 5, answer)  # NOT_FOUND
                    self.assertEqual(answer["errno"], -2, answer)
        self.assertEqual(owner.ok("train", job="driven", seq=2, rows=2)["step"], 2)

    def test_a_request_id_belongs_to_its_user(self):
        daemon = self.daemon()
        first = daemon.caller(uid=OWNER).ok("create", request="same", steps=1)
        second = daemon.caller(uid=OTHER).ok("create", request="same", steps=1)
        self.assertNotEqual(first["id"], second["id"])

    def test_members_of_the_group_may_see_where_the_operator_says_so(self):
        for share in ("no", "yes"):
            with self.subTest(share=share):
                daemon = self.daemon("--share-with-group", share)
                daemon.submit("ours", STEPS, uid=OWNER, gid=GROUP)
                daemon.wait_step("ours", 1)
                seen = [job["name"] for job in daemon.ok("--json", "jobs", uid=MATE, gid=GROUP).lines]
                self.assertEqual(seen, ["ours"] if share == "yes" else [])
                self.assertEqual(daemon.ok("--json", "jobs", uid=OTHER).lines, [])
                change = daemon.ctl("cancel", "ours", uid=MATE, gid=GROUP)
                sample = daemon.ctl("generate", "ours", "--prompt", "a", uid=MATE, gid=GROUP)
                if share == "no":
                    self.assertRefused(change, EXIT_REFUSED, "no job 'ours'")
                    self.assertRefused(sample, EXIT_REFUSED, "no job 'ours'")
                else:
                    self.assertRefused(change, EXIT_REFUSED, "belongs to uid %d" % OWNER, "may see it")
                    self.assertRefused(sample, EXIT_REFUSED, "belongs to uid %d" % OWNER)
                    watched = daemon.ctl("--json", "attach", "ours", "--from", 1, uid=MATE, gid=GROUP, seconds=60)
                    self.assertEqual(watched.rc, EXIT_DONE, repr(watched))
                    self.assertSteps(watched.steps, STEPS)

    def test_admins_by_user_and_by_group(self):
        daemon = self.daemon("--admin-user", str(ADMIN), "--admin-group", str(ADMIN_GROUP))
        for uid, gid in ((ADMIN, ADMIN), (DEPUTY, ADMIN_GROUP), (0, 0)):
            with self.subTest(uid=uid):
                name = "job-%d" % uid
                daemon.submit(name, 100000000, uid=OWNER)
                daemon.wait_step(name, 1)
                self.assertEqual(daemon.job(name, uid=uid, gid=gid)["owner_uid"], OWNER)
                text = daemon.ok("generate", name, "--prompt", "a", "--max-tokens", 4, uid=uid, gid=gid).out
                self.assertGreater(len(text), 0)
                daemon.ok("pause", name, uid=uid, gid=gid)
                cancelled = daemon.ok("--json", "cancel", name, uid=uid, gid=gid).json
                self.assertEqual(cancelled["state"], "cancelled")
                self.assertIn("by uid %d" % uid, daemon.job(name, uid=OWNER)["reason"])
                daemon.ok("delete", name, uid=uid, gid=gid)
        # The group alone, without being listed, gives nothing.
        daemon.submit("other", 3, uid=OWNER)
        self.assertRefused(daemon.ctl("cancel", "other", uid=OTHER), EXIT_REFUSED, "no job")

    def test_only_members_of_the_allowed_groups_use_the_daemon(self):
        daemon = self.daemon("--allow-group", str(ALLOWED_GROUP))
        inside = daemon.submit("mine", 3, uid=OWNER, gid=ALLOWED_GROUP)
        self.assertEqual(inside["owner_uid"], OWNER)
        for command in (["jobs"], ["status"], ["submit", *daemon.tiny("no", 3)], ["plan", "--model", "gpt-byte-1m"],
                        ["attach", "mine"]):
            with self.subTest(command=command[0]):
                self.assertRefused(daemon.ctl(*command, uid=OTHER), EXIT_REFUSED, "uid %d" % OTHER, "allow_groups")
        self.assertEqual(daemon.ok("--json", "jobs", uid=0).lines[0]["name"], "mine")

    def test_jobs_of_one_user_are_limited(self):
        daemon = self.daemon("--max-jobs-per-user", "2")
        for name in ("a", "b"):
            daemon.submit(name, 3, uid=OWNER)
        self.assertRefused(daemon.ctl("submit", *daemon.tiny("c", 3), uid=OWNER), EXIT_REFUSED, "max_jobs_per_user")
        daemon.submit("c", 3, uid=OTHER)


class Files(harness.TestCase):
    """A client never reads through the daemon what it could not read itself."""

    def setUp(self):
        self.need_root()
        self.d = self.daemon()
        outside = os.path.join(self.d.directory, "outside")
        os.mkdir(outside)
        os.chmod(outside, 0o755)
        self.outside = harness.write_text(os.path.join(outside, "text"), 5000)

    def path(self, name):
        return os.path.join(self.d.data, name)

    def create(self, uid, gid=None, **values):
        """The bare call: shardctl would look at the file itself before it asks the daemon."""
        caller = self.d.caller(uid=uid, gid=gid)
        try:
            return caller("create", name="x", steps=3, seq_len=16, micro_batch=1, **values)
        finally:
            caller.end()

    def refused(self, path, *words, uid=OTHER, gid=None, key="data"):
        values = {key: path} if key == "data" else {"data": self.d.text, key: path, "eval_every": 1}
        answer = self.create(uid, gid, **values)
        self.assertFalse(answer["ok"], answer)
        # INVALID_ARGUMENT, NOT_FOUND or PERMISSION_DENIED
        self.assertIn(answer["status"], (3, 5, 7), answer)
        for word in (path,) + words:
            self.assertIn(word, answer["message"])
        self.assertEqual(self.d.ok("--json", "jobs").lines, [])

    def accepted(self, path, uid=OTHER, gid=None):
        self.d.submit("y", 2, "--data", path, uid=uid, gid=gid)
        self.assertEqual(self.d.wait_state("y", "done", "failed")["state"], "done")
        self.d.ok("delete", "y")

    def test_private_file_of_another_user(self):
        path = harness.write_text(self.path("private"), 5000)
        os.chown(path, OWNER, OWNER)
        os.chmod(path, 0o600)
        self.refused(path, "uid %d" % OTHER)
        self.accepted(path, uid=OWNER)
        os.chmod(path, 0o640)
        self.refused(path)
        self.accepted(path, uid=OTHER, gid=OWNER)
        # Who is of the group gets the group's rights, be the others' greater.
        os.chmod(path, 0o604)
        self.refused(path, uid=MATE, gid=OWNER)
        self.accepted(path)

    def test_evaluation_data_too(self):
        path = harness.write_text(self.path("held"), 5000)
        os.chmod(path, 0o600)
        self.refused(path, "uid %d" % OTHER, key="eval_data")

    def test_directory_that_may_not_be_searched(self):
        closed = self.path("closed")
        os.mkdir(closed)
        path = harness.write_text(os.path.join(closed, "text"), 5000)
        os.chown(closed, OWNER, OWNER)
        os.chmod(closed, 0o700)
        self.refused(path, "directory")
        self.accepted(path, uid=OWNER)

    def test_outside_the_roots(self):
        for path in (self.outside, "/etc/passwd", "/proc/self/environ", self.path("../outside/text")):
            with self.subTest(path=path):
                self.refused(path)
        self.refused("/etc/passwd", self.d.data, uid=0)

    def test_links(self):
        os.symlink(self.outside, self.path("absolute"))
        os.symlink("../outside/text", self.path("relative"))
        os.symlink("../outside", self.path("directory"))
        os.symlink("/proc/self/cwd", self.path("magic"))
        os.symlink("loop", self.path("loop"))
        os.symlink("text", self.path("inside"))
        for name in ("absolute", "relative", "directory/text", "magic/text", "loop"):
            with self.subTest(link=name):
                self.refused(self.path(name))
                self.refused(self.path(name), uid=0)
        self.accepted(self.path("inside"))

    def test_not_a_regular_file(self):
        os.mkfifo(self.path("pipe"))
        os.chmod(self.path("pipe"), 0o666)
        os.mkdir(self.path("dir"))
        for name, word in (("pipe", "pipe"), ("dir", "directory")):
            with self.subTest(kind=word):
                self.refused(self.path(name), word)

    def test_existence_outside_is_not_told(self):
        """A name outside the roots answers the same whether it exists or not."""
        there = self.create(OTHER, data="/root/.profile")
        absent = self.create(OTHER, data="/root/.absent!")
        self.assertFalse(there["ok"])
        self.assertEqual(there["message"].replace(".profile", ".absent!"), absent["message"])
        self.assertEqual(there["status"], absent["status"])

    def test_a_daemon_without_roots_opens_no_file(self):
        daemon = self.daemon(start=False)
        at = daemon.argv.index("--data-root")
        del daemon.argv[at:at + 2]
        daemon.start()
        self.assertRefused(daemon.ctl("submit", *daemon.tiny("x", 3)), EXIT_REFUSED, "data_roots")


if __name__ == "__main__":
    harness.main()
