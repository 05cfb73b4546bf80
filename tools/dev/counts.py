"""How many tests ended in which way, from the reports of Meson and pytest."""

import dataclasses
import json
import pathlib
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

COMPLAINT_CHARS = 2000
# A shell between Meson and a program adds this to the number of the signal that killed it.
SHELL_SIGNAL_BASE = 128


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

    def fail(self, name: str, said: str) -> None:
        """Add a failure."""
        self.failed += 1
        self.failures.append(f"-- {name}\n{shortened(said)}")

    def slowest(self, count: int) -> list[str]:
        """Return lines for the tests that took longest, the slowest first."""
        by_time = sorted(self.seconds.items(), key=lambda item: -item[1])
        return [f"{seconds:6.1f} s  {name}" for name, seconds in by_time[:count]]

    def __str__(self) -> str:
        """Say it the way the last line says it."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def failure(name: str, said: str) -> Counts:
    """Counts of one failure and nothing else."""
    counts = Counts()
    counts.fail(name, said)
    return counts


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


def ending(program: dict[str, Any]) -> str:
    """How a program of Meson's log ended, and the end of its output."""
    if program["result"] == "TIMEOUT":
        how = f"did not end within its time limit ({program['duration']:.0f} s)"
    else:
        how = exit_status(program["returncode"])
    output = "".join(program.get(name) or "" for name in ("stdout", "stderr"))
    return f"{how}; the end of its output:\n{shortened(output)}"


def failed_programs(log: pathlib.Path) -> Iterator[tuple[str, str]]:
    """The programs that failed according to Meson's log, one JSON object per line."""
    for line in log.read_text(errors="replace").splitlines():
        program = json.loads(line)
        if program["is_fail"]:
            yield program["name"], ending(program)


def junit_counts(report: pathlib.Path, log: pathlib.Path | None = None) -> Counts:
    """Count the cases of a JUnit file, whoever wrote it.

    Meson's file has no reason for a program that was killed before it wrote its own report, and
    does not mention one that failed after it. Meson's `log` knows both.
    """
    counts = Counts()
    died = dict(failed_programs(log)) if log else {}
    for suite in ElementTree.parse(report).iter("testsuite"):
        add_suite(counts, suite, died)
    for name, said in died.items():
        counts.fail(name, said)
    return counts


def add_suite(counts: Counts, suite: ElementTree.Element, died: dict[str, str]) -> None:
    """Count the cases of a suite; take from `died` the programs whose failures it has."""
    for case in suite.findall("testcase"):
        label = case.get("name", "")
        name = f"{case.get('classname', '')}.{label}"
        complaints = case.findall("failure") + case.findall("error")
        if complaints:
            said = "\n".join(one.text or one.get("message") or "" for one in complaints)
            counts.fail(name, died.pop(label, said))
            # The suite of a GoogleTest program is called PROJECT.PROGRAM.SUITE.
            for program in [one for one in died if f".{one}." in suite.get("name", "")]:
                del died[program]
        elif case.find("skipped") is not None:
            counts.skipped += 1
        else:
            counts.passed += 1
        counts.seconds[name] = counts.seconds.get(name, 0.0) + float(case.get("time") or 0)
