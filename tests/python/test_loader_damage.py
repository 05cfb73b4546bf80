"""Goal: damage is counted alike whoever reads: in the caller, by threads, by any worker process.

Method: files with flipped bytes, read through every kind of dataset and engine.
"""

from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from loading import COUNT, ENGINES, IMAGE_BYTES, KINDS, every_engine, labels, written

# As many as are always allowed, and one more.
ALLOWED = range(0, 110, 11)
TOO_MANY = range(0, 120, 11)


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"), request.param)


def damaged(path: Path, to: Path, records: range) -> Path:
    """A copy of which these records fail their checksums."""
    content = bytearray(path.read_bytes())
    for i in records:
        content[content.index(bytes([i]) * IMAGE_BYTES)] ^= 1
    to.write_bytes(content)
    return to


@pytest.mark.parametrize(
    "options", [*ENGINES.values(), {"mode": "workers", "num_workers": 6}], ids=[*ENGINES, "six"]
)
def test_too_many_damaged_records_are_an_error_however_many_workers_find_them(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    bad = damaged(path, tmp_path / "bad.ffr", TOO_MANY)
    dataset = Dataset(bad, on_corrupt="skip")
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 10), timeout=60, **options)

    with pytest.raises(ffrecord.CorruptionError, match="11 damaged records, more than the 10"):
        list(loader)
    loader.close()


@every_engine
def test_a_damaged_record_that_a_view_repeats_is_one(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    bad = damaged(path, tmp_path / "bad.ffr", range(3, 4))
    listed = [1, *[3] * 20, 2]

    def mix() -> Dataset:
        parts = [ffrecord.open(bad).subset(range(5)), ffrecord.open(path)]
        return Dataset(ffrecord.mix(parts, [1, 1]), on_corrupt="skip")

    for dataset in (
        mix(),
        Dataset(ffrecord.open(bad).subset(listed), on_corrupt="skip"),
        Subset(Dataset(bad, on_corrupt="skip"), listed),
        ConcatDataset([mix(), Dataset(bad, on_corrupt="skip")]),
    ):
        loader = DataLoader(dataset, 8, shuffle=True, **options)
        assert list(loader)
        assert loader.stats()["damaged"] == 1, dataset
        loader.close()


@every_engine
def test_damage_is_listed_once_for_each_record_in_every_epoch(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    bad = damaged(path, tmp_path / "bad.ffr", ALLOWED)
    whole = Dataset(bad, on_corrupt="replace")
    half = Subset(Dataset(bad, on_corrupt="replace"), range(60, COUNT))
    twice = ConcatDataset([Dataset(path), Dataset(bad, on_corrupt="replace")])
    wanted: list[tuple[Dataset, set[int]]] = [
        (whole, set(ALLOWED)),
        (half, {i - 60 for i in ALLOWED if i >= 60}),
        (twice, {COUNT + i for i in ALLOWED}),
    ]
    for dataset, indices in wanted:
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=60, **options)
        for _ in range(2):
            assert len(labels(loader)) == len(dataset) // 20
            assert set(dataset.stats()["damaged"]) == indices
            assert loader.stats()["damaged"] == len(indices)
        assert "fail their checksum" in dataset.stats()["damaged"][max(indices)]
        loader.close()


def test_what_was_found_before_the_workers_began_is_counted_once(
    path: Path, tmp_path: Path
) -> None:
    dataset = Dataset(damaged(path, tmp_path / "bad.ffr", ALLOWED), on_corrupt="skip")
    assert len(dataset[list(range(COUNT))]) == COUNT - len(ALLOWED)
    loader = DataLoader(
        dataset, batch_sampler=Sampler(dataset, 20), mode="workers", num_workers=2, timeout=60
    )

    assert len(labels(loader)) == 6
    assert len(dataset.stats()["damaged"]) == len(ALLOWED)
    assert loader.stats()["damaged"] == 0


@every_engine
def test_a_state_that_is_loaded_in_a_loop_changes_no_batch_of_it_beside_damage(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    bad = damaged(path, tmp_path / "bad.ffr", range(0, 110, 22))
    dataset = Dataset(bad, on_corrupt="skip", columns=["label"])

    def loader(**how: Any) -> DataLoader:  # noqa: ANN401
        return DataLoader(dataset, batch_sampler=Sampler(dataset, 10), **how)

    whole, running = labels(loader()), loader(**options)
    batches = iter(running)
    seen = [next(batches)["label"].tolist()]

    running.load_state_dict(Sampler(dataset, 10, seed=9).state_dict())

    assert seen + labels(batches) == whole
    assert running.state_dict()["seed"] == 9
    running.close()
