"""Goal: after an interrupt, the state of a loader has the batches that its consumer got, no others.

Method: a loop is interrupted at each line of the loader's code, as Ctrl-C does and a handler of a
signal that raises; what the loop had got and what a loader resumes with are the whole epoch.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils import data

import ffrecord.torch
from ffrecord.torch import DataLoader, Dataset, Sampler
from loading import COUNT, labels, written

pytestmark = pytest.mark.wrong_data

BATCH = 40
PACKAGE = str(Path(ffrecord.torch.__file__).parent)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("interrupts"), "numbers")


class Interrupt:
    """Interrupts a block at the n-th line of the loader's code that it runs."""

    def __init__(self, lines: int) -> None:
        self.left = lines

    def __enter__(self) -> "Interrupt":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - a trace
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        # To end an iteration is no place for an interrupt: nothing is under way there.
        if event == "line" and frame.f_code.co_name not in ("close", "__del__"):
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                raise KeyboardInterrupt
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
