"""Functions that tests give to `pack` as `map`; workers import them."""

import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any, ClassVar

Sample = dict[str, Any]


def size_of(sample: Sample) -> Sample | None:
    """One row, or none."""
    if sample["name"].endswith("7"):
        return None
    return {"name": sample["name"], "size": len(sample["payload"])}


def letters(sample: Sample) -> Iterator[Sample]:
    """A row for each of the first bytes."""
    for position, byte in enumerate(sample["payload"][:3]):
        yield {"name": f"{sample['name']}.{position}", "byte": byte}


class Counted:
    """Is made once in each process."""

    schema: ClassVar = {"name": "utf8", "made": "i64"}
    made = 0

    def __init__(self) -> None:
        Counted.made += 1

    def __call__(self, sample: Sample) -> Sample:
        """Return a row."""
        return {"name": sample["name"], "made": Counted.made}


def slow(sample: Sample) -> Sample:
    """Leaves time to kill it."""
    time.sleep(0.01)
    return sample


def waits_at_95(sample: Sample) -> Sample:
    """Says that it is there, and goes on when it is told to."""
    marks = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"])
    if sample["name"].endswith("95"):
        (marks / "reached").touch()
        while not (marks / "go").exists():
            time.sleep(0.005)
    return sample


def fails_at_5(sample: Sample) -> Sample:
    if sample["name"].endswith("5"):
        raise KeyError("five")
    return sample


def fails_once(sample: Sample) -> Sample:
    """Of each name with a 5, until its file has been made."""
    mark = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"], sample["name"].replace("/", "_"))
    if sample["name"].endswith("5") and not mark.exists():
        mark.touch()
        raise KeyError("five")
    return sample


def dies_at_95(sample: Sample) -> Sample:
    if sample["name"].endswith("95"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def dies_once_at_95(sample: Sample) -> Sample:
    mark = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"], "died")
    if sample["name"].endswith("95") and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def half_fits(sample: Sample) -> list[Sample]:
    """The second row of some has a value of another type."""
    size: Any = len(sample["payload"])
    rows = [{"name": sample["name"], "size": size}, {"name": sample["name"], "size": size}]
    if sample["name"].endswith("b/005"):
        rows[1]["size"] = "five"
    return rows


def wrong(sample: Sample) -> Any:  # noqa: ANN401
    return 3
