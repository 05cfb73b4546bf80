"""The build folders of the tree, and how the tests in them are run.

Shared by tools/dev/run_tests.py and the campaigns below tests/.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import threading
from collections.abc import Collection, Sequence
from typing import Any

from counts import FAULTS, Counts, exit_status, failure, junit_counts

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
# Before a command: it gets the time that nothing else wants.
IDLE = str(ROOT / "tools" / "dev" / "idle")
# A suite of Meson: the tests whose failures are wrong data; see tests/meson.build.
WRONG_DATA = "wrong-data"


# A thread may have: `file`, where it and its commands print; `wrapper`, a command through which it
# runs Meson's tests.
THREAD = threading.local()


def say(text: str) -> None:
    """Print where this thread prints."""
    print(text, file=getattr(THREAD, "file", None), flush=True)


def surroundings(environment: dict[str, str] | None) -> dict[str, Any]:
    """Where a command of this thread runs and prints, as `subprocess` takes it."""
    output = getattr(THREAD, "file", None)
    return {
        "cwd": ROOT,
        "env": os.environ | (environment or {}),
        "stdin": subprocess.DEVNULL,
        "stdout": output,
        "stderr": output and subprocess.STDOUT,
    }


def run(*command: str | pathlib.Path, environment: dict[str, str] | None = None) -> int:
    """Run a command in the root of the tree and return its exit code."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=False, **surroundings(environment)).returncode


# How soon a build beside others sees that it is wanted, or that it has ended.
TAKE_OVER_S = 0.2
# The programs of all tests as well, which `ninja` alone leaves out.
EVERYTHING = ("all", "meson-test-prereq")
# The compiler's output names no folder of this machine: the cache serves every checkout.
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
    # Somebody who does not run beside others wants it.
    is_wanted: threading.Event = dataclasses.field(default_factory=threading.Event, compare=False)

    def make(self, *targets: str) -> bool:
        """Configure if it was not, then build. One call at a time; others wait."""
        if not getattr(THREAD, "wrapper", ""):
            self.is_wanted.set()
        with self.lock:
            return self._configure() and run(*self._ninja(*targets), environment=CACHE) == 0

    def make_beside(self, *targets: str) -> None:
        """Begin to build with the time that nothing else wants, until `make` takes over.

        On a busy machine that is no time at all, so nobody waits for this build.
        """
        threading.Thread(target=self._make_beside, args=targets, daemon=True).start()

    def _make_beside(self, *targets: str) -> None:
        with self.lock:
            if self.is_wanted.is_set() or not self._configure():
                return
            words = [IDLE, *map(str, self._ninja(*targets))]
            with subprocess.Popen(words, **surroundings(CACHE)) as process:
                while process.poll() is None:
                    if self.is_wanted.wait(TAKE_OVER_S):
                        process.terminate()
                        return  # Once it has ended.

    def _configure(self) -> bool:
        if (ROOT / self.folder / "build.ninja").exists():
            return True
        compilers = {"CXX": self.compiler, "CC": self.compiler.replace("++", "")}
        chosen = {name: f"ccache {word}" for name, word in compilers.items() if word}
        if "clang" in self.compiler:  # GNU ld takes 3 s for a sanitised program, lld 0.5 s.
            chosen["CXX_LD"] = "lld"
        return run(BIN / "meson", "setup", self.folder, *self.options, environment=chosen) == 0

    def _ninja(self, *targets: str) -> tuple[str | pathlib.Path, ...]:
        return (BIN / "ninja", "-C", self.folder, "--quiet", *targets)

    def tests(self) -> list[dict[str, Any]]:
        """The tests of this folder, as Meson lists them."""
        words = [str(BIN / "meson"), "introspect", "--tests", str(ROOT / self.folder)]
        found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        for test in found:
            test["suite"] = {suite.partition(":")[2] or suite for suite in test["suite"]}
        return list(found)

    def sources(self) -> dict[str, str]:
        """Sources of the GoogleTest programs, from the root of the tree -> the test's name."""
        words = [str(BIN / "meson"), "introspect", "--targets", str(ROOT / self.folder)]
        targets = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        names = {
            test["cmd"][0]: test["name"] for test in self.tests() if test["protocol"] == "gtest"
        }
        return {
            os.path.relpath(source, ROOT): names[target["filename"][0]]
            for target in targets
            if target["filename"][0] in names
            for part in target["target_sources"]
            for source in part.get("sources", ())
        }

    def programs_of(self, names: Collection[str]) -> list[str]:
        """The targets of those tests."""
        found = {test["cmd"][0] for test in self.tests() if test["name"] in names}
        return sorted(os.path.relpath(path, ROOT / self.folder) for path in found)

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
        """Targets of those suites: their programs; with other tests the default targets too.

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
        counts = self._run_tests(
            "-".join(suites),  # Others may run beside.
            *(word for suite in suites for word in ("--suite", suite)),
            *(word for suite in without for word in ("--no-suite", suite)),
            *("--num-processes", str(jobs or 2 * (os.cpu_count() or 1))),
            reports=self.reports(*suites),
        )
        return self._judged(counts).can_be_run_again(self._run_again)

    def repeat(self, program: str, cases: str, times: int) -> Counts:
        """Run the cases of a built GoogleTest program that match a filter, `times` times."""
        chosen = (f"--test-args=--gtest_filter={cases}",) if cases else ()
        often = ("--repeat", str(times), "--num-processes", "1")
        counts = self._run_tests("steady", program, *chosen, *often)
        if not (counts.passed or counts.failed):
            counts.fail(program, f"no case matches {cases}")
        return counts

    def _run_tests(self, log: str, *options: str, reports: Sequence[pathlib.Path] = ()) -> Counts:
        """Run Meson's tests with those options; `reports` are what its programs will write."""
        logs = ROOT / self.folder / "meson-logs"  # Meson adds the wrapper to the report's name.
        for old in [*logs.glob(f"{log}*.junit.xml"), *reports]:
            old.unlink(missing_ok=True)
        command = [BIN / "meson", "test", "-C", self.folder, "--no-rebuild", "--print-errorlogs"]
        command += ["--logbase", log]
        command += ["--timeout-multiplier", "4" if self.wrapper or self.environment else "1"]
        wrapper = self.wrapper or getattr(THREAD, "wrapper", "")
        if wrapper:
            command += ["--wrapper", wrapper]
        code = run(*command, *options, "--quiet", environment=dict(self.environment))
        counts = Counts()
        for report in logs.glob(f"{log}*.junit.xml"):
            programs = report.with_name(report.name.replace(".junit.xml", ".json"))
            counts.add(junit_counts(report, programs))
        if code and not counts.failed:
            counts.fail(f"meson test {log}", exit_status(code))
        return counts

    def _run_again(self, test: str) -> Counts:
        """Run one program, or one of its cases, alone."""
        program, _, case = test.partition(" ")
        reports = [ROOT / self.folder / f"{program}.xml"]
        chosen = (f"--test-args=--gtest_filter={case}",) if case else ()
        return self._run_tests("again", program, *chosen, reports=reports)

    def _judged(self, counts: Counts) -> Counts:
        """Say of the failures in programs that compare data that they are wrong data."""
        programs = {test["name"] for test in self.tests() if WRONG_DATA in test["suite"]}
        counts.failures = [
            dataclasses.replace(one, fault=one.fault or FAULTS["wrong_data"])
            if " " in one.test and one.test.partition(" ")[0] in programs
            else one
            for one in counts.failures
        ]
        return counts


def unbuilt(folder: str) -> Counts:
    """The result of a suite whose programs the compiler or Meson rejects."""
    return failure(folder, "was not built, see above")


# Line numbers are all that a sanitizer's report needs, and half of the time to build. Optimising
# what a sanitizer has put in takes two thirds of the compiler's time, more than most tests win;
# libffrecord/meson.build has the exception.
SANITIZED = (
    "--buildtype=plain",
    "-Doptimization=0",
    "-Dcpp_args=-g1",
    "-Dpython=disabled",
    "-Dbenchmarks=disabled",
)
# The build of the package by tools/setup, to the letter: ccache has its objects.
PLAIN = Build("build", ("--buildtype=release", "-Doptimization=2", "-Db_ndebug=if-release"))
# One build for the second compiler, its sanitizers and its fuzzer: they go together.
CLANG = Build(
    "build-clang",
    (
        *SANITIZED,
        "-Db_sanitize=address,undefined",
        "-Db_lundef=false",
        "-Dfuzz=enabled",
        # Programs at fixed places have no relocations: a quarter of their size.
        # Shared libraries have no use for the option.
        "-Dcpp_link_args=-no-pie -Wno-unused-command-line-argument",
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
