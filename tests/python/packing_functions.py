"""Functions that tests give to `pack` as `map`; workers import them."""

import os
import pathlib
import signal
import threading
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


def not_for_each(sample: Sample) -> Sample | list[Sample] | None:
    """The sample, none, or the sample twice."""
    rest = int(sample["n"]) % 4
    return None if rest == 2 else [sample, sample] if rest == 3 else sample


class Counted:
    """Is made once in each process."""

    schema: ClassVar = {"name": "utf8", "made": "i64"}
    made = 0

    def __init__(self) -> None:
        Counted.made += 1

    def __call__(self, sample: Sample) -> Sample:
        """Return a row."""
        return {"name": sample["name"], "made": Counted.made}


class Numbered:
    """Numbers the samples that its object gets."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, sample: Sample) -> Sample:
        """Return a row."""
        self.count += 1
        return {"name": sample["name"], "number": self.count}


def slow(sample: Sample) -> Sample:
    """Leaves time to kill it."""
    time.sleep(0.01)
    return sample


def waits_at_95(sample: Sample) -> Sample:
    """Says that it is there, and goes on when it is told to."""
    marks = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"])
    if sample["name"].endswith("95"):
        (marks / "reached").touch()
        _until_told()
    return sample


def _until_told() -> None:
    while not pathlib.Path(os.environ["FFRECORD_TEST_MARKS"], "go").exists():
        time.sleep(0.005)


def fails_at_5(sample: Sample) -> Sample:
    if sample["name"].endswith("5"):
        raise KeyError("five")
    return sample


def fails_once(sample: Sample) -> Sample:
    """Fails at the first call for each name that ends in 5."""
    mark = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"], sample["name"].replace("/", "_"))
    if sample["name"].endswith("5") and not mark.exists():
        mark.touch()
        raise KeyError("five")
    return sample


def fails_while_marked(sample: Sample) -> Sample:
    """Fails for each name that ends in 5, as long as there is a mark."""
    mark = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"], "fails")
    if sample["name"].endswith("5") and mark.exists():
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


def text_of_first(sample: Sample) -> Sample:
    """A text that is empty for all but the first."""
    return {"text": "x" * 25_000 if sample["name"] == "a/000" else ""}


def same_dict(sample: Sample) -> Iterator[Sample]:
    """Yields one object again and again, with other values."""
    row: Sample = {}
    values: list[int] = []
    for number in range(3):
        row["number"] = number
        values.append(number)
        row["values"] = values
        yield row


class Scale:
    """Has state that decides the result."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def of(self, sample: Sample) -> Sample:
        """Return a row."""
        return {"size": len(sample["payload"]) * self.factor}


def quits_at_5(sample: Sample) -> Sample:
    if sample["name"] == "b/005":
        raise SystemExit(0)
    return sample


def leaves_at_5(sample: Sample) -> Sample:
    if sample["name"] == "b/005":
        os._exit(0)
    return sample


def interrupts_at_5(sample: Sample) -> Sample:
    if sample["name"] == "b/005":
        raise KeyboardInterrupt
    return sample


def forks_at_5(sample: Sample) -> Sample:
    """Comes back in two processes."""
    if sample["name"] == "b/005":
        os.fork()
    return sample


def closes_at_5(sample: Sample) -> Sample:
    """Closes all that the process has open."""
    if sample["name"] == "b/005":
        os.closerange(3, 1 << 16)
    return sample


def closes_at_once(sample: Sample) -> Sample:
    """Closes all that the process has open."""
    os.closerange(3, 1 << 16)
    return sample


def appends(sample: Sample) -> Sample:
    """Changes what it was given."""
    sample["tags"].append("x")
    return sample


def numbers(sample: Sample) -> Sample:
    return {"y": sample["x"]}


def never_ends(sample: Sample) -> Sample:
    """Fails in one process; another works forever, and cannot be asked to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sample["name"] == "b/005":
        raise KeyError("five")
    if sample["name"] == "a/000":
        time.sleep(3600)
    return sample


def fails_until_marked(sample: Sample) -> Sample:
    """All of the first part."""
    mark = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"], "marked")
    if sample["name"] < "a/050" and not mark.exists():
        raise KeyError("not yet")
    return {"name": sample["name"]}


def leaves_a_thread(sample: Sample) -> Sample:
    """It would keep its process."""
    if sample["name"] == "b/005":
        threading.Thread(target=_until_told).start()
    return sample


def leaves_a_child(sample: Sample) -> Sample:
    """A child that was forked has the pipes of its parent."""
    if sample["name"] == "b/005" and os.fork() == 0:
        _until_told()
        os._exit(0)
    return sample


def counted_calls(sample: Sample) -> Sample:
    """Leaves a mark for each call; waits at 95 until it may go on."""
    marks = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"])
    with open(marks / f"calls {sample['name'].replace('/', ' ')}", "ab") as file:
        file.write(b".")
    return waits_at_95(sample)


def calls_of(name: str) -> int:
    """How often `counted_calls` was called with a sample."""
    marks = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"])
    return (marks / f"calls {name.replace('/', ' ')}").stat().st_size


_same: Sample = {}


def one_dict(sample: Sample) -> Sample:
    """The same dict for all samples."""
    _same["size"] = len(sample["payload"])
    return _same


def drawn_in_two_processes(sample: Sample) -> Sample:
    """A number by chance, once two processes are about to draw theirs."""
    import numpy as np

    marks = pathlib.Path(os.environ["FFRECORD_TEST_MARKS"])
    (marks / str(os.getpid())).touch()
    while len(list(marks.iterdir())) < 2:
        time.sleep(0.005)
    return {"drawn": float(np.random.random())}


drawn_in_two_processes.schema = {"drawn": "f64"}  # type: ignore[attr-defined]
