"""Goal: Grain reads record files whole, each record once an epoch, and resumes; JAX takes arrays.

Method: Grain's own pipelines over a source of ours, in threads and processes.
"""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tutorial import framework

import ffrecord
from ffrecord.decode import Image
from ffrecord.grain import BatchSource, DataSource
from ranks import run_ranks

grain = framework("grain")
framework("absl.flags").FLAGS.mark_as_parsed()  # Grain's worker processes ask for flags.
COUNT = 125


@pytest.fixture
def path(tmp_path: Path) -> Path:
    schema = {"label": "i64", "raw": "bytes", "text": "utf8", "rgba": "u8[4]"}
    with ffrecord.Writer(tmp_path / "a.ffr", schema) as writer:
        for i in range(COUNT):
            row = {"label": i, "raw": bytes([i]) * i, "text": str(i), "rgba": [i, 0, 0, 255 - i]}
            writer.write(row)
    return tmp_path / "a.ffr"


def pipeline(source: DataSource, rank: int = 0, world: int = 1, epochs: int = 2) -> Any:  # noqa: ANN401
    indices = grain.MapDataset.range(len(source)).seed(3).shuffle()[rank::world].repeat(epochs)
    return indices.batch(5).map(source.read).to_iter_dataset()


def labels(batches: Any) -> list[int]:  # noqa: ANN401
    return [label for batch in batches for label in batch["label"].tolist()]


def test_grain_takes_it_for_a_source_that_reads_several_at_once(path: Path) -> None:
    source = DataSource(path)

    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert source[3]["raw"] == b"\3\3\3"
    assert source[np.int64(3)]["text"] == "3"
    assert source[3]["rgba"].tolist() == [3, 0, 0, 252]  # Numbers, though they are bytes wide.
    assert [row["label"] for row in source.__getitems__([7, 2])] == [7, 2]
    assert [row["label"] for row in grain.MapDataset.source(source)._getitems([7, 2])] == [7, 2]


def test_each_record_comes_once_an_epoch_over_two_ranks(path: Path) -> None:
    for epoch in range(2):
        seen = []
        for rank in range(2):
            own = labels(pipeline(DataSource(path), rank, 2))
            half = len(own) // 2
            seen += own[half * epoch : half * (epoch + 1)]
        assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("taken", [0, 7, 31])
def test_a_pipeline_goes_on_at_its_place(path: Path, taken: int) -> None:
    source = DataSource(path)
    whole = labels(pipeline(source))
    first = iter(pipeline(source))
    seen = [label for _ in range(taken) for label in next(first)["label"].tolist()]

    resumed = iter(pipeline(source))
    resumed.set_state(first.get_state())

    assert seen + labels(resumed) == whole
    assert sorted(whole) == sorted([*range(COUNT), *range(COUNT)])


def steps(path: Path, size: int = 5, **options: Any) -> BatchSource:  # noqa: ANN401
    return BatchSource(DataSource(path), size, seed=3, epochs=2, **options)


@pytest.mark.parametrize("size", [5, 7, 200])
def test_batches_have_each_record_once_an_epoch_over_two_ranks(path: Path, size: int) -> None:
    whole = grain.MapDataset.source(steps(path, size))
    seen = labels([*whole[0::2].to_iter_dataset(), *whole[1::2].to_iter_dataset()])
    first = labels(whole[: len(whole) // 2])

    assert sorted(seen) == sorted([*range(COUNT), *range(COUNT)])
    assert sorted(first) == list(range(COUNT)) != first
    assert first != labels(whole[len(whole) // 2 :])  # Another epoch, another order.


def test_batches_come_in_the_order_of_our_sampler(path: Path) -> None:
    torch = pytest.importorskip("ffrecord.torch")
    sampler = torch.Sampler(torch.Dataset(path), 7, seed=3, last="short", rank=0, world_size=1)

    wanted = [index for _ in range(2) for batch in sampler for index in batch]

    assert labels(steps(path, 7)[step] for step in range(len(steps(path, 7)))) == wanted


@pytest.mark.parametrize("taken", [0, 7, 31])
def test_batches_go_on_at_their_place(path: Path, taken: int) -> None:
    whole = labels(grain.MapDataset.source(steps(path)).to_iter_dataset())
    first = iter(grain.MapDataset.source(steps(path)).to_iter_dataset())
    seen = labels(next(first) for _ in range(taken))

    sent = pickle.loads(pickle.dumps(steps(path)))
    resumed = iter(grain.MapDataset.source(sent).to_iter_dataset())
    resumed.set_state(first.get_state())

    assert seen + labels(resumed) == whole


@pytest.mark.parametrize("taken", [0, 7])
def test_worker_processes_read_each_record_once_an_epoch_and_go_on(path: Path, taken: int) -> None:
    def read() -> Any:  # noqa: ANN401
        options = grain.MultiprocessingOptions(num_workers=2)
        whole = grain.MapDataset.source(steps(path, 7)).to_iter_dataset()
        return iter(whole.mp_prefetch(options))

    first = read()
    seen = labels(next(first) for _ in range(taken))
    resumed = read()
    if taken:
        resumed.set_state(first.get_state())

    assert sorted(seen + labels(resumed)) == sorted([*range(COUNT), *range(COUNT)])


def test_another_number_of_ranks_goes_on_with_the_batches_that_are_left(path: Path) -> None:
    whole = grain.MapDataset.source(steps(path, 7))
    shares = [iter(whole[rank::3].to_iter_dataset()) for rank in range(3)]
    seen = labels(next(share) for share in shares for _ in range(4))

    left = whole[3 * 4 :]
    rest = [labels(left[rank::2].to_iter_dataset()) for rank in range(2)]

    assert sorted(seen + rest[0] + rest[1]) == sorted([*range(COUNT), *range(COUNT)])


def read_share(
    rank: int, world: int, path: str, folder: str, begin: int, taken: int | None
) -> list[int]:
    """One rank's labels, from a step of the whole; from its own place, if it has noted one."""
    batches = iter(
        grain.MapDataset.source(steps(Path(path), 7))[begin:][rank::world].to_iter_dataset()
    )
    place = Path(folder, f"place{rank}")
    if place.exists():
        batches.set_state(json.loads(place.read_text()))
    seen = labels(itertools.islice(batches, taken))
    place.write_text(json.dumps(batches.get_state()))
    return seen


def test_ranks_of_their_own_read_each_record_once_an_epoch_and_go_on_as_two_or_three(
    path: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("two", "three")]
    for folder in folders:
        folder.mkdir()

    seen = run_ranks(read_share, 2, str(path), str(folders[0]), 0, 13)  # To the second epoch.
    as_two = run_ranks(read_share, 2, str(path), str(folders[0]), 0, None)
    as_three = run_ranks(read_share, 3, str(path), str(folders[1]), 2 * 13, None)

    for rest in (as_two, as_three):
        assert sorted(itertools.chain(*seen, *rest)) == sorted([*range(COUNT), *range(COUNT)])


def test_the_repr_tells_other_data_and_another_order_from_these(path: Path) -> None:
    """Grain's state of a MapDataset is a position: the tutorial saves the repr with it."""
    before = repr(steps(path))
    assert repr(pickle.loads(pickle.dumps(steps(path)))) == before

    others = [BatchSource(path, 5, seed=4, epochs=2), BatchSource(path, 5, seed=3, epochs=3)]
    with ffrecord.Writer(path, {"label": "i64"}, replace=True) as writer:
        for _ in range(COUNT):
            writer.write({"label": 0})

    assert before not in [repr(steps(path)), *map(repr, others)]


def test_batches_of_a_file_in_its_order_without_the_last(path: Path) -> None:
    batches = steps(path, 50, shuffle=False, drop_last=True)

    assert [batches[step]["label"].tolist() for step in range(len(batches))] == [
        list(range(first, first + 50)) for first in (0, 50, 0, 50)
    ]
    assert repr(batches) == repr(BatchSource(path, 50, epochs=2, shuffle=False, drop_last=True))
    assert len({repr(batches), repr(steps(path, 50)), repr(steps(path, 51))}) == 3


def test_batches_that_cannot_be_are_named(path: Path, tmp_path: Path) -> None:
    ffrecord.Writer(tmp_path / "empty.ffr", {"label": "i64"}).close()

    assert len(BatchSource(DataSource(tmp_path / "empty.ffr"), 5)) == 0
    for wrong in (50, -51):
        with pytest.raises(IndexError, match=f"batch {wrong} of 50"):
            steps(path)[wrong]
    with pytest.raises(ValueError, match="batch_size is 0; it must be positive"):
        BatchSource(DataSource(path), 0)
    with pytest.raises(ValueError, match="epochs is 0; it must be positive"):
        BatchSource(DataSource(path), 5, epochs=0)
    with pytest.raises(ValueError, match="seed is -1"):
        BatchSource(DataSource(path), 5, seed=-1)


@pytest.mark.parametrize("workers", [0, 2])
def test_grains_own_loader_reads_each_record_and_knows_the_data(path: Path, workers: int) -> None:
    def loader(source: DataSource) -> Any:  # noqa: ANN401
        sampler = grain.samplers.IndexSampler(
            len(source), grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=1
        )
        return grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers)

    iterator = iter(loader(DataSource(path)))
    seen = [next(iterator)["label"] for _ in range(40)]
    state = iterator.get_state()
    resumed = iter(loader(DataSource(path)))
    resumed.set_state(state)

    assert sorted([*seen, *(row["label"] for row in resumed)]) == list(range(COUNT))
    with ffrecord.Writer(path, {"label": "i64"}, replace=True) as writer:
        for _ in range(COUNT):
            writer.write({"label": 0})
    with pytest.raises(ValueError, match=r"ffrecord\.grain\.DataSource"):
        iter(loader(DataSource(path))).set_state(state)


def test_a_source_is_small_to_send_and_has_only_the_columns_named(path: Path) -> None:
    source = DataSource(path, columns=["label", "text"])
    assert len(source) == COUNT

    sent = pickle.loads(pickle.dumps(source))

    assert len(pickle.dumps(source)) < 2000
    assert sent[4] == {"label": 4, "text": "4"}
    assert set(sent.read([1, 2])) == {"label", "text"}
    assert repr(sent) == repr(source) != repr(DataSource(path))


def test_a_view_is_a_source_with_the_options_it_was_opened_with(path: Path) -> None:
    both = DataSource(ffrecord.concat([ffrecord.open(path), ffrecord.open(path)]))

    assert len(both) == 2 * COUNT
    assert both[COUNT + 3]["label"] == 3
    assert both.paths == [str(path), str(path)]
    with pytest.raises(ValueError, match=r"give timeout_s where .* was opened"):
        DataSource(ffrecord.open(path), timeout_s=1.0)
    with pytest.raises(ValueError, match="has the format arrow; Grain takes numpy"):
        DataSource(ffrecord.open(path).with_format("arrow"))


def test_an_index_beyond_the_end_and_a_column_that_is_not_there_are_named(path: Path) -> None:
    with pytest.raises(IndexError, match="125"):
        DataSource(path).read([125])
    with pytest.raises(KeyError, match="no column 'what'; columns: label, raw, text, rgba"):
        DataSource(path, columns=["what"])[0]


def test_plain_bytes_are_bytes_and_decoded_ones_are_arrays(tmp_path: Path) -> None:
    import io

    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.new("RGB", (8, 8), (9, 9, 9)).save(file, "png")
    with ffrecord.Writer(tmp_path / "b.ffr") as writer:
        writer.write(file.getvalue())

    assert DataSource(tmp_path / "b.ffr")[0] == file.getvalue()
    decoded = DataSource(tmp_path / "b.ffr", decode=Image(4))[0]
    assert sorted(decoded.shape) == [3, 4, 4]


def test_jax_takes_columns_by_dlpack(path: Path) -> None:
    jax = framework("jax")
    batch = DataSource(path, columns=["rgba"]).read(range(64))

    array = jax.dlpack.from_dlpack(batch["rgba"])

    assert array.tolist() == batch["rgba"].tolist()
