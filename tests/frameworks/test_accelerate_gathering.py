"""Goal: `gather_for_metrics` returns each record once, or raises by name; no rank aborts.

Method: two real ranks gather the labels of an epoch whose last step does not fill a batch, for
each way of a sampler to end an epoch; as tensors, as objects, and as tensors again.
"""

from pathlib import Path

import pytest
from tutorial import framework, run

import ffrecord

framework("accelerate")
PRELOAD = ("accelerate",)
SCRIPT = """
import sys

import torch
from accelerate import Accelerator

from ffrecord.torch import DataLoader, Dataset, Sampler

accelerator = Accelerator(cpu=True)
dataset = Dataset("numbers.ffr")
sampler = Sampler(dataset, 8, shuffle=False, last=sys.argv[1])
loader = accelerator.prepare(DataLoader(dataset, batch_sampler=sampler))
for epoch, as_objects in enumerate([False, True, False]):
    gathered = []
    try:
        for batch in loader:
            # Gradients are of one shape on all ranks: they pass in each step.
            assert accelerator.reduce(torch.ones(3)).tolist() == [2.0] * 3
            labels = batch["label"].tolist() if as_objects else batch["label"]
            found = accelerator.gather_for_metrics(labels, use_gather_object=as_objects)
            gathered += found if as_objects else found.tolist()
    except Exception as error:
        assert "shape mismatches" in str(error), error
        gathered.append(999)
    print(f"epoch {epoch}:", *gathered)
    sampler.set_epoch(epoch + 1)
accelerator.end_training()
"""


@pytest.mark.parametrize(
    ("last", "count", "equal"),
    [
        pytest.param("pad", 41, 41, id="the last step is padded"),
        pytest.param("short", 42, 42, id="the last step is short, of equal shares"),
        pytest.param("exact", 42, 42, id="the last step is exact, of equal shares"),
        pytest.param("short", 43, 40, id="the last step is short, of unequal shares"),
        pytest.param("exact", 41, 32, id="the last step has a record more"),
    ],
)
def test_each_record_is_gathered_once_or_refused(
    last: str, count: int, equal: int, tmp_path: Path
) -> None:
    with ffrecord.Writer(tmp_path / "numbers.ffr", {"label": "i64"}) as writer:
        for number in range(count):
            writer.write({"label": number})
    script = tmp_path / "gather.py"
    script.write_text(SCRIPT)

    ranks = run(script, 2, last).by_rank

    tensors = list(range(equal)) + [999] * (equal < count)
    expected = [tensors, list(range(count)), tensors]
    assert ranks == [list(enumerate(expected))] * 2
