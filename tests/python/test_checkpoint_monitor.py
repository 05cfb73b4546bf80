"""Goal: a watch says how long training stood still for saves, and how far each has come.

Method: saves whose ranks wait at a gate, so that they are under way for as long as the test likes.
"""

import threading
from pathlib import Path

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt


class Gate:
    """Ranks of one, whose word number `at` waits: a save that stays under way."""

    def __init__(self, at: int) -> None:
        self.rank, self.size, self.words, self.at = 0, 1, 0, at
        self.reached, self.opened = threading.Event(), threading.Event()

    def all_gather(self, mine: bytes) -> list[bytes]:
        """As soon as the gate is open."""
        self.words += 1
        if self.words == self.at:
            self.reached.set()
            assert self.opened.wait(60)
        return [mine]


def state() -> dict[str, np.ndarray]:
    return {"w": np.zeros(1 << 20, "uint8")}


def test_a_save_under_way_is_seen_with_how_far_it_is(tmp_path: Path) -> None:
    with ckpt.monitor() as watch:
        gate = Gate(at=3)  # Behind the plan's and the manifest's: all is written.
        pending = ckpt.async_save(tmp_path, 5, state(), group=gate)
        assert gate.reached.wait(60)

        [running] = watch.report().running
        assert running.step == 5
        assert running.done_bytes == running.total_bytes >= 1 << 20
        assert watch.report().saves == 0

        gate.opened.set()
        pending.result()
    report = watch.report()
    assert (report.saves, report.failures, report.running) == (1, 0, ())
    assert 0 < report.stall_s <= report.elapsed_s
    assert report.stalled_fraction == report.stall_s / report.elapsed_s
    assert report.stall_s >= pending.stall_s


def test_before_anything_is_planned_nothing_is_known_of_the_bytes(tmp_path: Path) -> None:
    with ckpt.monitor() as watch:
        gate = Gate(at=1)
        pending = ckpt.async_save(tmp_path, 5, state(), group=gate)
        assert gate.reached.wait(60)
        [running] = watch.report().running
        assert (running.done_bytes, running.total_bytes) == (0, 0)
        gate.opened.set()
        pending.result()


def test_a_call_that_has_not_returned_counts_as_it_goes(tmp_path: Path) -> None:
    gate = Gate(at=1)
    with ckpt.monitor() as watch:
        saver = threading.Thread(
            target=ckpt.save, args=(tmp_path, 1, state()), kwargs={"group": gate}
        )
        saver.start()
        assert gate.reached.wait(60)
        first = watch.report().stall_s
        assert 0 < first < watch.report().stall_s
        gate.opened.set()
        saver.join()
        assert watch.report().saves == 1


def test_a_save_that_fails_is_counted_and_is_over(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, state())
    with ckpt.monitor() as watch:
        with pytest.raises(FileExistsError):
            ckpt.save(tmp_path, 1, state())
        pending = ckpt.async_save(tmp_path, 1, state())
        assert isinstance(pending.exception(), FileExistsError)
    assert (watch.report().saves, watch.report().failures) == (0, 2)
    assert watch.report().running == ()


def test_a_watch_tells_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    told: list[ckpt.Report] = []
    some = threading.Event()

    def tell(report: ckpt.Report) -> None:
        told.append(report)
        some.set()

    with ckpt.monitor(tell, every_s=0.01):
        assert some.wait(60)
        ckpt.save(tmp_path, 1, state())
    assert told[-1].saves == 1
    with ckpt.monitor(tell, every_s=1000):
        pass  # The last word comes at once.
    with pytest.raises(ValueError, match="every_s"), ckpt.monitor(every_s=0):
        pass


def test_figures_are_the_report_under_lasting_names(tmp_path: Path) -> None:
    names = {
        *("elapsed_s", "stall_s", "stalled_fraction", "saves", "failures", "running"),
        *("done_bytes", "total_bytes", "flushes", "flush_failures", "flush_skips"),
    }
    with ckpt.monitor() as watch:
        before = watch.report().figures()
        gate = Gate(at=3)
        pending = ckpt.async_save(tmp_path, 5, state(), group=gate)
        assert gate.reached.wait(60)
        during = watch.report().figures()
        gate.opened.set()
        pending.result()
    report = watch.report()

    assert set(before) == set(during) == {f"checkpoint/{name}" for name in names}
    assert all(type(value) is float for value in {**before, **during}.values())
    assert (before["checkpoint/running"], before["checkpoint/total_bytes"]) == (0, 0)
    assert during["checkpoint/running"] == 1
    assert during["checkpoint/done_bytes"] == during["checkpoint/total_bytes"] >= 1 << 20
    assert report.figures("rank1/")["rank1/saves"] == 1
    assert report.figures()["checkpoint/stall_s"] == report.stall_s > 0
