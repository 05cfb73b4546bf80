"""Goal: views give the records of their sources, whole and in the order asked for, without copies.

Method: every view is compared with what plain Python makes of the same lists of indices.
"""

import itertools
import multiprocessing
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ffrecord
from ffrecord._base.shared_memory import SharedArray
from ffrecord._order.epoch_order import EpochOrder, IndexBatch
from ffrecord._order.mixture import Mixture
from order import permute

pytestmark = pytest.mark.wrong_data


def write(path: Path, numbers: range, schema: dict[str, str] | None = None) -> Path:
    with ffrecord.Writer(path, schema or {"label": "i64", "name": "utf8"}) as writer:
        for i in numbers:
            writer.write({"label": i, "name": f"n{i}"})
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("views")
    return [
        write(folder / "a.ffr", range(50)),
        write(folder / "b.ffr", range(100, 130)),
        write(folder / "c.ffr", range(200, 205)),
    ]


def spoil(path: Path, names: list[str], to: Path) -> Path:
    content = bytearray(path.read_bytes())
    for name in names:
        content[content.index(name.encode()) + 1] ^= 1
    to.write_bytes(content)
    return to


def labels(batch: Any) -> list[int]:  # noqa: ANN401 - a Batch's column
    return list(batch["label"].tolist())


def test_a_subset_is_the_chosen_records_in_their_order(files: list[Path]) -> None:
    view = ffrecord.open(files[0]).subset([7, 3, 3, -1])

    assert len(view) == 4
    assert labels(view.read([3, 0, -2])) == [49, 7, 3]
    assert view[1] == {"label": 3, "name": "n3"}
    assert labels(view[1:]) == [3, 3, 49]
    assert [sample["label"] for sample in view] == [7, 3, 3, 49]
    assert view.read([0]).indices.tolist() == [0]
    assert labels(view.subset(slice(None, None, -2)).read([0, 1])) == [49, 3]
    assert "4 records" in repr(view)
    with pytest.raises(IndexError, match="4 records"):
        view.read([4])
    with pytest.raises(IndexError, match="50 records"):
        ffrecord.open(files[0]).subset([50])


def test_a_filter_keeps_by_index_without_reading(files: list[Path]) -> None:
    reader = ffrecord.open(files[0])

    odd = reader.filter(lambda indices: indices % 2 == 1)

    assert labels(odd.read(range(3))) == [1, 3, 5]
    assert reader.stats()["records"] == 3
    assert labels(reader.filter(np.arange(50) == 9)[:]) == [9]
    with pytest.raises(ValueError, match=r"bool of shape \(50,\)"):
        reader.filter([True])


@given(
    st.lists(st.integers(-50, 49), max_size=60)
    | st.builds(lambda a, b: list(range(a, b)), st.integers(0, 49), st.integers(0, 50))
)
def test_a_subset_survives_its_pickle_whatever_was_chosen(indices: list[int]) -> None:
    folder = Path(__file__).parents[1] / "data" / "ffrecord-v1" / "folder"
    reader = ffrecord.open(folder)
    indices = [i % len(reader) for i in indices]

    view = pickle.loads(pickle.dumps(reader.subset(np.array(indices, np.int64))))

    expected = [bytes(record) for record in reader.read(indices).records()] if indices else []
    assert [bytes(record) for record in view] == expected


# Other ways to give the same indices, of 50.
@pytest.mark.parametrize(
    ("one", "others"),
    [
        ([], [range(3, 3), slice(9, 2), np.zeros(50, bool)]),
        ([4], [range(4, 50, 99), range(4, 0, -7), slice(4, 5), [-46], range(-46, -45)]),
        ([2, 3, 4], [range(2, 5), slice(2, 5), range(-48, -45), np.isin(np.arange(50), [2, 3, 4])]),
        ([0, 3, 6], [range(0, 7, 3), range(0, 9, 3), slice(0, 9, 3), slice(0, 8, 3)]),
        ([6, 3, 0], [range(6, -1, -3), range(6, -3, -3), slice(6, None, -3), [6, -47, 0]]),
        ([0, 9, 4], [[-50, 9, -46], np.array([0, 9, 4], np.int8), np.array([0, 9, 4], np.uint64)]),
    ],
)
def test_a_fingerprint_tells_which_records_not_how_they_were_given(
    files: list[Path], one: list[int], others: list[Any]
) -> None:
    reader = ffrecord.open(files[0])

    for other in others:
        is_mask = isinstance(other, np.ndarray) and other.dtype == bool
        view = reader.filter(other) if is_mask else reader.subset(other)
        assert view.fingerprint == reader.subset(one).fingerprint, other
        assert labels(view[:]) == one
    views = [reader.subset(each) for each in ([], [0], [4], [4, 5], [5, 4], [4, 5, 4], [4, 6])]
    assert len({view.fingerprint for view in views}) == len(views)


def test_a_range_of_any_length_pickles_small(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "long.ffr") as writer:
        for _ in range(100_000):
            writer.write(b"")
    reader = ffrecord.open(tmp_path / "long.ffr")

    view = reader.subset(np.arange(10, 100_000, 3))

    assert len(pickle.dumps(view.subset(slice(5, None)))) - len(pickle.dumps(reader)) < 500


def child(view: ffrecord.Records, answers: Any) -> None:  # noqa: ANN401 - a queue
    answers.put((labels(view.read([0, 1])), len(view)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_large_choice_is_shared_with_a_child_not_pickled(files: list[Path], method: str) -> None:
    view = ffrecord.open(files[0]).subset(np.tile([9, 4, 4], 100_000))
    context = multiprocessing.get_context(method)
    answers = context.Queue()

    process = context.Process(target=child, args=(view, answers))
    process.start()

    assert answers.get(timeout=120) == ([9, 4], 300_000)
    process.join()
    assert labels(view.read([299_999])) == [4]
    if method != "fork":
        shared = view.choice._chosen
        assert isinstance(shared, SharedArray)
        assert shared._descriptor is not None


def test_readers_of_files_become_one_reader(files: list[Path]) -> None:
    whole = ffrecord.concat([ffrecord.open(files[0]), ffrecord.open(files[1])])

    assert isinstance(whole, ffrecord.Reader)
    assert labels(whole.read([49, 50, -1])) == [49, 100, 129]


def test_views_are_put_together_by_copying_a_batch_once(files: list[Path]) -> None:
    a, b, c = (ffrecord.open(file) for file in files)
    whole = ffrecord.concat([a.subset(range(10)), b, c.subset([4, 0])])

    assert len(whole) == 42
    assert labels(whole.read([41, 0, 10, 9, 40, 0, -2])) == [200, 0, 100, 9, 204, 0, 204]
    assert whole.read([41, 0]).indices.tolist() == [41, 0]
    assert whole.read([41, 0])["name"] == ["n200", "n0"]
    assert len(whole.read([])) == 0
    assert labels(pickle.loads(pickle.dumps(whole)).read([10])) == [100]
    assert len({whole.fingerprint, a.fingerprint, ffrecord.concat([b, c]).fingerprint}) == 3
    assert whole.stats()["records"] == 7 + 2 + 2
    with pytest.raises(IndexError, match="42 records"):
        whole.read([42])


def test_sequences_of_other_columns_are_refused(files: list[Path], tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "other.ffr") as writer:
        writer.write(b"x")
    views = [ffrecord.open(f).subset([0]) for f in (files[0], tmp_path / "other.ffr")]

    with pytest.raises(ValueError, match="cannot be one sequence"):
        len(ffrecord.concat(views))
    with pytest.raises(ValueError, match="empty"):
        ffrecord.concat([])


def test_damage_is_told_by_the_index_of_the_view(files: list[Path], tmp_path: Path) -> None:
    bad = ffrecord.open(spoil(files[0], ["n17"], tmp_path / "bad.ffr"))
    view = ffrecord.concat([ffrecord.open(files[2]).subset([0]), bad.subset([16, 17, 18])])

    with pytest.raises(ffrecord.CorruptionError, match=r"bad\.ffr.*17"):
        view.read([2])
    assert labels(view.read(range(4), on_corrupt="skip")) == [200, 16, 18]
    assert labels(view.read(range(4), on_corrupt="replace")) == [200, 16, 18, 18]
    assert list(view.stats()["damaged"]) == [2]


def test_a_damaged_record_is_replaced_by_the_next_of_the_order(
    files: list[Path], tmp_path: Path
) -> None:
    order = EpochOrder(seed=5, epoch=2, count=50)
    stream = order.range(0, 50).tolist()
    # Positions 11, 12 and the last one: what follows them is 13, and the epoch's first.
    names = [f"n{stream[p]}" for p in (11, 12, 49)]
    content = bytearray(files[0].read_bytes())
    at = {f"n{i}": content.index(i.to_bytes(8, "little") + f"n{i}".encode()) for i in range(50)}
    for name in names:
        content[at[name]] ^= 0x80
    (tmp_path / "bad.ffr").write_bytes(content)
    reader = ffrecord.open(tmp_path / "bad.ffr")

    middle = reader.read(IndexBatch(order, 10, 4), on_corrupt="replace")
    end = reader.read(IndexBatch(order, 48, 2), on_corrupt="replace")

    assert labels(middle) == [stream[10], stream[13], stream[13], stream[13]]
    assert labels(end) == [stream[48], stream[0]]
    assert middle.indices.tolist() == labels(middle)
    by_index = reader.read([stream[11]], on_corrupt="replace")
    bad = {stream[p] for p in (11, 12, 49)}
    expected = next(i % 50 for i in itertools.count(stream[11] + 1) if i % 50 not in bad)
    assert labels(by_index) == [expected]


weights = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


@settings(max_examples=30)  # The reference walks each record's cycle in Python.
@given(
    weights=weights,
    counts=st.lists(st.integers(1, 40), min_size=5, max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_mixture_holds_its_weights_and_takes_each_source_whole(
    weights: list[int], counts: list[int], seed: int
) -> None:
    counts = counts[: len(weights)]
    mixture = Mixture(counts, weights)
    total = sum(mixture.weights)

    stream = mixture.range(seed, 0, 300).tolist()

    bounds = np.cumsum([0, *counts])
    owners = (np.searchsorted(bounds, stream, "right") - 1).tolist()
    for first in range(0, 300 - total + 1, total):
        seen = Counter(owners[first : first + total])
        assert [seen[s] for s in range(len(weights))] == list(mixture.weights)
    for source, count in enumerate(counts):
        own = [i - int(bounds[source]) for i, o in zip(stream, owners, strict=True) if o == source]
        for turn, first in enumerate(range(0, len(own), count)):
            expected = [
                permute(seed, turn, (1 << 32) + source, count, p)
                for p in range(min(count, len(own) - first))
            ]
            assert own[first : first + count] == expected


@settings(max_examples=30)
@given(weights=weights, cuts=st.lists(st.integers(0, 200), max_size=6), data=st.data())
def test_a_mixture_is_a_function_of_position_and_changes_without_losing_a_record(
    weights: list[int], cuts: list[int], data: st.DataObject
) -> None:
    counts = [17, 5, 29, 3, 11][: len(weights)]
    mixture = Mixture(counts, weights)
    whole = mixture.range(3, 0, 200).tolist()
    pieces = itertools.pairwise(sorted({0, 200, *cuts}))
    assert [i for a, b in pieces for i in mixture.range(3, a, b).tolist()] == whole

    at = data.draw(st.integers(0, 200))
    others = data.draw(st.permutations(weights))
    changed = mixture.change(others, at)
    changed = Mixture(counts, [1] * len(weights)).restored(changed.state())
    after = changed.range(3, at, at + 200).tolist()
    assert changed.range(3, 0, at).tolist() == whole[:at]
    places = data.draw(st.lists(st.integers(0, at + 199), max_size=9))
    picked = changed.at(3, np.array(places, np.int64)).tolist()
    assert picked == [[*whole[:at], *after][place] for place in places]

    # The stream of each source goes on where it was, whatever the weights.
    bounds = [0, *np.cumsum(counts).tolist()]
    for source, count in enumerate(counts):
        own = [
            i - bounds[source]
            for i in whole[:at] + after
            if bounds[source] <= i < bounds[source + 1]
        ]
        for ordinal, index in enumerate(own):
            turn, position = divmod(ordinal, count)
            assert index == permute(3, turn, (1 << 32) + source, count, position)


def test_a_batch_of_a_mixture_pickles_small_whatever_its_weights() -> None:
    mixture = Mixture([1000, 1000], [30_001, 30_000])
    batch = IndexBatch(EpochOrder(3, 1, 2000, mixture=mixture), 100, 256)

    copy = pickle.loads(pickled := pickle.dumps(batch))

    assert len(pickled) < 400
    assert copy == batch
    assert (copy.seed, copy.epoch, copy.position) == (3, 1, 100)


def test_the_golden_vector_of_a_mixture_holds() -> None:
    mixture = Mixture([30, 20], [3, 1])

    assert mixture.range(0, 0, 10).tolist() == [14, 24, 43, 19, 5, 9, 36, 25, 18, 8]
    assert mixture.change([1, 1], 6).range(0, 6, 12).tolist() == [36, 25, 32, 18, 31, 8]
    assert mixture.change([1, 1], 5).range(0, 5, 11).tolist() == [9, 36, 25, 32, 18, 31]


def test_a_mix_iterates_its_stream(files: list[Path]) -> None:
    a, b, c = (ffrecord.open(file) for file in files)
    mixed = ffrecord.mix([a, b, c], [3, 1, 0], seed=4)

    found = [sample["label"] for sample in mixed]

    assert len(found) == len(mixed) == 85
    assert [label >= 100 for label in found[:8]].count(True) == 2
    assert max(found) < 200
    assert sorted(Counter(label for label in found if label < 100).values()) == [1] * 36 + [2] * 14
    assert found == [sample["label"] for sample in ffrecord.mix([a, b, c], [6, 2, 0], seed=4)]


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1], "1 weights for 2"), ([0, 0], "above 0"), ([1, -1], "above 0"), ([1, 65536], "65536")],
)
def test_wrong_weights_are_refused(weights: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture([3, 4], weights)


def test_nobody_changes_the_indices_of_a_batch_in_place() -> None:
    order = EpochOrder(3, 1, 100)
    for batch in (IndexBatch(order, 10, 4), IndexBatch(order, 10, 4).through(lambda i: i + 5)):
        before = list(batch)
        for indices in (np.asarray(batch), batch.array):
            with pytest.raises(ValueError, match="read-only"):
                indices += 1
        own = np.array(batch)
        own += 1
        assert list(batch) == before == (own - 1).tolist()
