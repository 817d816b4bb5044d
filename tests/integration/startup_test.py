"""What keeps a daemon from starting: each with a clear error on stderr, and status 2 for what the operator must
correct in flags or file."""

import os
import shutil
import signal
import subprocess

import harness
from harness import EXIT_DONE, EXIT_REFUSED

EXIT_FAILURE, EXIT_USAGE = 1, 2
USER = 61002


class Startup(harness.TestCase):
    def start(self, *flags, argv=None, identity=None, seconds=20):
        """Runs a shardd that must not come to serve; gives what it said."""
        done = subprocess.run(
            argv or [harness.Daemon.binary("shardd"), *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, timeout=harness.patience(seconds), check=False, **(identity or {}))
        for report in harness.REPORTS:
            self.assertNotIn(report, done.stderr)
        return harness.Result(done.returncode, done.stdout, done.stderr)

    def refused(self, result, rc, *words):
        self.assertEqual(result.rc, rc, repr(result))
        for word in words:
            self.assertIn(str(word), result.err)

    def flags_of(self, daemon):
        return daemon.argv[1:]

    # ---- configuration ----

    def test_flags(self):
        for flags, words in (
                (["--rnks", "2"], ["--rnks", "--help"]),
                (["--ranks"], ["--ranks"]),
                (["--ranks", "0"], ["--ranks", "0", "1"]),
                (["--ranks", "two"], ["--ranks", "two"]),
                (["--memory-per-rank", "1Q"], ["--memory-per-rank", "1Q", "K, M, G"]),
                (["--memory-per-rank", "1K"], ["--memory-per-rank", "1K", "1M"]),
                (["--socket-mode", "999"], ["--socket-mode", "999", "octal"]),
                (["--log-level", "loud"], ["--log-level", "loud", "debug"]),
                (["--share-with-group", "maybe"], ["--share-with-group", "maybe"]),
                (["--data-root", "relative"], ["--data-root", "relative", "absolute"]),
                (["--device", "cuda"], ["cuda"]),
                (["--device", "abacus"], ["abacus", "cpu"]),
                (["--admin-user", "no such user"], ["admin_users", "no such user"]),
                (["--allow-group", "no such group"], ["allow_groups", "no such group"]),
                (["extra"], ["extra"]),
        ):
            with self.subTest(flags=flags):
                self.refused(self.start("--config", "/dev/null", *flags), EXIT_USAGE, "shardd: ", *words)

    def test_file(self):
        directory = self.daemon(start=False).directory
        path = os.path.join(directory, "shardd.conf")
        for text, words in (
                ("ranks = 2\nrnks = 3\n", [":2:", "rnks"]),
                ("# well\n\nranks = none\n", [":3:", "ranks", "none"]),
                ("ranks = 2\nranks = 3\n", [":2:", "ranks"]),
                ("[other]\nranks = 2\n", ["other"]),
                ("ranks\n", [":1:"]),
                ("ranks = 2\n\x00\n", [":2:", "NUL"]),
                ("max_queue = -1\n", [":1:", "max_queue", "-1"]),
                ("data_roots = /srv, relative\n", [":1:", "data_roots", "relative"]),
                ("socket =\n", [":1:", "socket"]),
        ):
            with self.subTest(text=text):
                with open(path, "w", encoding="ascii") as file:
                    file.write(text)
                self.refused(self.start("--config", path, "--check-config"), EXIT_USAGE, path, *words)
        with open(path, "w", encoding="ascii") as file:
            file.write("[shardd]\nranks = 2\n; comment\nmemory_per_rank = 1G\n")
        valid = self.start("--config", path, "--check-config")
        self.assertEqual(valid.rc, EXIT_DONE, repr(valid))
        self.assertIn("valid", valid.out)
        missing = self.start("--config", path + ".missing")
        self.refused(missing, EXIT_FAILURE, path + ".missing", "No such file")

    def test_help_and_version(self):
        text = self.start("--help")
        self.assertEqual(text.rc, EXIT_DONE)
        for key in ("socket", "state_dir", "memory_per_rank", "max_queue", "share_with_group"):
            self.assertIn(key, text.out)
        version = self.start("--version")
        self.assertEqual(version.rc, EXIT_DONE)
        self.assertRegex(version.out, r"^shardd \d")

    def test_reload(self):
        """SIGHUP takes over what may change, keeps the rest, and survives a file that is wrong."""
        self.need_root()
        daemon = self.daemon(start=False)
        path = os.path.join(daemon.directory, "shardd.conf")

        def write(text):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)

        def reload(word):
            before = daemon.log.count(word)
            daemon.process.send_signal(signal.SIGHUP)
            harness.wait_for(word, lambda: daemon.log.count(word) > before)

        write("share_with_group = no\n")
        daemon.argv[daemon.argv.index("/dev/null")] = path
        daemon.start()
        daemon.submit("ours", 100000000, uid=61001, gid=61001)
        daemon.wait_step("ours", 1)
        self.assertEqual(daemon.ok("--json", "jobs", uid=USER, gid=61001).lines, [])
        write("share_with_group = yes\nmax_jobs = 3\n")
        reload("reloaded")
        self.assertIn("max_jobs", daemon.log.splitlines()[-1])
        self.assertEqual(len(daemon.ok("--json", "jobs", uid=USER, gid=61001).lines), 1)
        write("share_with_group = maybe\n")
        reload("left as it was")
        self.assertIn(":1:", daemon.log.splitlines()[-1])
        self.assertEqual(len(daemon.ok("--json", "jobs", uid=USER, gid=61001).lines), 1)
        step = daemon.job("ours")["step"]
        daemon.wait_step("ours", step + 3)

    # ---- another daemon ----

    def test_state_directory_of_another_daemon(self):
        daemon = self.daemon()
        daemon.submit("bystander", 100000000)
        argv = [word if word != daemon.socket else daemon.socket + "2" for word in daemon.argv]
        result = self.start(argv=argv)
        self.refused(result, EXIT_FAILURE, daemon.state, "pid %d" % daemon.pid, "state_dir")
        self.assertFalse(os.path.exists(daemon.socket + "2"))
        daemon.wait_step("bystander", daemon.job("bystander")["step"] + 3)

    def test_socket_of_another_daemon(self):
        daemon = self.daemon()
        daemon.submit("bystander", 100000000)
        other = os.path.join(daemon.directory, "state2")
        argv = [word if word != daemon.state else other for word in daemon.argv]
        result = self.start(argv=argv)
        self.refused(result, EXIT_FAILURE, daemon.socket, "already listens")
        self.assertTrue(os.path.exists(daemon.socket))
        daemon.wait_step("bystander", daemon.job("bystander")["step"] + 3)
        self.assertServes(daemon)

    def test_leftovers_of_a_killed_daemon(self):
        """After kill -9 the socket and the lock file are still there; the next one starts all the same."""
        daemon = self.daemon()
        daemon.process.kill()
        daemon.process.wait()
        self.assertTrue(os.path.exists(daemon.socket))
        daemon.start()
        self.assertIn("stale socket", daemon.log)
        self.assertServes(daemon)

    def test_a_file_in_the_place_of_the_socket(self):
        daemon = self.daemon(start=False)
        harness.write_text(daemon.socket, 10)
        self.refused(self.start(argv=daemon.argv), EXIT_FAILURE, daemon.socket, "no socket")
        self.assertTrue(os.path.isfile(daemon.socket))

    def test_socket_that_cannot_be(self):
        daemon = self.daemon(start=False)
        for path, words in ((os.path.join(daemon.directory, "nowhere", "s"), ["nowhere", "No such file"]),
                            (os.path.join(daemon.directory, "x" * 120), ["107"])):
            with self.subTest(path=path):
                argv = [word if word != daemon.socket else path for word in daemon.argv]
                self.refused(self.start(argv=argv), EXIT_FAILURE, *words)

    # ---- state directory ----

    def test_state_directory_of_another_user(self):
        self.need_root()
        daemon = self.daemon(start=False)
        os.chmod(daemon.state, 0o755)
        identity = harness.run_as(USER)
        os.chown(daemon.directory, USER, USER)
        self.refused(self.start(argv=daemon.argv, identity=identity), EXIT_FAILURE, daemon.state, "Permission denied")

    def test_state_directory_on_a_read_only_mount(self):
        self.need_root()
        daemon = self.daemon(start=False)
        script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        argv = ["unshare", "--mount", "sh", "-c", script, daemon.state] + daemon.argv
        self.refused(self.start(argv=argv), EXIT_FAILURE, daemon.state, "Read-only file system")

    def test_state_directory_that_others_may_write(self):
        daemon = self.daemon(start=False)
        os.chmod(daemon.state, 0o777)
        self.refused(self.start(argv=daemon.argv), EXIT_FAILURE, daemon.state, "0700")

    def test_state_directory_that_is_a_file(self):
        daemon = self.daemon(start=False)
        shutil.rmtree(daemon.state)
        harness.write_text(daemon.state, 10)
        self.refused(self.start(argv=daemon.argv), EXIT_FAILURE, daemon.state)

    def test_an_ordinary_user_runs_a_daemon(self):
        self.need_root()
        daemon = self.daemon(identity=harness.run_as(USER))
        daemon.submit("mine", 5, uid=USER)
        self.assertEqual(daemon.wait_state("mine", "done")["owner_uid"], USER)
        # Its own user is the operator; another one is not.
        self.assertEqual(daemon.ok("--json", "jobs", uid=61003).lines, [])
        result = daemon.ctl("cancel", "mine", uid=61003)
        self.assertRefused(result, EXIT_REFUSED, "no job")


if __name__ == "__main__":
    harness.main()
