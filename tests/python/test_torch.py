"""Goal: torch's loaders and ours give the same batches, under every start method, and resume.

Method: one small dataset is loaded in every way and the sequences of labels are compared.
"""

import itertools
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord._order.epoch_order import EpochOrder
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, collate

COUNT = 200
START_METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch") / "data.ffr"
    schema = {"label": "i64", "image": "bytes", "name": "utf8", "x": "f32[3]", "half": "bf16"}
    with ffrecord.Writer(path, schema) as writer:
        for i in range(COUNT):
            x = np.arange(3) + i
            image = bytes([i]) * (i + 1)
            writer.write({"label": i, "image": image, "name": f"n{i}", "x": x, "half": i / 2})
    return path


def labels(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    return [batch["label"].tolist() for batch in batches]


def expected(seed: int = 0, epoch: int = 0, batch: int = 20) -> list[list[int]]:
    sampler = Sampler(COUNT, batch, seed)
    sampler.set_epoch(epoch)
    return [list(indices) for indices in sampler]


def test_a_batch_becomes_tensors_by_column(path: Path) -> None:
    batch = collate(Dataset(path).__getitems__([7, 0]))

    assert batch["label"].dtype == torch.int64
    assert batch["label"].tolist() == [7, 0]
    assert torch.equal(batch["x"], torch.tensor([[7.0, 8, 9], [0, 1, 2]]))
    assert batch["half"].dtype == torch.bfloat16
    assert batch["half"].tolist() == [3.5, 0.0]
    assert batch["name"] == ["n7", "n0"]
    assert [image.tolist() for image in batch["image"]] == [[7] * 8, [0]]


def test_records_without_columns_become_a_list_of_tensors(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        for i in range(4):
            writer.write(bytes([i]) * i)

    loader = DataLoader(Dataset(tmp_path / "a.ffr"), batch_size=2)

    assert [[t.tolist() for t in batch] for batch in loader] == [[[], [1]], [[2, 2], [3, 3, 3]]]


def test_what_a_transform_makes_is_collated_like_torch_does() -> None:
    rows = [{"a": 1, "b": (np.ones(2), "x")}, {"a": 2, "b": (np.zeros(2), "y")}]

    ours, theirs = collate(rows), data.default_collate(rows)

    assert torch.equal(ours["a"], theirs["a"])
    assert torch.equal(ours["b"][0], theirs["b"][0])
    assert list(ours["b"][1]) == list(theirs["b"][1])
    ragged = collate([np.ones(2), np.ones(3)])
    assert [len(t) for t in ragged] == [2, 3]


@pytest.mark.parametrize("method", START_METHODS)
def test_torchs_own_loader_gives_the_order_under_any_start_method(path: Path, method: str) -> None:
    dataset = Dataset(path)
    assert dataset[3]["label"] == 3  # Opened in the parent, before any child.

    loader: data.DataLoader[Any] = data.DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 20),
        num_workers=2,
        collate_fn=collate,
        multiprocessing_context=method,
        timeout=180,
    )

    assert labels(loader) == expected()


def test_collate_that_gets_one_sample_says_who_has_lost_the_batch_sampler(path: Path) -> None:
    # What Ray's prepare_data_loader makes of torch's loader with a batch sampler.
    dataset = Dataset(path)
    theirs = data.DataLoader(
        dataset, batch_size=None, sampler=data.SequentialSampler(dataset), collate_fn=collate
    )

    with pytest.raises(TypeError, match=r"Use ffrecord.torch.DataLoader\(dataset, batch_sampler"):
        next(iter(theirs))


def test_torchs_own_collate_takes_batches_of_numbers(path: Path) -> None:
    dataset = Dataset(path, columns=["label", "x"])

    loader: data.DataLoader[Any] = data.DataLoader(dataset, batch_sampler=Sampler(dataset, 20))

    batches = list(loader)
    assert labels(batches) == expected()
    assert batches[0]["x"].shape == (20, 3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "workers", "num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"mode": "threads", "num_workers": 3},
        {"mode": "threads"},
    ],
    ids=["inline", "workers", "persistent", "threads", "threads-inline"],
)
def test_every_mode_gives_the_same_epochs(path: Path, options: dict[str, Any]) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=180, **options)

    assert labels(loader) == expected(epoch=0)
    assert labels(loader) == expected(epoch=1)
    assert len(loader) == 10


@pytest.mark.parametrize(
    "options", [{"mode": mode, "num_workers": 2} for mode in ("auto", "workers", "threads")]
)
def test_the_state_is_what_was_delivered_not_what_was_read_ahead(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)
    seen = []
    for batch in itertools.islice(loader, 3):
        seen.append(batch["label"].tolist())
        assert loader.state_dict()["position"] == 20 * len(seen)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) <= 256

    for world_size in (1, 2, 4):
        rest = [
            DataLoader(
                dataset,
                batch_sampler=Sampler(dataset, 20, rank=rank, world_size=world_size),
                mode="threads",
                num_workers=2,
            )
            for rank in range(world_size)
        ]
        for loader in rest:
            loader.load_state_dict(state)
        steps = [labels(loader) for loader in rest]
        stream = [list(itertools.chain(*step)) for step in zip(*steps, strict=True)]
        assert seen + stream == expected()
        assert rest[0].state_dict()["epoch"] == 1


def test_a_state_needs_our_sampler(path: Path) -> None:
    loader = DataLoader(Dataset(path), batch_size=4, sampler=[3, 1, 2])

    with pytest.raises(TypeError, match=r"ffrecord\.torch\.Sampler"):
        loader.state_dict()


def test_other_data_refuse_the_state(path: Path, tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "other.ffr") as writer:
        for _ in range(COUNT):
            writer.write(b"x")
    state = Sampler(Dataset(path), 20).state_dict()

    with pytest.raises(ValueError, match="fingerprint"):
        Sampler(Dataset(tmp_path / "other.ffr"), 20).load_state_dict(state)


def shift(sample: dict[str, Any]) -> tuple[int, torch.Tensor]:
    return sample["label"] + 1, torch.from_numpy(sample["x"])


def test_a_transform_gets_a_generator_when_it_is_told_so(path: Path) -> None:
    def any_number(*given: Any) -> int:  # noqa: ANN401
        return len(given)

    def two(sample: Any, scale: Any) -> Any:  # noqa: ANN401
        return scale

    assert Dataset(path, transform=any_number)[0] == 1  # Nobody can tell.
    assert Dataset(path, transform=any_number, pass_generator=True)[0] == 2
    assert isinstance(Dataset(path, transform=two)[0], np.random.Generator)
    seeded = Dataset(path, transform=lambda _, rng=None: rng.random(), pass_generator=True)
    assert seeded[3] == seeded[3]
    with pytest.raises(TypeError, match="scale"):
        Dataset(path, transform=two, pass_generator=False)[0]


def test_a_transform_runs_on_each_sample(path: Path) -> None:
    loader = DataLoader(Dataset(path, transform=shift), batch_size=50, num_workers=2)

    number, x = next(iter(loader))

    assert number.tolist() == list(range(1, 51))
    assert x.shape == (50, 3)
    assert Dataset(path, transform=shift)[-1][0] == COUNT


def test_subsets_and_concatenation_work(path: Path) -> None:
    dataset = Dataset(path, columns=["label"])

    both = dataset + data.Subset(dataset, [5, 3])

    assert len(both) == COUNT + 2
    assert both[COUNT] == {"label": 5}
    loader: data.DataLoader[Any] = data.DataLoader(data.Subset(dataset, [9, 8, 9]), batch_size=3)
    assert labels(loader) == [[9, 8, 9]]


def test_the_pickle_is_small_whatever_was_read(path: Path) -> None:
    dataset = Dataset(path, columns=["label"], on_corrupt="skip")
    dataset.__getitems__(list(range(COUNT)))

    copy = pickle.loads(pickled := pickle.dumps(dataset))

    assert len(pickled) <= 1024
    assert copy[4] == {"label": 4}


def test_damage_is_skipped_replaced_or_raised(path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(b"n17") + 1] ^= 1
    bad = tmp_path / "bad.ffr"
    bad.write_bytes(content)
    indices = [16, 17, 18]

    assert labels([collate(Dataset(bad, on_corrupt="skip").__getitems__(indices))]) == [[16, 18]]
    replaced = collate(Dataset(bad, on_corrupt="replace").__getitems__(indices))
    assert replaced["label"].tolist() == [16, 18, 18]
    for mode, workers in (("workers", 1), ("threads", 1), ("auto", 1), ("auto", 0)):
        loader = DataLoader(Dataset(bad), 50, mode=mode, num_workers=workers)  # type: ignore[arg-type]
        with pytest.raises(ffrecord.CorruptionError, match=r"bad\.ffr.*17"):
            list(loader)
    with pytest.raises(ffrecord.CorruptionError):
        Dataset(bad, on_corrupt="skip")[17]


@pytest.mark.parametrize(
    "options", [{}, {"mode": "workers", "num_workers": 1}, {"mode": "threads", "num_workers": 1}]
)
def test_a_step_of_damaged_records_only_is_not_empty(
    path: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    content = bytearray(path.read_bytes())
    for name in (b"n16", b"n17", b"n18"):
        content[content.index(name) + 1] ^= 1
    bad = tmp_path / "bad.ffr"
    bad.write_bytes(content)
    plain = Dataset(bad, on_corrupt="skip")
    shifted = Dataset(bad, on_corrupt="skip", transform=shift)

    batches = DataLoader(plain, batch_sampler=[[16, 17, 18], [18, 19]], **options)
    assert labels(batches) == [[19], [19]]
    batches = DataLoader(shifted, batch_sampler=[[17, 16], [3, 17]], **options)
    assert [numbers.tolist() for numbers, _ in batches] == [
        [4],
        [4],
    ]  # No step asks for the records behind them.
    assert [
        numbers.tolist()
        for numbers, _ in DataLoader(
            ConcatDataset([shifted, shifted]), batch_sampler=[[15, COUNT + 17, 17]], **options
        )
    ] == [[16]]
    elastic = Sampler(plain, 1)
    indices = [row for batch in elastic for row in batch]
    found = [
        row
        for batch in labels(DataLoader(plain, batch_sampler=Sampler(plain, 1), **options))
        for row in batch
    ]
    assert len(found) == COUNT
    for at in map(indices.index, (16, 17, 18)):  # Its place in the order has the next good one.
        assert found[at] == next(i for i in indices[at:] + indices if i not in (16, 17, 18))


def test_without_a_batch_size_each_sample_comes_as_it_is(path: Path) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_size=None)

    samples = list(loader)

    assert [int(sample["label"]) for sample in samples] == list(range(COUNT))
    assert all(isinstance(sample["label"], torch.Tensor) for sample in samples)
    assert [sample["name"] for sample in samples[:2]] == ["n0", "n1"]
    pairs = DataLoader(Dataset(path, transform=shift), batch_size=None, num_workers=1)
    assert [int(number) - 1 for number, _ in pairs] == list(range(COUNT))
    many = DataLoader(dataset, batch_size=None, sampler=Sampler(dataset, 20))
    assert labels(many) == expected()


def test_small_batches_before_a_damaged_record_are_delivered(tmp_path: Path) -> None:
    """Goal: several are read at once, and one is at fault. Method: the last record of many."""
    path = tmp_path / "many.ffr"
    with ffrecord.Writer(path, {"label": "i64", "name": "utf8"}) as writer:
        for i in range(2000):
            writer.write({"label": i, "name": f"n{i}"})
    content = bytearray(path.read_bytes())
    content[content.index(b"n1900") + 1] ^= 1
    path.write_bytes(content)
    dataset = Dataset(path)
    order = EpochOrder(3, 0, 2000).range(0, 2000).tolist()
    loader = DataLoader(
        dataset, batch_sampler=Sampler(dataset, 4, 3), mode="threads", num_workers=2
    )
    batches = []

    with pytest.raises(ffrecord.CorruptionError, match=r"many\.ffr.*1900"):
        for batch in loader:
            batches.append(batch)

    whole = order.index(1900) // 4
    assert [batch["label"].tolist() for batch in batches] == [
        order[4 * i : 4 * i + 4] for i in range(whole)
    ]
    assert batches[-1]["name"] == [f"n{i}" for i in batches[-1]["label"].tolist()]


def loader_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("ffrecord-loader")}


def all_end(threads: set[threading.Thread]) -> bool:
    """Whether they do, within what a busy machine may take."""
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


def test_a_slow_batch_is_a_deadline_and_the_threads_end(path: Path) -> None:
    before = loader_threads()
    released = threading.Event()
    dataset = Dataset(path, transform=lambda _: released.wait(60))
    loader = DataLoader(dataset, batch_size=1, mode="threads", num_workers=2, timeout=0.05)

    with pytest.raises(ffrecord.DeadlineExceeded, match=r"2 loader threads within 0\.05 s"):
        next(iter(loader))
    released.set()
    assert all_end(loader_threads() - before)


def test_breaking_off_ends_the_threads(path: Path) -> None:
    before = loader_threads()
    started: set[threading.Thread] = set()
    for _ in DataLoader(Dataset(path), batch_size=1, mode="threads", num_workers=3):
        started = loader_threads() - before
        assert len(started) == 3
        break

    assert all_end(started)


def test_wrong_options_are_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="auto, workers, threads"):
        DataLoader(Dataset(path), mode="fibres")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="persistent_workers"):
        DataLoader(Dataset(path), mode="threads", num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match="map-style"):
        DataLoader(Dataset(path), mode="threads", num_workers=1, batch_size=None)
    with pytest.raises(ValueError, match="raise, skip, replace"):
        Dataset(path, on_corrupt="keep")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no column 'y'"):
        Dataset(path, columns=["y"])[0]


def test_what_loading_does_without_is_imported_when_it_is_asked_for() -> None:
    code = """if True:
        import sys, ffrecord.torch, ffrecord.distributed
        print(*sys.modules)
        for package in (ffrecord.torch, ffrecord.distributed):
            for name in package.__all__:
                value = getattr(package, name)
                assert not isinstance(value, type(sys)), name
                assert value is getattr(package, name)
    """

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = done.stdout.split()
    for later in ("checkpoint", "distributed._group", "torch._training"):
        assert f"ffrecord.{later}" not in loaded
    with pytest.raises(AttributeError, match="no_such_name"):
        ffrecord.torch.no_such_name  # type: ignore[attr-defined]  # noqa: B018
