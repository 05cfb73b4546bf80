"""Goal: after an interrupt, a state has what the consumer got, and the next iteration is whole.

Method: a loop is interrupted at each line of the loader's code, as Ctrl-C does and a handler of a
signal that raises; what the loop had got and what a loader resumes with are the whole epoch.
Workers are interrupted before they can notice it.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils import data

import ffrecord.torch
from eventually import eventually
from ffrecord.torch import DataLoader, Dataset, Sampler, _worker_iterator
from loading import COUNT, expected, labels, written

pytestmark = pytest.mark.wrong_data

BATCH = 40
PACKAGE = str(Path(ffrecord.torch.__file__).parent)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("interrupts"), "numbers")


class Interrupt:
    """Interrupts a block at the n-th line of the loader's code that it runs."""

    def __init__(
        self, lines: int, error: type[BaseException] = KeyboardInterrupt, where: str = PACKAGE
    ) -> None:
        self.left = lines
        self.error = error
        self.where = where

    def __enter__(self) -> "Interrupt":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - a trace
        if not frame.f_code.co_filename.startswith(self.where):
            return None
        # To end an iteration is no place for an interrupt: nothing is under way there.
        if event == "line" and frame.f_code.co_name not in ("close", "__del__"):
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                raise self.error
        return self._trace


ORDERS: dict[str, Callable[[Dataset], dict[str, Any]]] = {
    "sampler": lambda d: {"batch_sampler": Sampler(d, BATCH)},
    "in order": lambda _: {"batch_size": BATCH},
    "torch's replacement": lambda d: {
        "batch_size": BATCH,
        "sampler": data.RandomSampler(d, True, COUNT, torch.Generator().manual_seed(1)),
    },
}


@pytest.mark.parametrize("options", [{}, {"mode": "threads", "num_workers": 1}])
@pytest.mark.parametrize("order", ORDERS)
def test_a_batch_that_an_interrupt_takes_from_the_consumer_comes_again(
    path: Path, order: str, options: dict[str, Any]
) -> None:
    dataset = Dataset(path, columns=["label"])

    def loader() -> DataLoader:
        return DataLoader(dataset, **ORDERS[order](dataset), **options)

    whole = labels(loader())
    lines, is_over = 0, False
    while not is_over:
        lines += 1
        running, seen = loader(), []
        try:
            with Interrupt(lines):
                for batch in running:
                    seen.append(batch["label"].tolist())
            is_over = True
        except KeyboardInterrupt:
            pass
        resumed = loader()
        resumed.load_state_dict(json.loads(json.dumps(running.state_dict())))
        rest = labels(resumed)
        if len(seen) < len(whole):  # Else the next epoch comes.
            assert seen + rest == whole, f"line {lines}"
        else:
            assert seen == whole
        running.close()
        resumed.close()
    assert lines > 100


class AlarmError(Exception):
    """Raised by a handler of a signal."""


def test_a_worker_that_persists_gives_the_next_epoch_whole_wherever_a_handler_raises(
    tmp_path: Path,
) -> None:
    # A batch is larger than a pipe, so that it comes in parts, and too small for shared memory.
    dataset = Dataset(written(tmp_path, "numbers"))
    order = Sampler(30, 15)
    expected = [list(step) for step in order]
    loader = DataLoader(
        dataset, batch_sampler=order, num_workers=1, persistent_workers=True, timeout=60
    )
    lines, is_over = 0, False
    while not is_over:
        lines += 1
        try:
            order.set_epoch(0)
            with Interrupt(lines, AlarmError, _worker_iterator.__file__):
                labels(loader)
            is_over = True
        except AlarmError:
            pass

        order.set_epoch(1)
        order.set_epoch(0)
        assert labels(loader) == expected, f"line {lines}"
    assert lines > 50


def test_an_iteration_that_begins_while_an_interrupt_ends_the_workers_is_whole(path: Path) -> None:
    dataset = Dataset(path)
    loader = DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 20),
        num_workers=2,
        persistent_workers=True,
        timeout=60,
    )
    assert labels(loader) == expected(0)
    workers = [each.pid for each in loader._iterator._workers]  # type: ignore[union-attr]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)  # They have not come to it yet.
        os.kill(pid, signal.SIGINT)
    main = threading.main_thread().ident

    def asks_the_workers() -> bool:
        frame = sys._current_frames()[main or 0]
        while frame is not None and frame.f_code.co_name != "_reset":
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None

    def let_them_go() -> None:
        eventually(asks_the_workers)
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=let_them_go)
    thread.start()
    try:
        assert labels(loader) == expected(1)
    finally:
        thread.join()
