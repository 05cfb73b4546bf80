"""Tell faults from tests that a busy machine has slowed.

A test that failed on an assertion or a time limit is run again, alone, after everything else. If it
passes twice, it is *unsteady*: the run is green, and the test is written to tests/unsteady.md. The
next change mends it first and removes it from there: a test that is listed is not run again. Nor is
a crash, a report of a sanitizer, wrong data, or a leak.
"""

import dataclasses
import datetime
import pathlib
import tempfile
import time
from collections.abc import Sequence

from builds import THREAD
from counts import Counts, Failure, shortened

TIMES = 2
# More tests than that do not fail by accident; and a run has to end in time.
TESTS_MAX = 8
LIMIT_S = 900.0
HEADING = "## "


@dataclasses.dataclass(frozen=True)
class Unsteady:
    """A test that failed, and then passed alone each time."""

    failure: Failure
    outputs: Sequence[str]  # Outputs of the runs alone.

    def section(self) -> str:
        """Return its section of tests/unsteady.md."""
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        said = "\n".join(f"    {line}".rstrip() for line in self.failure.said.splitlines())
        return f"{HEADING}{self.failure.test}\n\n{day}. It said:\n\n{said}\n"

    def __str__(self) -> str:
        """Say it with all outputs."""
        alone = "\n".join(
            f"-- passed alone, run {number} of {TIMES}:\n{output}"
            for number, output in enumerate(self.outputs, 1)
        )
        return f"{self.failure}\n{alone}"


def listed(page: pathlib.Path) -> set[str]:
    """Return the tests that a page of unsteady tests has."""
    lines = page.read_text().splitlines() if page.exists() else []
    return {line.removeprefix(HEADING) for line in lines if line.startswith(HEADING)}


def note(page: pathlib.Path, found: Sequence[Unsteady]) -> None:
    """Add tests to the page."""
    old = page.read_text() if page.exists() else ""
    page.write_text("\n".join([old, *(one.section() for one in found)]))


def why_final(failure: Failure, known: set[str]) -> str:
    """Say why a failure is not run again; empty if it is."""
    if failure.fault:
        return failure.fault
    if failure.again is None:
        return "not a single test"
    return "unsteady for the second time" if failure.test in known else ""


def passes_alone(failure: Failure) -> list[str] | None:
    """Run a test alone; return what it printed each time, or None if it failed."""
    assert failure.again is not None
    outputs = []
    for _ in range(TIMES):
        with tempfile.TemporaryFile("w+", errors="replace") as THREAD.file:
            try:
                counts = failure.again()
            finally:
                output, THREAD.file = THREAD.file, None
            output.seek(0)
            outputs.append(shortened(output.read()))
        if counts.failed or not counts.passed:
            return None
    return outputs


def judge(total: Counts, page: pathlib.Path, tests_max: int = TESTS_MAX) -> list[Unsteady]:
    """Run failures again that a slow machine may explain; forgive those that pass.

    Changes `total`, and writes what it forgives to `page`.
    """
    known = listed(page)
    reasons = [(failure, why_final(failure, known)) for failure in total.failures]
    for failure, reason in reasons:
        if reason:
            print(f"not run again: {failure.name}: {reason}", flush=True)
    suspects = [failure for failure, reason in reasons if not reason]
    if len(suspects) > tests_max:
        print(f"not run again: {len(suspects)} tests, more than {tests_max}", flush=True)
        return []
    found = []
    start = time.monotonic()
    for failure in suspects:
        if time.monotonic() - start > LIMIT_S:
            print(f"not run again: {failure.name}: {LIMIT_S:.0f} s are over", flush=True)
            continue
        outputs = passes_alone(failure)
        print(f"run alone: {failure.name}: {'fails' if outputs is None else 'passes'}", flush=True)
        if outputs is not None:
            total.forgive(failure)
            found.append(Unsteady(failure, outputs))
    if found:
        note(page, found)
    return found
