"""Goal: batches that native threads make are the reader's, of their values' size, and end in time.

Method: a loader over columns of fixed width; a daemon that is frozen while a thread waits.
"""

import gc
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffrecord
from daemon import Daemon
from eventually import until_idle
from ffrecord._read.read_ahead import ReadAhead
from ffrecord.errors import ClosedError
from ffrecord.torch import DataLoader, Dataset, Sampler
from ffrecord.torch._sampler import Cursor
from loading import COUNT, expected, labels, written

pytestmark = pytest.mark.wrong_data


def loader_of(dataset: Dataset, batch: int = 20, **options: Any) -> DataLoader:  # noqa: ANN401
    return DataLoader(
        dataset, batch_sampler=Sampler(dataset, batch), mode="threads", num_workers=2, **options
    )


def resident_bytes() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_the_only_column_may_be_wanted_twice(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "one.ffr", {"x": "f64"}) as writer:
        for i in range(40):
            writer.write({"x": i})
    dataset = Dataset(tmp_path / "one.ffr", columns=["x", "x"])

    batches = list(loader_of(dataset))

    inline = DataLoader(dataset, batch_sampler=Sampler(dataset, 20))
    for batch, known in zip(batches, inline, strict=True):
        assert torch.equal(batch["x"], known["x"])


def test_numbers_have_the_types_and_shapes_that_a_reader_gives_them(tmp_path: Path) -> None:
    columns = {"half": "bf16[2]", "flag": "bool", "box": "i16[2,3]"}
    with ffrecord.Writer(tmp_path / "types.ffr", columns) as writer:
        for i in range(40):
            half, box = np.full(2, 0x3F80 + i, np.uint16), np.full((2, 3), i)
            writer.write({"half": half, "flag": i % 3 == 0, "box": box})
    for wanted in (None, ["box", "half"]):
        dataset = Dataset(tmp_path / "types.ffr", columns=wanted)
        inline = DataLoader(dataset, batch_sampler=Sampler(dataset, 20))
        for batch, known in zip(loader_of(dataset), inline, strict=True):
            assert list(batch) == list(known)
            for name, values in known.items():
                assert batch[name].dtype == values.dtype
                assert torch.equal(batch[name], values)


def test_an_epoch_after_one_that_was_resumed_between_two_steps_is_whole(tmp_path: Path) -> None:
    path = written(tmp_path, "numbers")
    dataset = Dataset(path)
    state = {**Sampler(dataset, 50).state_dict(), "position": 50}
    sampler = Sampler(dataset, 40)
    sampler.load_state_dict(state)
    loader = DataLoader(dataset, batch_sampler=sampler, mode="threads", num_workers=2)
    assert len(labels(loader)) == 1  # Of the 70 that are left.
    assert labels(loader) == expected(1, 40)


def test_what_was_read_is_counted_once(tmp_path: Path) -> None:
    loader = loader_of(Dataset(written(tmp_path, "numbers")), memory_limit_bytes=1)
    for _ in loader:
        loader.stats()
    assert COUNT <= loader.stats()["records"] <= COUNT + 5 * 20  # And what was read ahead.


def test_a_small_column_that_is_kept_does_not_keep_the_whole_records(tmp_path: Path) -> None:
    count, width = 200, 1 << 20
    with ffrecord.Writer(tmp_path / "wide.ffr", {"label": "i64", "x": f"u8[{width}]"}) as writer:
        for i in range(count):
            writer.write({"label": i, "x": np.full(width, i % 256, np.uint8)})
    loader = loader_of(Dataset(tmp_path / "wide.ffr", columns=["label"]), 10)
    batches = iter(loader)
    kept = [next(batches)]
    before = resident_bytes()

    kept += batches

    loader.close()
    gc.collect()
    assert resident_bytes() - before < count * width // 2
    assert sorted(torch.cat([batch["label"] for batch in kept]).tolist()) == list(range(count))


def test_who_waits_for_a_batch_learns_at_once_that_the_loader_was_closed(tmp_path: Path) -> None:
    found: list[BaseException] = []

    def take(batches: Any) -> None:  # noqa: ANN401 - an iterator
        try:
            for _ in batches:
                pass
        except ClosedError as error:
            found.append(error)

    with Daemon(tmp_path / "data") as daemon:
        ffrecord.publish(written(tmp_path, "numbers"), daemon.address("train"))
        dataset = Dataset(ffrecord.open(daemon.address("train"), timeout_s=60))
        loader = loader_of(dataset, timeout=600, memory_limit_bytes=1)  # One batch ahead.
        batches = iter(loader)
        next(batches)
        daemon.freeze()
        taking = threading.Thread(target=take, args=(batches,))
        taking.start()
        until_idle()  # What was read before is taken by now.
        loader.close()
        taking.join()
    assert len(found) == 1


def test_a_stream_that_waits_for_the_index_of_a_file_ends_at_once(tmp_path: Path) -> None:
    with Daemon(tmp_path / "data") as daemon:
        ffrecord.publish(written(tmp_path, "numbers"), daemon.address("train"))
        reader = ffrecord.open(daemon.address("train"), timeout_s=60)
        share = Sampler(len(reader), 20).share(Cursor(0, 0))
        daemon.freeze()
        stream = reader.open_stream(
            share, 100, reader.columns, ahead=ReadAhead(2, 4, 1 << 30, timeout_s=60)
        )
        assert stream.next(0.5) is None
        thawing = threading.Timer(20, daemon.thaw)  # Else a failure would take for ever.
        thawing.start()
        stream.close()
        assert thawing.is_alive()
        thawing.cancel()
