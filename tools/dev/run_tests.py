"""Build and run the test suites; count all tests of all suites in one last line.

    tools/test                  what has to pass before a change lands: every test once
    tools/test --quick          style, and the unit and Python tests of the rooms changed since main
    tools/test --all            also tsan, which runs the threaded ones again
    tools/test unit python      the suites named
    tools/test --seed 7         what random tests draw; `fresh` draws anew (tests/unit/campaign)

A suite is a build folder and what is run in it. Folders are kept, so a second run builds only what
has changed. Exits 0 if nothing failed, 1 if something did, 2 for a name that is no suite.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
sys.path.insert(0, str(ROOT / "tools" / "dev"))
import fuzzing  # noqa: E402  (beside the targets, for tests/fuzz/campaign needs it too)
import rooms  # noqa: E402

BIN = ROOT / ".venv" / "bin"
# Enough to find again what was mended; new things are found by tests/fuzz/campaign and
# tests/chaos/campaign.
FUZZ_SECONDS = 10
CHAOS_SECONDS = 30
RDMA_SKIPPED = 77
RDMA_S = "1500"  # Emulated: six minutes of a quiet machine, more of a busy one.
SLOWEST = 10
COMPLAINT_CHARS = 2000
IDLE_NICENESS = 19
# What lands is judged by the same draws each time; campaigns look for others.
SEED = "1"
# Suites whose tests run threads of their own: they are run under ThreadSanitizer.
THREADED = ("base", "io", "decode", "record", "net", "client", "server", "conformance")


@dataclasses.dataclass
class Counts:
    """How many tests ended in which way, and the seconds that each took."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    # Names of those that failed, with what they said.
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Add the counts of another suite."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.seconds |= other.seconds
        self.failures += other.failures

    def slowest(self, count: int) -> list[str]:
        """Return lines for the tests that took longest, the slowest first."""
        by_time = sorted(self.seconds.items(), key=lambda item: -item[1])
        return [f"{seconds:6.1f} s  {name}" for name, seconds in by_time[:count]]

    def __str__(self) -> str:
        """Say it the way the last line says it."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def shortened(said: str) -> str:
    """The end of a long complaint, where pytest says what was wrong."""
    return said if len(said) <= COMPLAINT_CHARS else "…" + said[-COMPLAINT_CHARS:]


def junit_counts(report: pathlib.Path) -> Counts:
    """Count the cases of a JUnit file, whoever wrote it."""
    counts = Counts()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        complaints = case.findall("failure") + case.findall("error")
        if complaints:
            counts.failed += 1
            said = "\n".join(one.text or one.get("message", "") for one in complaints)
            counts.failures.append(f"-- {name}\n{shortened(said)}")
        elif case.find("skipped") is not None:
            counts.skipped += 1
        else:
            counts.passed += 1
        counts.seconds[name] = counts.seconds.get(name, 0.0) + float(case.get("time") or 0)
    return counts


# `file`, if this thread has one: where what it and its commands print goes.
OUTPUT = threading.local()


def say(text: str) -> None:
    """Print where this thread prints."""
    print(text, file=getattr(OUTPUT, "file", None), flush=True)


def run(*command: str | pathlib.Path, environment: dict[str, str] | None = None) -> int:
    """Run a command in the root of the tree and return its exit code."""
    output = getattr(OUTPUT, "file", None)
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output and subprocess.STDOUT,
        check=False,
    ).returncode


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

    def make(self, *targets: str, niceness: int = 0) -> bool:
        """Configure if it was not, then build. One call at a time; others wait."""
        with self.lock:
            return self._make(targets, niceness)

    def make_beside(self, *targets: str) -> None:
        """Begin to build with the time that nothing else wants. `make` then waits and finishes."""
        build = functools.partial(self.make, *targets, niceness=IDLE_NICENESS)
        threading.Thread(target=build, daemon=True).start()

    def _make(self, targets: Sequence[str], niceness: int) -> bool:
        if not (ROOT / self.folder / "build.ninja").exists():
            compilers = {"CXX": self.compiler, "CC": self.compiler.replace("++", "")}
            chosen = {name: f"ccache {word}" for name, word in compilers.items() if word}
            if run(BIN / "meson", "setup", self.folder, *self.options, environment=chosen):
                return False
        ninja = ("nice", "-n", str(niceness), BIN / "ninja", "-C", self.folder, "--quiet")
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

    def targets(self, *suites: str) -> list[str]:
        """What to build for those suites: their programs, or all if not all of them are programs.

        The style suite needs none.
        """
        if suites == ("style",):
            return ["build.ninja"]
        kinds = {test["protocol"] for test in self.tests() if test["suite"] & set(suites)}
        programs = [str(path.relative_to(ROOT / self.folder)) for path in self.programs(*suites)]
        return [*programs, "server/ffrecordd"] if kinds == {"gtest"} else []  # Some start it.

    def meson_test(self, *suites: str) -> Counts:
        """Build, run the tests of `suites`, count them."""
        if not (self.make("build.ninja") and self.make(*self.targets(*suites))):
            return Counts(failed=1)
        if not self.suites() & set(suites):
            say(f"no test belongs to {', '.join(suites)}")
            return Counts()
        logs = ROOT / self.folder / "meson-logs"  # Meson adds the wrapper to the report's name.
        log = "-".join(suites)  # Others may run beside.
        for old in logs.glob(f"{log}*.junit.xml"):
            old.unlink()
        command = [BIN / "meson", "test", "-C", self.folder, "--no-rebuild", "--print-errorlogs"]
        command += ["--logbase", log]
        command += ["--timeout-multiplier", "4" if self.wrapper or self.environment else "1"]
        command += [word for suite in suites for word in ("--suite", suite)]
        if self.wrapper:
            command += ["--wrapper", self.wrapper]
        code = run(*command, "--quiet", environment=dict(self.environment))
        counts = Counts()
        for report in logs.glob(f"{log}*.junit.xml"):
            counts.add(junit_counts(report))
        if code and not counts.failed:  # A program that died before it could report.
            counts.failed += 1
        return counts


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
    folder: str, environment: dict[str, str], *options: str, files: Sequence[str] = ()
) -> Counts:
    """Run pytest over one folder, or over those files of it."""
    report = ROOT / "build" / f"{folder.replace('/', '-')}.junit.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    command = [BIN / "python", "-m", "pytest", "-q", "--junitxml", report, *options]
    command += [f"{folder}/{name}" for name in files] or [folder]
    code = run(*command, environment=environment)
    counts = junit_counts(report) if report.exists() else Counts()
    if code and not counts.failed:
        counts.failed += 1
    return counts


def crash_suite() -> Counts:
    """Kill programs of the plain build; its own extension does the checking."""
    if not PLAIN.make():
        return Counts(failed=1)
    return pytest_suite("tests/crash", {"FFRECORD_BUILD_DIR": str(ROOT / PLAIN.folder)})


def chaos_suite(*options: str) -> Counts:
    """Let faults loose on the daemon of the plain build; its own extension does the checking."""
    if not PLAIN.make():
        return Counts(failed=1)
    return pytest_suite("tests/chaos", {"FFRECORD_BUILD_DIR": str(ROOT / PLAIN.folder)}, *options)


def rdma_suite() -> Counts:
    """Run what wants an RDMA device in a virtual machine that has one."""
    if not PLAIN.make():
        return Counts(failed=1)
    build = ROOT / PLAIN.folder
    code = run(sys.executable, "tests/rdma/run.py", "--build", build, "--timeout", RDMA_S)
    if code == RDMA_SKIPPED:
        return Counts(skipped=1)
    counts = Counts(passed=1) if code == 0 else Counts(failed=1)  # The machine itself.
    for report in (build / "rdma" / "out").glob("*.junit.xml"):
        counts.add(junit_counts(report))
    return counts


def fuzz_suite() -> Counts:
    """Run each fuzz target for a short time, from what it found before."""
    if not CLANG.make("fuzz-targets"):
        return Counts(failed=1)

    def is_good(target: fuzzing.Target) -> bool:
        found = target.run(FUZZ_SECONDS)
        state = f"FAILED, see {target.findings}\n{found}" if found else "ok"
        print(f"fuzz {target.name}: {state}", flush=True)
        return not found

    verdicts = fuzzing.run_all(fuzzing.targets(ROOT / CLANG.folder), is_good)
    return Counts(passed=verdicts.count(True), failed=verdicts.count(False))


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
    "unit": ("C++ unit tests", lambda: PLAIN.meson_test("unit")),
    "conformance": ("every form of each seam", lambda: PLAIN.meson_test("conformance")),
    "crash": ("kills at every step", crash_suite),
    "chaos": (
        f"a daemon that is killed, stopped, cut off and full, for {CHAOS_SECONDS} s",
        lambda: chaos_suite(f"--seconds={CHAOS_SECONDS}"),
    ),
    "python": (
        "pytest over the installed package",
        lambda: pytest_suite("tests/python", INSTALLED),
    ),
    "rdma": ("what wants an RDMA device, in a virtual machine", rdma_suite),
    "clang": (
        "unit, conformance by clang 14 under Address- and UndefinedBehaviorSanitizer",
        lambda: CLANG.meson_test("unit", "conformance"),
    ),
    "tsan": ("the threaded ones under ThreadSanitizer", lambda: TSAN.meson_test(*THREADED)),
    "fuzz": (f"each target for {FUZZ_SECONDS} s", fuzz_suite),
    "changed": ("unit and Python tests of the rooms that differ from main", changed_rooms_suite),
}
QUICK = ("style", "changed", "conformance")
# Suites of the second compiler: it builds while the suites before them run, which mostly wait.
SECOND = ("clang", "fuzz")
# The same tests in one more build of everything.
AGAIN = ("tsan",)
# A part of what the others run.
PARTS = ("changed",)
# Suites that measure no time get the time that the others leave over.
BESIDE = ("style", "fuzz")


def begin_second_build(names: Sequence[str]) -> None:
    """Let the second compiler build beside the suites that come before its own."""
    if names[0] in SECOND or not set(SECOND) & set(names):
        return
    if PLAIN.make():  # First what is wanted first.
        CLANG.make_beside("all", "fuzz-targets")


class Results:
    """What has come of the suites that have ended; two threads add to it."""

    def __init__(self) -> None:
        """Start with none."""
        self.total = Counts()
        self.lines: list[str] = []
        self._lock = threading.Lock()

    def run(self, name: str) -> None:
        """Run a suite."""
        say(f"== {name}: {SUITES[name][0]}")
        start = time.monotonic()
        counts = SUITES[name][1]()
        with self._lock:
            self.total.add(counts)
            self.lines.append(f"{name:12} {counts} ({time.monotonic() - start:.0f} s)")
            print(self.lines[-1], flush=True)

    def run_beside(self, name: str) -> None:
        """Run a suite at the lowest priority; show what it prints when it has ended."""
        # Of this thread, from which all that it starts has it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), IDLE_NICENESS)
        with tempfile.TemporaryFile("w+", errors="replace") as OUTPUT.file:
            self.run(name)
            OUTPUT.file.seek(0)
            print(OUTPUT.file.read(), flush=True)


def run_all(names: Sequence[str]) -> Results:
    """Run those suites, one after another or beside the others."""
    results = Results()
    beside = BESIDE if set(names) - set(BESIDE) else ()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    try:
        begun = [pool.submit(results.run_beside, name) for name in names if name in beside]
        for name in names:
            if name not in beside:
                results.run(name)
        for suite in begun:
            suite.result()
    finally:
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
    left_out = PARTS if arguments.all else (*PARTS, *AGAIN)
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
    print(f"{'cache':12} {compiler_cache()}")
    print(f"{'all':12} {time.monotonic() - start:.0f} s")
    print(total)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
