"""Goal: Python programs signal their phases, and hold what they transfer themselves.

Method: the extension's functions and counters. When something passes is tested in C++, where time
is the test's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

import ffrecord
from daemon import Daemon
from eventually import eventually
from ffrecord import _ffrecord
from ffrecord.torch import DataLoader, Dataset, Sampler
from interrupting import interrupted_after

PATIENT = {"checkpoint": (0, 60.0), "phase_limit_s": 600.0, "stale_after_s": 600.0}


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    _ffrecord.stop_pacing()


def of_class(name: str) -> dict[str, Any]:
    counters: dict[str, Any] = _ffrecord.pacing_counters()["classes"][name]
    return counters


def test_without_pacing_nothing_is_held_or_counted() -> None:
    _ffrecord.phase_begin("collective", 1)
    _ffrecord.await_turn("repair", 1)
    _ffrecord.phase_end("collective")
    assert not _ffrecord.is_pacing()


def test_a_transfer_of_the_program_waits_for_the_end_of_the_phase() -> None:
    _ffrecord.start_pacing(**PATIENT)
    _ffrecord.phase_begin("collective", 1 << 20)
    _ffrecord.await_turn("urgent", 10)
    sender = Thread(target=_ffrecord.await_turn, args=("checkpoint", 1000))
    sender.start()
    eventually(lambda: of_class("checkpoint")["held_now"] == 1)

    _ffrecord.phase_end("collective")
    sender.join()

    assert of_class("checkpoint")["held_size_bytes"] == 1000
    assert of_class("checkpoint")["held_s"] > 0
    assert of_class("urgent") == dict(of_class("urgent"), chunks=1, size_bytes=10, held_chunks=0)


def test_an_interrupt_ends_the_wait_for_a_turn() -> None:
    _ffrecord.start_pacing(**PATIENT)
    _ffrecord.phase_begin("collective", 1)
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
        _ffrecord.await_turn("checkpoint", 1000)  # Is held for a minute.
    assert of_class("checkpoint") == dict(of_class("checkpoint"), held_now=0, expired_holds=0)


def test_signals_are_counted_and_a_start_counts_anew() -> None:
    _ffrecord.start_pacing()
    _ffrecord.phase_begin("point_to_point", 7)
    _ffrecord.phase_begin(kind="other")
    _ffrecord.phase_end("other")
    _ffrecord.phase_end("point_to_point")
    _ffrecord.phase_end("point_to_point")
    _ffrecord.step_end()
    counters = _ffrecord.pacing_counters()
    assert {name: counters[name] for name in ("phases", "phase_size_bytes", "steps")} == {
        "phases": 2,
        "phase_size_bytes": 7,
        "steps": 1,
    }
    assert counters["unmatched_ends"] == 1
    _ffrecord.start_pacing()
    assert _ffrecord.pacing_counters()["phases"] == 0


def test_a_low_queue_makes_prefetch_urgent() -> None:
    _ffrecord.start_pacing(prefetch=(0, 60.0), phase_limit_s=600.0)
    _ffrecord.phase_begin("collective")
    _ffrecord.report_loader_queue(True)
    _ffrecord.await_turn("prefetch", 1)
    _ffrecord.report_loader_queue(False)
    assert _ffrecord.pacing_counters()["promotions"] == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint": (0, 0.0)}, "checkpoint.longest_hold"),
        ({"prefetch": (1, float("nan"))}, "prefetch.longest_hold"),
        ({"repair": (1, 61.0)}, "repair.longest_hold"),
        ({"chunk_size_bytes": 1000}, "16 KiB"),
        ({"phase_limit_s": -1.0}, "phase_limit"),
        ({"stale_after_s": 1e300}, "stale_after"),
    ],
)
def test_options_out_of_range_are_refused_and_change_nothing(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        _ffrecord.start_pacing(**options)
    assert not _ffrecord.is_pacing()


@pytest.mark.parametrize("call", [_ffrecord.phase_begin, _ffrecord.phase_end])
def test_an_unknown_kind_is_refused_by_name(call: Callable[[str], None]) -> None:
    with pytest.raises(ValueError, match=r"'all_reduce'.*'collective'"):
        call("all_reduce")


def test_an_unknown_class_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'bulk'.*'checkpoint'"):
        _ffrecord.await_turn("bulk", 1)


@contextmanager
def training() -> Iterator[None]:
    """Steps of a phase and a gap in a thread of its own."""
    over = Event()

    def run() -> None:
        while not over.is_set():
            for _ in range(3):
                _ffrecord.phase_begin("collective", 1)
                over.wait(0.004)
                _ffrecord.phase_end("collective")
                over.wait(0.004)
            _ffrecord.step_end()

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.wrong_data
def test_what_is_published_and_read_ahead_beside_phases_is_whole(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    values = random.integers(0, 256, (500, 20_000), np.uint8)
    with ffrecord.Writer(tmp_path / "file.ffr", {"value": "u8[20000]"}) as writer:
        for value in values:
            writer.write({"value": value})
    _ffrecord.start_pacing(link_bytes_per_s=400_000_000, chunk_size_bytes=65536)
    with Daemon(tmp_path / "served") as daemon, training():
        address = daemon.address("x?transport=tcp")
        ffrecord.publish(tmp_path / "file.ffr", address)
        dataset = Dataset(address)
        sampler = Sampler(dataset, 50, shuffle=False)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        batches = [np.asarray(batch["value"]) for batch in loader]
    np.testing.assert_array_equal(np.concatenate(batches), values)
    assert of_class("checkpoint")["size_bytes"] >= values.nbytes
    assert of_class("checkpoint")["chunks"] >= values.nbytes // 65536
    # Not all of it is granted: a daemon sends the rest of a read that it has begun.
    assert of_class("prefetch")["chunks"] >= 10
