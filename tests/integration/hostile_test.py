"""What comes to the socket from somebody who speaks no gRPC, or opens too much: the daemon stays up, keeps
nothing, and a job that runs meanwhile takes all its steps."""

import os
import random
import select
import subprocess
import time

import harness
from harness import EXIT_UNREACHABLE, count, wait_for

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


class Hostile(harness.BystanderCase):
    flags = ("--max-connections", "256")

    def setUp(self):
        super().setUp()
        wait_for("one connection", lambda: self.d.status()["connections"] == 1)
        self.fds = self.d.fds()

    def tearDown(self):
        super().tearDown()
        wait_for("one connection", lambda: self.d.status()["connections"] == 1, 30)
        wait_for("%d descriptors, not %d" % (self.fds, self.d.fds()), lambda: self.d.fds() <= self.fds, 30)

    def throw(self, data, wait=True):
        """Sends the bytes as far as the daemon takes them; True when it hung up."""
        raw = self.d.connect()
        try:
            try:
                raw.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                return True
            if not wait:
                return False
            end = time.monotonic() + harness.patience(3)
            while time.monotonic() < end:
                if select.select([raw], [], [], 0.1)[0]:
                    try:
                        if not raw.recv(65536):
                            return True
                    except ConnectionResetError:
                        return True
            return False
        finally:
            raw.close()

    def test_bytes_that_are_no_http2(self):
        rng = random.Random(3)
        hello = bytes.fromhex("16030100c8010000c40303") + rng.randbytes(190)
        for name, data in (
                ("random", rng.randbytes(4096)),
                ("TLS hello", hello),
                ("HTTP/1", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                ("a megabyte of zeros", bytes(1 << 20)),
                ("a preface with one byte wrong", PREFACE[:10] + b"X" + PREFACE[11:]),
                ("a frame of 16 MB", PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100000)),
                ("headers that are no HPACK",
                 PREFACE + SETTINGS + b"\x00\x00\x20\x01\x05\x00\x00\x00\x01" + b"\xff" * 32),
        ):
            with self.subTest(bytes=name):
                self.assertTrue(self.throw(data), "the daemon keeps the connection")

    def test_random_bytes_after_the_preface(self):
        rng = random.Random(5)
        for _ in range(count(60, 20)):
            self.throw(PREFACE + SETTINGS + rng.randbytes(rng.randint(1, 3000)), wait=False)

    def test_immediate_close(self):
        for _ in range(count(300, 100)):
            self.d.connect().close()

    def test_half_a_preface_and_silence(self):
        held = []
        for n in range(1, len(PREFACE)):
            raw = self.d.connect()
            raw.sendall(PREFACE[:n])
            held.append(raw)
        self.assertServes(self.d)
        for raw in held:
            raw.close()

    def test_200_idle_connections(self):
        held = [self.d.connect() for _ in range(200)]
        wait_for("200 connections", lambda: self.d.status()["connections"] >= 201)
        # Others are served, and at once.
        began = time.monotonic()
        self.d.ok("jobs")
        self.assertLess(time.monotonic() - began, harness.patience(2))
        tokens = self.d.ok("--json", "generate", "bystander", "--prompt", "a", "--max-tokens", 3).lines
        self.assertEqual([set(line) for line in tokens],
                         [{"token", "logprob", "step"}] * 2 + [{"token", "logprob", "step", "finish"}])
        for raw in held:
            raw.close()

    def test_too_many_connections(self):
        held = []
        # The answers of status come over a connection of their own.
        for _ in range(256):
            held.append(self.d.connect())
        wait_for("a refusal in the log", lambda: self.refused() or not held.append(self.d.connect()))
        result = self.d.ctl("jobs", seconds=20)
        self.assertRefused(result, EXIT_UNREACHABLE, self.d.socket)
        self.assertIn("max_connections", self.d.log)
        for raw in held:
            raw.close()
        wait_for("room", lambda: self.d.ctl("jobs").rc == 0)

    def refused(self):
        return "refused a connection" in self.d.log

    def test_one_user_cannot_take_all_connections(self):
        self.need_root()
        greedy = self.d.caller(uid=61002)
        greedy.ok("health")
        # A child of that user holds as many as it gets.
        hold = ("import socket, sys, time\n"
                "held = []\n"
                "for _ in range(256):\n"
                "    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); held.append(s)\n"
                "print('ready', flush=True)\n"
                "sys.stdin.read()\n")
        child = harness.start(["python3", "-c", hold, self.d.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              **harness.run_as(61002))
        try:
            self.assertEqual(child.stdout.readline(), b"ready\n")
            wait_for("the user's share", self.refused)
            self.assertLessEqual(self.d.status()["connections"], 193)
            self.d.ok("jobs", uid=61003)
            self.assertServes(self.d)
        finally:
            child.stdin.close()
            child.wait(harness.patience(10))
            child.stdout.close()
        greedy.end()

    def test_socket_mode_keeps_others_out(self):
        self.need_root()
        os.chmod(self.d.socket, 0o600)
        result = self.d.ctl("jobs", uid=61002)
        self.assertRefused(result, EXIT_UNREACHABLE, self.d.socket)
        os.chmod(self.d.socket, 0o666)


if __name__ == "__main__":
    harness.main()
