"""How many tests ended in which way, from the reports of Meson and pytest."""

import dataclasses
import json
import pathlib
import re
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from typing import Any

COMPLAINT_CHARS = 2000
# A shell between Meson and a program adds this to the number of the signal that killed it.
SHELL_SIGNAL_BASE = 128
# Programs that end by a fault print these, also where a test has started them.
CRASH = re.compile(
    r"(Address|Leak|Thread|Memory|UndefinedBehavior)Sanitizer|: runtime error: "
    r"|ffrecord: assertion failed|terminate called|Segmentation fault|Fatal Python error"
    r"|core dumped|double free|crashed while running"
)
# Markers of tests whose failures no slow machine explains; see pyproject.toml.
FAULTS = {"wrong_data": "wrong data", "leak": "a leak"}


@dataclasses.dataclass(frozen=True)
class Failure:
    """A test that failed."""

    name: str
    said: str  # The end of what it printed.
    # Identifies the test in all runs: a node of pytest; a GoogleTest program and its case, or the
    # program alone.
    test: str = ""
    # Why a slow machine cannot be the reason. Empty after an assertion or a time limit.
    fault: str = ""
    # Runs this test and no other. None where that is not possible.
    again: "Callable[[], Counts] | None" = None

    def __str__(self) -> str:
        """Say it as lines for people."""
        return f"-- {self.name}\n{self.said}"


@dataclasses.dataclass
class Counts:
    """How many tests ended in which way, and the seconds that each took."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    failures: list[Failure] = dataclasses.field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Add the counts of another suite."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.seconds |= other.seconds
        self.failures += other.failures

    def fail(self, name: str, said: str, test: str = "", fault: str = "") -> None:
        """Add a failure. Without a `test` it cannot be run again."""
        self.failed += 1
        self.failures.append(Failure(name, shortened(said), test, fault or crash_in(said)))

    def forgive(self, failure: Failure) -> None:
        """Count a test that failed as one that passed."""
        self.failures.remove(failure)
        self.failed -= 1
        self.passed += 1

    def can_be_run_again(self, how: "Callable[[str], Counts]") -> "Counts":
        """Let failures of named tests be run again by `how`, which takes `Failure.test`."""
        self.failures = [
            dataclasses.replace(one, again=lambda test=one.test: how(test)) if one.test else one
            for one in self.failures
        ]
        return self

    def slowest(self, count: int) -> list[str]:
        """Return lines for the tests that took longest, the slowest first."""
        by_time = sorted(self.seconds.items(), key=lambda item: -item[1])
        return [f"{seconds:6.1f} s  {name}" for name, seconds in by_time[:count]]

    def __str__(self) -> str:
        """Say it the way the last line says it."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def failure(name: str, said: str, test: str = "") -> Counts:
    """Counts of one failure and nothing else."""
    counts = Counts()
    counts.fail(name, said, test)
    return counts


def crash_in(output: str) -> str:
    """Say which crash the output of a program tells of; empty if it tells of none."""
    found = CRASH.search(output)
    return f"a crash ({found[0].strip()})" if found else ""


def shortened(said: str) -> str:
    """The end of a long complaint, where pytest says what was wrong."""
    return said if len(said) <= COMPLAINT_CHARS else "…" + said[-COMPLAINT_CHARS:]


def exit_status(code: int) -> str:
    """Say in words how a process ended whose `returncode` this is."""
    number = -code if code < 0 else code - SHELL_SIGNAL_BASE
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"ended with exit code {code}"
    return f"killed by {name}" if code < 0 else f"ended with exit code {code}, that is {name}"


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of Meson that failed."""

    name: str  # As Meson's reports have it.
    said: str
    crash: str  # The part of its output that tells of a crash.
    fault: str  # As in Failure, where none of its cases has failed.

    @property
    def test(self) -> str:
        """Its name in meson.build."""
        return self.name.rpartition(":")[2]


def failed_programs(log: pathlib.Path) -> Iterator[Program]:
    """The programs that failed according to Meson's log, one JSON object per line."""
    for line in log.read_text(errors="replace").splitlines():
        program = json.loads(line)
        if program["is_fail"]:
            yield failed_program(program)


def failed_program(program: dict[str, Any]) -> Program:
    """How a program of Meson's log ended, and the end of its output."""
    output = "".join(program.get(name) or "" for name in ("stdout", "stderr"))
    crash = crash_in(output)
    if program["result"] == "TIMEOUT":
        how, fault = f"did not end within its time limit ({program['duration']:.0f} s)", crash
    else:
        code = program["returncode"]
        how = exit_status(code)
        crash = crash or (how if not 0 <= code <= SHELL_SIGNAL_BASE else "")
        fault = crash or f"{how}, and no case has failed"
    said = f"{how}; the end of its output:\n{shortened(output)}"
    return Program(program["name"], said, crash, fault)


def junit_counts(report: pathlib.Path, log: pathlib.Path | None = None) -> Counts:
    """Count the cases of a JUnit file, written by Meson or by gtest.

    Meson's file has no reason for a program that was killed before it wrote its own report, and
    does not mention one that failed after it. Meson's `log` knows both.
    """
    counts = Counts()
    programs = list(failed_programs(log)) if log else []
    told: set[str] = set()
    for suite in ElementTree.parse(report).iter("testsuite"):
        add_suite(counts, suite, programs, told)
    for program in programs:
        if program.name not in told:
            counts.fail(program.name, program.said, program.test, program.fault)
    return counts


def add_suite(
    counts: Counts, suite: ElementTree.Element, programs: Sequence[Program], told: set[str]
) -> None:
    """Count the cases of a suite; add to `told` the programs whose failures it has."""
    # The suite of a GoogleTest program is called PROJECT.PROGRAM.SUITE.
    of_suite = [one for one in programs if f".{one.name}." in suite.get("name", "")]
    for case in suite.findall("testcase"):
        label = case.get("name", "")
        name = f"{case.get('classname', '')}.{label}"
        complaints = case.findall("failure") + case.findall("error")
        if complaints:
            whole = [one for one in programs if one.name == label]
            for program in whole:  # It has not written a report of its own.
                counts.fail(name, program.said, program.test, program.fault)
            if not whole:
                said = "\n".join(one.text or one.get("message") or "" for one in complaints)
                if of_suite:
                    test, fault = f"{of_suite[0].test} {name}", of_suite[0].crash
                else:
                    test, fault = property_of(case, "test"), property_of(case, "fault")
                counts.fail(name, said, test, FAULTS.get(fault, fault))
            told.update(one.name for one in whole or of_suite)
        elif case.find("skipped") is not None:
            counts.skipped += 1
        else:
            counts.passed += 1
        counts.seconds[name] = counts.seconds.get(name, 0.0) + float(case.get("time") or 0)


def property_of(case: ElementTree.Element, name: str) -> str:
    """Return a property that tests/conftest.py has given to a case; empty if there is none."""
    found = case.find(f"properties/property[@name='{name}']")
    return "" if found is None else found.get("value", "")
