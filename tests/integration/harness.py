"""Private daemons and clients as real processes, for the tests of the whole. Python's standard library alone.

A test file ends in `harness.main()`: it runs the file's unittest cases against the programs named on its command line
and writes their outcomes where Bazel looks for them. Whatever a test starts is ended with it, by process id; every
daemon must stop with status 0 on SIGTERM and leave no sanitizer report, or its test fails.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ElementTree

# "", "asan" or "tsan"; known before the test files count anything.
SANITIZER = ([arg.split("=")[1] for arg in sys.argv if arg.startswith("--sanitizer=")] or [""])[-1]
BINARIES = ""  # directory that every user may enter, with the programs
STARTED = []  # every process, so that a test which is told to stop takes them along
DIRECTORIES = []

# What the sanitizers print when they find something.
REPORTS = ("Sanitizer", "runtime error:", "detected memory leaks")

EXIT_DONE, EXIT_JOB_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_REFUSED = range(5)


def count(plain, asan, tsan=None):
    """How often to do something: sanitizers make everything many times slower."""
    return {"": plain, "asan": asan}.get(SANITIZER, asan if tsan is None else tsan)


def patience(seconds):
    """A time limit that a healthy run never comes near."""
    return seconds * (10 if SANITIZER else 4)


def wait_for(what, probe, seconds=15):
    """Calls probe() until it gives something true, and gives that."""
    end = time.monotonic() + patience(seconds)
    while True:
        got = probe()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError("waited in vain for: " + what)
        time.sleep(0.01)


def write_text(path, size, seed=7):
    """Words as bytes, the same for the same seed."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(1, 8))) for _ in range(200)]
    out = []
    total = 0
    while total < size:
        out.append(rng.choice(words))
        total += len(out[-1]) + 1
    with open(path, "w", encoding="ascii") as file:
        file.write(" ".join(out)[:size])
    return path


class Result:
    """What a finished program left."""

    def __init__(self, rc, out, err):
        self.rc, self.out, self.err = rc, out, err

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines() if line.strip()]

    @property
    def json(self):
        lines = self.lines
        if len(lines) != 1:
            raise AssertionError("one JSON line was expected: %r (stderr %r)" % (self.out, self.err))
        return lines[0]

    @property
    def steps(self):
        return steps_of(self.lines)

    def __repr__(self):
        return "status %d, stdout %r, stderr %r" % (self.rc, self.out[-2000:], self.err[-2000:])


def steps_of(lines):
    """The step results among the JSON lines of attach and submit."""
    return [line for line in lines if "grad_norm" in line and "state" not in line]


def untimed(step):
    """A step result without what a clock measured."""
    return {key: value for key, value in step.items() if key not in ("step_ms", "tokens_per_s", "unix")}


def run_as(uid=None, gid=None, groups=()):
    """Arguments of subprocess.Popen that make the child another user."""
    if uid is None:
        return {}
    return {"user": uid, "group": uid if gid is None else gid, "extra_groups": list(groups)}


def start(argv, **kwargs):
    """subprocess.Popen, remembered."""
    process = subprocess.Popen(argv, **kwargs)
    STARTED.append(process)
    return process


def new_directory(prefix):
    """A short path (sockets have no room for a long one) that every user can reach."""
    DIRECTORIES.append(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    return DIRECTORIES[-1]


def abandon(number, _frame):
    """SIGTERM, as when the time is up: no test ends in order any more, but nothing is left running."""
    left = [process for process in STARTED if process.poll() is None]
    for process in left:
        process.terminate()
    end = time.monotonic() + 8
    for process in left:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for path in DIRECTORIES:
        shutil.rmtree(path, ignore_errors=True)
    os._exit(128 + number)


class Client:
    """A program in the background whose output goes to files."""

    def __init__(self, argv, directory, env, identity):
        self.out_path = tempfile.mkstemp(dir=directory, prefix="out-")[1]
        self.err_path = self.out_path + ".err"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = start(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, **identity)

    @property
    def out(self):
        with open(self.out_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    @property
    def err(self):
        with open(self.err_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    @property
    def lines(self):
        """The JSON lines that are complete so far."""
        text = self.out
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        try:
            rc = self.process.wait(patience(seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("did not end: %r; stderr %r" % (self.process.args, self.err[-2000:])) from None
        return Result(rc, self.out, self.err)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Caller:
    """tests/integration/caller: calls of the service that shardctl does not offer, one line a call."""

    def __init__(self, daemon, identity):
        self.process = start(
            [daemon.binary("caller"), daemon.socket],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, **identity)

    def send(self, verb, **values):
        self.process.stdin.write(" ".join([verb] + ["%s=%s" % item for item in values.items()]) + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise AssertionError("the caller ended: " + self.process.stderr.read())
        return json.loads(line)

    def __call__(self, verb, **values):
        self.send(verb, **values)
        return self.receive()

    def ok(self, verb, **values):
        answer = self(verb, **values)
        if not answer["ok"]:
            raise AssertionError("%s %r: %r" % (verb, values, answer))
        return answer

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class Daemon:
    """A private shardd with its own socket, state directory, data root and log."""

    def __init__(self, flags=(), ranks=2, threads=1, directory=None, identity=None, wrapper=(), config=None):
        self.owns_directory = directory is None
        self.directory = directory or new_directory("shd-it-")
        os.chmod(self.directory, 0o755)
        self.socket = os.path.join(self.directory, "shardd.sock")
        self.state = os.path.join(self.directory, "state")
        self.data = os.path.join(self.directory, "data")
        self.log_path = os.path.join(self.directory, "shardd.log")
        for path, mode in ((self.state, 0o700), (self.data, 0o755)):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
        if identity:
            os.chown(self.state, identity["user"], identity["group"])
            os.chown(self.directory, identity["user"], identity["group"])
        self.text = os.path.join(self.data, "text")
        if not os.path.exists(self.text):
            write_text(self.text, 20000)
        self.argv = list(wrapper) + [
            self.binary("shardd"), "--config", config or "/dev/null", "--socket", self.socket, "--socket-mode", "0666",
            "--state-dir", self.state, "--data-root", self.data, "--ranks", str(ranks),
            "--threads-per-rank", str(threads), "--memory-per-rank", "2G"] + list(flags)
        self.identity = identity or {}
        self.clients = []
        self.process = None

    @staticmethod
    def binary(name):
        return os.path.join(BINARIES, name)

    # ---- life ----

    def launch(self):
        """Starts the process and does not wait for it to serve."""
        with open(self.log_path, "ab") as log:
            self.process = start(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self.identity)
        return self

    def start(self):
        self.launch()

        def serves():
            if self.process.poll() is not None:
                raise AssertionError(
                    "the daemon ended with status %d: %s" % (self.process.returncode, self.log[-4000:]))
            return self.answers()

        wait_for("a daemon that answers", serves)
        return self

    def answers(self):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.socket)
                return True
            except OSError:
                return False

    @property
    def pid(self):
        return self.process.pid

    @property
    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def stop(self, number=signal.SIGTERM, seconds=20):
        """Ends the daemon as an operator does; gives its exit status."""
        if self.alive:
            self.process.send_signal(number)
        try:
            rc = self.process.wait(patience(seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the daemon did not stop; log: " + self.log[-4000:]) from None
        self.process = None
        return rc

    def check_log(self):
        log = self.log
        for report in REPORTS:
            if report in log:
                at = log.index(report)
                raise AssertionError("the daemon reported: " + log[max(0, at - 1000):at + 6000])

    def finish(self):
        """Clean-up of a test: ends everything, and fails unless the daemon ends well."""
        try:
            self.end_clients()
            if self.process is not None:
                died = self.process.poll()
                if died is not None:
                    self.process = None
                    raise AssertionError("the daemon had ended with status %d: %s" % (died, self.log[-6000:]))
                rc = self.stop()
                if rc != 0:
                    raise AssertionError("the daemon ended with status %d: %s" % (rc, self.log[-6000:]))
            if os.path.exists(self.log_path):
                self.check_log()
        finally:
            if self.alive:
                self.process.kill()
                self.process.wait()
            if self.owns_directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    # ---- clients ----

    def end_clients(self):
        for client in self.clients:
            client.end()
        self.clients.clear()

    def ctl_argv(self, args):
        return [self.binary("shardctl"), "--socket", self.socket] + [str(arg) for arg in args]

    @staticmethod
    def environment():
        env = {key: value for key, value in os.environ.items() if key != "SHARDD_SOCKET"}
        env["LC_ALL"] = "C.UTF-8"
        return env

    def ctl(self, *args, uid=None, gid=None, groups=(), seconds=30, cwd=None):
        """Runs shardctl to its end."""
        done = subprocess.run(
            self.ctl_argv(args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=patience(seconds), env=self.environment(), cwd=cwd, check=False, **run_as(uid, gid, groups))
        result = Result(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
        for report in REPORTS:
            if report in result.err:
                raise AssertionError("shardctl %s reported: %s" % (" ".join(map(str, args)), result.err))
        return result

    def ok(self, *args, **kwargs):
        result = self.ctl(*args, **kwargs)
        if result.rc != EXIT_DONE:
            raise AssertionError("shardctl %s: %r" % (" ".join(map(str, args)), result))
        return result

    def spawn(self, *args, uid=None, gid=None, groups=()):
        client = Client(self.ctl_argv(args), self.directory, self.environment(), run_as(uid, gid, groups))
        self.clients.append(client)
        return client

    def caller(self, uid=None, gid=None, groups=()):
        caller = Caller(self, run_as(uid, gid, groups))
        self.clients.append(caller)
        return caller

    # ---- short words for what most tests do ----

    def tiny(self, name, steps, *more, data=True):
        """Flags of a job whose steps take milliseconds; later flags win nowhere: give each once."""
        given = {flag for flag in more if isinstance(flag, str)}
        flags = ["--name", name, "--model", "gpt-byte-1m", "--steps", steps]
        for flag, value in (("--seq-len", 16), ("--micro-batch", 1)):
            if flag not in given:
                flags += [flag, value]
        if data and "--data" not in given:
            flags += ["--data", self.text]
        return flags + list(more)

    def submit(self, name, steps, *more, data=True, **kwargs):
        """Makes a tiny job and returns at once; gives its JSON."""
        return self.ok("--json", "submit", "--detach", *self.tiny(name, steps, *more, data=data), **kwargs).json

    def evaluate(self, name, data, *flags, **kwargs):
        """What shardctl eval finds on a file; progress may come before it."""
        return self.ok("--json", "eval", name, "--data", data, *flags, **kwargs).lines[-1]

    def find(self, name, **kwargs):
        """The job of a name or id, or None."""
        found = [job for job in self.ok("--json", "jobs", **kwargs).lines if name in (job["name"], job["id"])]
        if len(found) > 1:
            raise AssertionError("%d jobs are named %s" % (len(found), name))
        return found[0] if found else None

    def job(self, name, **kwargs):
        job = self.find(name, **kwargs)
        if job is None:
            raise AssertionError("no job is named " + name)
        return job

    def wait_state(self, name, *states, seconds=60):
        def probe():
            job = self.find(name)
            return job if job and job["state"] in states else None

        return wait_for("%s to be %s" % (name, " or ".join(states)), probe, seconds)

    def wait_step(self, name, step, seconds=60):
        def probe():
            job = self.find(name)
            if job is None or job["step"] >= step:
                return job
            if job["state"] in ("done", "failed", "cancelled"):
                raise AssertionError("%s ended before step %d: %r" % (name, step, job))
            return None

        return wait_for("step %d of %s" % (step, name), probe, seconds)

    def status(self, **kwargs):
        return self.ok("--json", "status", **kwargs).json

    def history(self, name, **kwargs):
        return self.ok("--json", "attach", name, "--from", 1, **kwargs).steps

    # ---- the process seen from outside ----

    def fds(self):
        return len(os.listdir("/proc/%d/fd" % self.pid))

    def resident(self):
        with open("/proc/%d/statm" % self.pid, encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def threads(self):
        return len(os.listdir("/proc/%d/task" % self.pid))

    def connect(self):
        """A bare connection to the socket."""
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(patience(10))
        raw.connect(self.socket)
        return raw


class TestCase(unittest.TestCase):
    """unittest with daemons."""

    maxDiff = 4000

    def daemon(self, *flags, start=True, **kwargs):
        daemon = Daemon(flags, **kwargs)
        self.addCleanup(daemon.finish)
        return daemon.start() if start else daemon

    def need_root(self):
        if os.geteuid() != 0:
            self.fail("this test acts as several users; run it as root")

    def assertSteps(self, steps, last, first=1):
        """Every step from first to last once, in order."""
        self.assertEqual([step["step"] for step in steps], list(range(first, last + 1)))

    def assertRefused(self, result, rc, *words):
        """A clear error: the status, one line on stderr that begins with the program, and the words in it."""
        self.assertEqual(result.rc, rc, repr(result))
        self.assertTrue(result.err.startswith("shardctl: "), repr(result))
        self.assertEqual(len(result.err.strip().splitlines()), 1, repr(result))
        for word in words:
            self.assertIn(str(word), result.err)

    def assertServes(self, daemon):
        """The daemon is up and answers."""
        self.assertTrue(daemon.alive, daemon.log[-4000:] if not daemon.alive else "")
        self.assertEqual(daemon.status()["pid"], daemon.pid)


class BystanderCase(TestCase):
    """A daemon for all cases of a class, and in it a job that runs meanwhile: it takes its steps through every
    case, and all of them in the end."""

    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.d = Daemon(cls.flags)
        cls.addClassCleanup(cls.d.finish)
        cls.d.start()
        cls.d.submit("bystander", 100000000)
        cls.d.wait_step("bystander", 1)

    @classmethod
    def tearDownClass(cls):
        last = cls.d.job("bystander")["step"]
        cls.d.wait_step("bystander", last + 5)
        cls.d.ok("cancel", "bystander")
        last = cls.d.job("bystander")["step"]
        steps = [step["step"] for step in cls.d.ctl("--json", "attach", "bystander", "--from", 1).steps]
        if steps != list(range(1, last + 1)):
            raise AssertionError("the bystander lost steps")

    def setUp(self):
        self.before = self.d.job("bystander")["step"]

    def tearDown(self):
        self.d.end_clients()
        wait_for("an answer", lambda: self.d.ctl("jobs").rc == EXIT_DONE)
        self.assertServes(self.d)
        self.assertTrue(self.d.caller().ok("health")["serving"])
        self.d.end_clients()
        self.d.wait_step("bystander", self.before + 5)
        self.assertEqual([job["name"] for job in self.d.ok("--json", "jobs").lines], ["bystander"])


# ---- outcomes ----


class XmlResult(unittest.TextTestResult):
    """Keeps what the JUnit file needs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.cases = []
        self.began = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        self.cases.append({"test": test, "seconds": 0.0, "problems": []})

    def stopTest(self, test):
        super().stopTest(test)
        self.cases[-1]["seconds"] = time.monotonic() - self.began

    def note(self, test, err):
        if not self.cases:  # setUpClass failed
            self.cases.append({"test": test, "seconds": 0.0, "problems": []})
        self.cases[-1]["problems"].append(self._exc_info_to_string(err, test))

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, err)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.cases[-1]["problems"].append("%s\n%s" % (subtest, self._exc_info_to_string(err, test)))

    def write(self, path):
        suites = ElementTree.Element("testsuites")
        suite = ElementTree.SubElement(suites, "testsuite", name=os.path.basename(sys.argv[0]))
        suite.set("tests", str(len(self.cases)))
        suite.set("failures", str(sum(1 for case in self.cases if case["problems"])))
        for case in self.cases:
            ident = case["test"].id().split(".")
            node = ElementTree.SubElement(
                suite, "testcase", classname=ident[-2] if len(ident) > 1 else "", name=ident[-1],
                time="%.3f" % case["seconds"])
            for problem in case["problems"]:
                clean = "".join(c if c in "\n\t" or c >= " " else "?" for c in problem)
                ElementTree.SubElement(node, "failure", message="failed").text = clean
        ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def main():
    global BINARIES
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", action="append", default=[], help="a program of the tests, named by its file")
    parser.add_argument("--sanitizer", default="", help="that the programs were built with")
    parser.add_argument("names", nargs="*", help="cases to run; default: all")
    args = parser.parse_args()
    # Other users must be able to execute them, wherever Bazel keeps its outputs.
    BINARIES = new_directory("shd-it-bin-")
    signal.signal(signal.SIGTERM, abandon)
    try:
        os.chmod(BINARIES, 0o755)
        for path in args.program:
            copy = os.path.join(BINARIES, os.path.basename(path))
            shutil.copyfile(os.path.realpath(path), copy)
            os.chmod(copy, 0o755)
        module = sys.modules["__main__"]
        loader = unittest.TestLoader()
        suite = loader.loadTestsFromNames(args.names, module) if args.names else loader.loadTestsFromModule(module)
        result = unittest.TextTestRunner(sys.stdout, verbosity=2, resultclass=XmlResult).run(suite)
        if os.environ.get("XML_OUTPUT_FILE"):
            result.write(os.environ["XML_OUTPUT_FILE"])
        ok = result.wasSuccessful() and result.testsRun > 0 and not result.skipped
    finally:
        shutil.rmtree(BINARIES, ignore_errors=True)
    sys.exit(0 if ok else 1)
