"""Build and run the test suites; count all tests of all suites in one last line.

    tools/test                  what has to pass before a change lands: every test once
    tools/test --quick          style, and the unit and Python tests of the rooms changed since main
    tools/test --all            also unit, conformance and tsan, which are clang's in other builds
    tools/test unit python      the suites named
    tools/test --seed 7         what random tests draw; `fresh` draws anew (tests/unit/campaign)

A suite is a build folder and what is run in it. Folders are kept, so a second run builds only what
has changed. Exits 0 if nothing failed, 1 if something did, 2 for a name that is no suite.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
sys.path.insert(0, str(ROOT / "tests" / "rdma"))
sys.path.insert(0, str(ROOT / "tools" / "dev"))
import fuzzing  # noqa: E402  (beside the targets, for tests/fuzz/campaign needs it too)
import rooms  # noqa: E402
from counts import Counts, exit_status, failure, junit_counts  # noqa: E402
from run import PROGRAMS as GUEST_PROGRAMS  # noqa: E402  (of tests/rdma)

BIN = ROOT / ".venv" / "bin"
# Enough to find again what was mended; new things are found by tests/fuzz/campaign and
# tests/chaos/campaign.
FUZZ_SECONDS = 10
CHAOS_SECONDS = 30
SKIPPED = 77
RDMA_S = "1500"  # Emulated: six minutes of a quiet machine, more of a busy one.
SLOWEST = 10
# Before a command: it gets the time that nothing else wants.
IDLE = str(ROOT / "tools" / "dev" / "idle")
# What lands is judged by the same draws each time; campaigns look for others.
SEED = "1"
# Of Meson: tests that measure short times.
ALONE_SUITES = ("alone-unit", "alone-conformance")
# Of tests/frameworks: those whose packages setup installs.
TRAINING = ("test_accelerate.py", "test_lightning.py")
# Python's tests wait for daemons, workers and time limits. A file's tests stay in one process.
IN_PROCESSES = ("-n", "3", "--dist", "loadfile")
# Suites whose tests run threads of their own: they are run under ThreadSanitizer.
THREADED = ("base", "io", "decode", "record", "net", "client", "server", "conformance")


# What a thread may have: `file`, where it and its commands print; `wrapper`, a command through
# which it runs Meson's tests.
THREAD = threading.local()


def say(text: str) -> None:
    """Print where this thread prints."""
    print(text, file=getattr(THREAD, "file", None), flush=True)


def run(*command: str | pathlib.Path, environment: dict[str, str] | None = None) -> int:
    """Run a command in the root of the tree and return its exit code."""
    output = getattr(THREAD, "file", None)
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        check=False,
    ).returncode


# The programs of all tests as well, which `ninja` alone leaves out.
EVERYTHING = ("all", "meson-test-prereq")
# What the compiler makes names no folder of this machine: the cache serves every checkout.
CACHE = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}


@dataclasses.dataclass(frozen=True)
class Build:
    """A build folder: a compiler and its options."""

    folder: str
    options: tuple[str, ...] = ()
    compiler: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    # Sanitised programs want their memory at fixed places.
    wrapper: str = ""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, compare=False)

    def make(self, *targets: str, prefix: Sequence[str] = ()) -> bool:
        """Configure if it was not, then build. One call at a time; others wait."""
        with self.lock:
            return self._make(targets, prefix)

    def make_beside(self, *targets: str) -> None:
        """Begin to build with the time that nothing else wants. `make` then waits and finishes."""
        build = functools.partial(self.make, *targets, prefix=[IDLE])
        threading.Thread(target=build, daemon=True).start()

    def _make(self, targets: Sequence[str], prefix: Sequence[str]) -> bool:
        if not (ROOT / self.folder / "build.ninja").exists():
            compilers = {"CXX": self.compiler, "CC": self.compiler.replace("++", "")}
            chosen = {name: f"ccache {word}" for name, word in compilers.items() if word}
            if "clang" in self.compiler:  # GNU ld takes 3 s for a sanitised program, lld 0.5 s.
                chosen["CXX_LD"] = "lld"
            if run(BIN / "meson", "setup", self.folder, *self.options, environment=chosen):
                return False
        ninja = (*prefix, BIN / "ninja", "-C", self.folder, "--quiet")
        return run(*ninja, *targets, environment=CACHE) == 0

    def tests(self) -> list[dict[str, Any]]:
        """What Meson knows of the tests of this folder."""
        words = [str(BIN / "meson"), "introspect", "--tests", str(ROOT / self.folder)]
        found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        for test in found:
            test["suite"] = {suite.partition(":")[2] or suite for suite in test["suite"]}
        return list(found)

    def suites(self) -> set[str]:
        """Names of the suites that the tests of this folder belong to."""
        return {suite for test in self.tests() for suite in test["suite"]}

    def programs(self, *suites: str) -> list[pathlib.Path]:
        """The GoogleTest programs of those suites."""
        found = {
            pathlib.Path(test["cmd"][0])
            for test in self.tests()
            if test["protocol"] == "gtest" and test["suite"] & set(suites)
        }
        return sorted(found)

    def reports(self, *suites: str) -> list[pathlib.Path]:
        """Where the GoogleTest programs of those suites write what Meson reads when they end.

        Meson takes an older file for that of a program that was killed before it wrote its own.
        """
        return [
            ROOT / self.folder / f"{test['name']}.xml"
            for test in self.tests()
            if test["protocol"] == "gtest" and test["suite"] & set(suites)
        ]

    def targets(self, *suites: str) -> list[str]:
        """What to build for those suites: their programs; with other tests what `ninja` builds too.

        The style suite needs nothing.
        """
        if suites == ("style",):
            return ["build.ninja"]
        tests = [test for test in self.tests() if test["suite"] & set(suites)]
        others = any(test["protocol"] != "gtest" for test in tests)
        built = {
            os.path.relpath(test["cmd"][0], ROOT / self.folder)
            for test in tests
            if test["protocol"] == "gtest" and test["depends"]
        }
        return [*sorted(built), "all" if others else "server/ffrecordd"]  # Some start it.

    def meson_test(self, *suites: str, without: Sequence[str] = (), jobs: int = 0) -> Counts:
        """Build, run the tests of `suites`, count them.

        Leaves out those of the suites `without`; runs `jobs` programs at a time, by default two for
        each processor, for most of them wait more than they compute.
        """
        if not (self.make("build.ninja") and self.make(*self.targets(*suites))):
            return unbuilt(self.folder)
        if not self.suites() & set(suites):
            say(f"no test belongs to {', '.join(suites)}")
            return Counts()
        logs = ROOT / self.folder / "meson-logs"  # Meson adds the wrapper to the report's name.
        log = "-".join(suites)  # Others may run beside.
        for old in [*logs.glob(f"{log}*.junit.xml"), *self.reports(*suites)]:
            old.unlink(missing_ok=True)
        command = [BIN / "meson", "test", "-C", self.folder, "--no-rebuild", "--print-errorlogs"]
        command += ["--logbase", log]
        command += ["--timeout-multiplier", "4" if self.wrapper or self.environment else "1"]
        command += [word for suite in suites for word in ("--suite", suite)]
        command += [word for suite in without for word in ("--no-suite", suite)]
        command += ["--num-processes", str(jobs or 2 * (os.cpu_count() or 1))]
        wrapper = self.wrapper or getattr(THREAD, "wrapper", "")
        if wrapper:
            command += ["--wrapper", wrapper]
        code = run(*command, "--quiet", environment=dict(self.environment))
        counts = Counts()
        for report in logs.glob(f"{log}*.junit.xml"):
            programs = report.with_name(report.name.replace(".junit.xml", ".json"))
            counts.add(junit_counts(report, programs))
        if code and not counts.failed:
            counts.fail(f"meson test {log}", exit_status(code))
        return counts


def unbuilt(folder: str) -> Counts:
    """What comes of a suite whose programs the compiler or Meson rejects."""
    return failure(folder, "was not built, see above")


# Line numbers are all that a sanitizer's report needs, and half of the time to build.
SANITIZED = (
    "--buildtype=plain",
    "-Doptimization=1",
    "-Dcpp_args=-g1",
    "-Dpython=disabled",
    "-Dbenchmarks=disabled",
)
# What tools/setup has compiled for the package, to the letter: ccache has its objects.
PLAIN = Build("build", ("--buildtype=release", "-Doptimization=2", "-Db_ndebug=if-release"))
# One build for the second compiler, its sanitizers and its fuzzer: they go together.
CLANG = Build(
    "build-clang",
    (
        *SANITIZED,
        "-Db_sanitize=address,undefined",
        "-Db_lundef=false",
        "-Dfuzz=enabled",
    ),
    "clang++-14",
    environment=(("UBSAN_OPTIONS", "print_stacktrace=1"),),
)
TSAN = Build(
    "build-tsan",
    (*SANITIZED, "-Db_sanitize=thread"),
    environment=(("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0"),),
    wrapper="setarch --addr-no-randomize",
)


# Tests take the package that tools/setup has put into .venv, not the one of a build folder.
INSTALLED = {"FFRECORD_TEST_INSTALLED": "1"}


def pytest_suite(
    folder: str,
    environment: dict[str, str],
    *options: str,
    files: Sequence[str] = (),
    name: str = "",
    python: pathlib.Path = BIN / "python",
) -> Counts:
    """Run pytest over one folder, or over those files of it; `name` is that of its report."""
    report = ROOT / "build" / f"{name or folder.replace('/', '-')}.junit.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "--junitxml", report, *options]
    command += [f"{folder}/{file}" for file in files] or [folder]
    code = run(*command, environment=environment)
    counts = junit_counts(report) if report.exists() else Counts()
    if code and not counts.failed:
        counts.fail(f"pytest {folder}", exit_status(code))
    return counts


def crash_suite() -> Counts:
    """Kill programs of the plain build; its own extension does the checking."""
    if not PLAIN.make():
        return unbuilt(PLAIN.folder)
    return pytest_suite("tests/crash", {"FFRECORD_BUILD_DIR": str(ROOT / PLAIN.folder)})


def chaos_suite(*options: str) -> Counts:
    """Let faults loose on the daemon of the plain build; its own extension does the checking."""
    if not PLAIN.make():
        return unbuilt(PLAIN.folder)
    return pytest_suite("tests/chaos", {"FFRECORD_BUILD_DIR": str(ROOT / PLAIN.folder)}, *options)


def rdma_suite() -> Counts:
    """Run what wants an RDMA device in a virtual machine that has one."""
    if not PLAIN.make("all", *sorted({program for program, _ in GUEST_PROGRAMS})):
        return unbuilt(PLAIN.folder)
    build = ROOT / PLAIN.folder
    code = run(sys.executable, "tests/rdma/run.py", "--build", build, "--timeout", RDMA_S)
    if code == SKIPPED:
        return Counts(skipped=1)
    # The machine itself.
    counts = Counts(passed=1) if code == 0 else failure("tests/rdma/run", exit_status(code))
    for report in (build / "rdma" / "out").glob("*.junit.xml"):
        counts.add(junit_counts(report))
    return counts


def wheel_suite() -> Counts:
    """Build the wheel and use it where our libraries are not; build where they are not."""
    folder = ROOT / "build" / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    if code := run("tools/wheel", folder):
        return failure("tools/wheel", exit_status(code))
    counts = Counts()
    for command in (("tests/wheel/run", *folder.glob("*.whl")), ("tests/wheel/bare",)):
        code = run(*command)
        if code == SKIPPED:
            counts.add(Counts(skipped=1))
        else:
            counts.add(failure(command[0], exit_status(code)) if code else Counts(passed=1))
    return counts


def oldest_suite() -> Counts:
    """Run a core of Python's tests with the oldest packages that are allowed."""
    report = ROOT / "build" / "oldest.junit.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    code = run(BIN / "python", "tests/oldest/run", "--report", report)
    counts = junit_counts(report) if report.exists() else Counts()
    if code and not counts.failed:
        counts.fail("tests/oldest/run", exit_status(code))
    return counts


def python_with(listed: pathlib.Path, folder: pathlib.Path) -> pathlib.Path | None:
    """Return a Python that has the packages of a list; None where they do not install.

    It is in `folder`, beside .venv, whose packages it sees: the list has what setup does not
    install.
    """
    stamp, python = folder / "requirements.txt", folder / "bin" / "python"
    if stamp.exists() and stamp.read_bytes() == listed.read_bytes():
        return python
    if run(BIN / "python", "-m", "venv", "--clear", folder):
        return None
    (ours,) = (ROOT / ".venv" / "lib").glob("python*/site-packages")
    (theirs,) = (folder / "lib").glob("python*/site-packages")
    (theirs / "beside.pth").write_text(f"{ours}\n")
    # Without what they depend on: the list has it, and no other torch.
    install = (python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", listed)
    if run(*install, environment={"PIP_DISABLE_PIP_VERSION_CHECK": "1"}):
        return None
    launcher = folder / "bin" / "torchrun"  # The one of .venv would run .venv's Python.
    launcher.write_text(f'#!/bin/sh\nexec "{python}" -m torch.distributed.run "$@"\n')
    launcher.chmod(0o755)
    shutil.copy(listed, stamp)
    return python


def frameworks_suite(
    folder: str = "build-frameworks",
    listed: str = "tests/frameworks/requirements.txt",
    *options: str,
) -> Counts:
    """Train with each framework that there is; in an environment that has them all."""
    python = python_with(ROOT / listed, ROOT / folder)
    if python is None:
        return failure(listed, "was not installed, see above")
    environment = INSTALLED | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    return pytest_suite("tests/frameworks", environment, *options, name=folder, python=python)


def tensorflow_suite() -> Counts:
    """Read with TensorFlow, for CPUs, in an environment of its own: 1.6 GB."""
    listed = "tests/frameworks/requirements-tensorflow.txt"
    return frameworks_suite("build-tensorflow", listed, "-k", "tensorflow")


def fuzz_suite() -> Counts:
    """Run each fuzz target for a short time, from what it found before."""
    if not CLANG.make("fuzz-targets"):
        return unbuilt(CLANG.folder)

    def verdict(target: fuzzing.Target) -> Counts:
        found = target.run(FUZZ_SECONDS)
        print(f"fuzz {target.name}: {'FAILED' if found else 'ok'}", flush=True)
        said = f"see {target.findings}\n{found}"
        return failure(f"fuzz {target.name}", said) if found else Counts(passed=1)

    counts = Counts()
    for one in fuzzing.run_all(fuzzing.targets(ROOT / CLANG.folder), verdict):
        counts.add(one)
    return counts


def changed_rooms_suite() -> Counts:
    """Run the unit and Python tests of the rooms that differ from main."""
    python_tests = sorted(path.name for path in (ROOT / "tests" / "python").glob("test_*.py"))
    selection = rooms.select(rooms.changed(ROOT), python_tests)
    if selection.everything:
        selection = rooms.Selection({"unit"}, set(python_tests))
    print("rooms:", *sorted(selection.suites), *sorted(selection.python), flush=True)
    counts = Counts()
    if selection.suites:
        counts.add(PLAIN.meson_test(*sorted(selection.suites)))
    if selection.python:
        counts.add(pytest_suite("tests/python", INSTALLED, files=sorted(selection.python)))
    return counts


SUITES: dict[str, tuple[str, Callable[[], Counts]]] = {
    "style": ("layers, headers, formatting, words", lambda: PLAIN.meson_test("style")),
    "plain": (
        "what a sanitized build leaves out: the library as installed, minutes of computing",
        lambda: PLAIN.meson_test("plain"),
    ),
    "unit": ("C++ unit tests", lambda: PLAIN.meson_test("unit", without=ALONE_SUITES)),
    "conformance": (
        "every form of each seam",
        lambda: PLAIN.meson_test("conformance", without=ALONE_SUITES),
    ),
    "crash": ("kills at every step", crash_suite),
    "chaos": (
        f"a daemon that is killed, stopped, cut off and full, for {CHAOS_SECONDS} s",
        lambda: chaos_suite(f"--seconds={CHAOS_SECONDS}"),
    ),
    "python": (
        "pytest over the installed package",
        lambda: pytest_suite("tests/python", INSTALLED, "-m", "not alone", *IN_PROCESSES),
    ),
    "models": (
        "each model of the product against it, for a minute",
        lambda: pytest_suite("tests/models", INSTALLED),
    ),
    "training": (
        "training scripts with accelerate and Lightning, on several ranks",
        lambda: pytest_suite("tests/frameworks", INSTALLED, files=TRAINING),
    ),
    "frameworks": ("with every framework there is; not by default", frameworks_suite),
    "tensorflow": ("tf.data, with TensorFlow for CPUs; not by default", tensorflow_suite),
    "rdma": ("what wants an RDMA device, in a virtual machine", rdma_suite),
    "clang": (
        "unit, conformance by clang 14 under Address- and UndefinedBehaviorSanitizer",
        lambda: CLANG.meson_test("unit", "conformance", without=ALONE_SUITES),
    ),
    "tsan": (
        "the threaded ones under ThreadSanitizer",
        lambda: TSAN.meson_test(*THREADED, without=ALONE_SUITES),
    ),
    "fuzz": (f"each target for {FUZZ_SECONDS} s", fuzz_suite),
    "wheel": ("the wheel and a build without our libraries; not by default", wheel_suite),
    "oldest": ("the oldest packages that are allowed; not by default", oldest_suite),
    "changed": ("unit and Python tests of the rooms that differ from main", changed_rooms_suite),
}
# What a suite leaves out: the tests that measure short times. They run when the lanes have ended.
ALONE: dict[str, Callable[[], Counts]] = {
    "unit": lambda: PLAIN.meson_test("alone-unit", jobs=1),
    "conformance": lambda: PLAIN.meson_test("alone-conformance", jobs=1),
    "python": lambda: pytest_suite("tests/python", INSTALLED, "-m", "alone", name="alone"),
    "clang": lambda: CLANG.meson_test(*ALONE_SUITES, jobs=1),
    "tsan": lambda: TSAN.meson_test(*ALONE_SUITES, jobs=1),
}
QUICK = ("style", "changed", "conformance")
# Suites of the second compiler: it builds while the suites before them run, which mostly wait.
SECOND = ("clang", "fuzz")
# The same tests as clang's in one more build of everything.
AGAIN = ("unit", "conformance", "tsan")
# A part of what the others run.
PARTS = ("changed",)
# What is made anew, and slowly: only by name.
BY_NAME = ("wheel", "oldest", "frameworks", "tensorflow")
# Suites that get the time that the others leave over.
BESIDE = ("style", "fuzz")
# Lanes run beside each other, the suites of a lane one after another. Half of the tests wait more
# than they compute, so two lanes keep two processors busy. A suite of no lane runs after them:
# `chaos` gives each request of its clients a time limit.
LANES = (
    ("changed", "plain", "unit", "conformance", "clang", "tsan"),
    ("rdma", "python", "models", "training", "crash"),
)


def begin_second_build(names: Sequence[str]) -> None:
    """Let the second compiler build beside the suites that come before its own."""
    if names[0] in SECOND or not set(SECOND) & set(names):
        return
    if PLAIN.make():  # First what is wanted first.
        CLANG.make_beside(*EVERYTHING, "fuzz-targets")


class Results:
    """What has come of the suites that have ended; several threads add to it."""

    def __init__(self) -> None:
        """Start with none."""
        self.total = Counts()
        self.lines: list[str] = []
        self._lock = threading.Lock()

    def run(self, name: str, what: str, suite: Callable[[], Counts]) -> None:
        """Run a suite."""
        say(f"== {name}: {what}")
        start = time.monotonic()
        counts = suite()
        with self._lock:
            self.total.add(counts)
            self.lines.append(f"{name:18} {counts} ({time.monotonic() - start:.0f} s)")
            print(self.lines[-1], flush=True)

    def run_in_lane(self, name: str) -> None:
        """Run a suite; show what it prints when it has ended."""
        with tempfile.TemporaryFile("w+", errors="replace") as THREAD.file:
            self.run(name, *SUITES[name])
            THREAD.file.seek(0)
            print(THREAD.file.read(), flush=True)

    def run_beside(self, name: str) -> None:
        """Run a suite at the lowest priority."""
        # Of this thread, from which all that it starts has it; Meson's tests begin new sessions.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        THREAD.wrapper = IDLE
        self.run_in_lane(name)


def run_all(names: Sequence[str]) -> Results:
    """Run those suites in their lanes, then what they left out, one test at a time."""
    results = Results()
    pools = [concurrent.futures.ThreadPoolExecutor(max_workers=1) for _ in (*LANES, BESIDE)]
    begun: list[list[concurrent.futures.Future[None]]] = [[] for _ in pools]
    try:
        # What a single suite prints is shown at once.
        for pool, suites, lane in zip(pools, begun, (*LANES, BESIDE), strict=True):
            run = results.run_beside if lane is BESIDE else results.run_in_lane
            suites += [pool.submit(run, name) for name in lane if name in names and len(names) > 1]
        for suite in itertools.chain(*begun[:-1]):
            suite.result()
        for name in names:
            if len(names) == 1 or name not in itertools.chain(*LANES, BESIDE):
                results.run(name, *SUITES[name])
            if name in ALONE:
                results.run(f"{name}, alone", "tests that measure short times", ALONE[name])
        for suite in begun[-1]:
            suite.result()
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)  # After Ctrl-C no other begins.
    return results


def compiler_cache() -> str:
    """Say how many compilations of this run, with its set-up, the compiler cache spared."""
    log = os.environ.get("CCACHE_STATSLOG")
    if not log or not os.path.exists(log):
        return "not counted"
    words = pathlib.Path(log).read_text().split("\n")
    os.unlink(log)
    found = sum(word in ("direct_cache_hit", "preprocessed_cache_hit") for word in words)
    return f"{found} of {found + words.count('cache_miss')} compilations found"


def main() -> int:
    """Run the suites asked for; print the counts; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tools/test",
        description="Build and run the test suites.",
        epilog="\n".join(f"  {name:12} {what}" for name, (what, _) in SUITES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="which to run")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--all", action="store_true", help=f"also {', '.join(AGAIN)}")
    parser.add_argument("--seed", default=SEED, help=f"a number, or `fresh`; {SEED} by default")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    left_out = (*PARTS, *BY_NAME, *(() if arguments.all else AGAIN))
    every = tuple(name for name in SUITES if name not in left_out)
    names = arguments.suites or (QUICK if arguments.quick else every)

    if arguments.seed != "fresh":
        os.environ["FFRECORD_TEST_SEED"] = arguments.seed
    # The project's programs and Python first, for tests that start them.
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    begin_second_build(names)
    start = time.monotonic()
    results = run_all(names)
    total = results.total
    print("\n== the slowest\n" + "\n".join(total.slowest(SLOWEST)))
    if total.failures:
        print("\n== what failed\n" + "\n".join(total.failures))
    print("\n== summary\n" + "\n".join(results.lines))
    print(f"{'cache':18} {compiler_cache()}")
    print(f"{'all':18} {time.monotonic() - start:.0f} s")
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
