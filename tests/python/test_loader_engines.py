"""Goal: what loads makes no difference to what is loaded, and the default is the right engine.

Method: a table of engines, formats, orders and mixtures. The loader without workers says what must
come: each batch, the state after it, the program's random numbers, errors. A state that one engine
has written goes on in each other one. Another table says which engine the default takes, and why.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.utils import data

import ffrecord
from ffrecord._read.records import Subset as RecordsSubset
from ffrecord.decode import Decoder, Field, Text
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset, collate
from loading import COUNT, ENGINES, every_engine, noise, written

BATCH = 25  # The last batch of an epoch is a short one.
TAKEN = 2  # Steps of a run that is saved then.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind in ("bytes", "numbers"):
        (folder := tmp_path_factory.mktemp("engines") / kind).mkdir()
        found[kind] = written(folder, kind)
    found["v1"] = folder.parent / "v1.ffr"
    with ffrecord.FileWriter(found["v1"], COUNT) as writer:
        for i in range(COUNT):
            writer.write_one(bytes([i]) * (1 + i))
    return found


Files = dict[str, Path]
KINDS: dict[str, Callable[[Files], Dataset]] = {
    "numbers": lambda files: Dataset(files["numbers"]),  # Native threads make them.
    "bytes": lambda files: Dataset(files["bytes"]),
    "v1": lambda files: Dataset(files["v1"]),
    "as bytes": lambda files: Dataset(files["bytes"]).with_format("bytes"),
    "a mix": lambda files: Dataset(
        ffrecord.mix(
            [ffrecord.open(files["numbers"]).subset(range(30)), ffrecord.open(files["numbers"])],
            [1, 2],
            seed=4,
        )
    ),
    "augmented": lambda files: Dataset(files["numbers"], transform=noise),
}
Order = Callable[[Dataset], dict[str, Any]]
ORDERS: dict[str, Order] = {
    "sampler": lambda dataset: {"batch_sampler": Sampler(dataset, BATCH, 7, last="short")},
    "in order": lambda dataset: {
        "batch_sampler": Sampler(dataset, BATCH, shuffle=False, last="short")
    },
    "blocks": lambda dataset: {
        "batch_sampler": Sampler(dataset, BATCH, 7, block=8, window=3, last="short")
    },
    "weights": lambda dataset: {
        "batch_sampler": Sampler(dataset, BATCH, 7, weights=np.arange(len(dataset)) + 1.0)
    },
    "shuffle": lambda _: {"batch_size": BATCH, "shuffle": True},
    "torch's weights": lambda dataset: {
        "batch_size": BATCH,
        "sampler": data.WeightedRandomSampler([1.0, 3.0] * (len(dataset) // 2), len(dataset)),
    },
}
OF_TORCH = ("shuffle", "torch's weights")
# Each kind in an order of ours and of torch's, and each order of one kind.
CELLS = [
    (kind, order)
    for kind, order in itertools.product(KINDS, ORDERS)
    if order in ("sampler", "shuffle") or kind == "numbers"
]
every_cell = pytest.mark.parametrize(("kind", "order"), CELLS)


def made(files: Files, kind: str, order: str, options: dict[str, Any]) -> DataLoader:
    """A loader of its own dataset, so that loaders share nothing."""
    dataset = KINDS[kind](files)
    return DataLoader(dataset, **ORDERS[order](dataset), **options)


def plain(batch: Any) -> Any:  # noqa: ANN401 - as collate makes it
    """A batch in terms that `==` compares, with the types."""
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), tuple(batch.shape), batch.tolist()
    if isinstance(batch, dict):
        return {name: plain(values) for name, values in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch), [plain(each) for each in batch]
    return batch


def epochs_of(options: dict[str, Any], order: str) -> int:
    """How many are the same: torch seeds workers that persist once, and draws its orders then."""
    return 1 if options.get("persistent_workers") and order in OF_TORCH else 2


def steps(loader: DataLoader, epochs: int, seed: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each batch, and the state after it, as JSON keeps it."""
    torch.manual_seed(seed)
    for _ in range(epochs):
        for batch in loader:
            yield plain(batch), json.loads(json.dumps(loader.state_dict()))


@pytest.mark.wrong_data
@every_cell
@every_engine
def test_batches_states_and_random_numbers_do_not_depend_on_what_loads(
    files: Files, kind: str, order: str, options: dict[str, Any]
) -> None:
    loader, wanted = made(files, kind, order, options), made(files, kind, order, {})
    epochs = epochs_of(options, order)
    expected = list(steps(wanted, epochs, seed=1))
    drawn = torch.random.get_rng_state()

    found = list(steps(loader, epochs, seed=1))

    assert [batch for batch, _ in found] == [batch for batch, _ in expected]
    assert len(loader) == len(wanted)
    assert loader.stats().keys() == wanted.stats().keys()
    assert loader.figures().keys() == wanted.figures().keys()
    assert [state for _, state in found[:-1]] == [state for _, state in expected[:-1]]
    if not options.get("persistent_workers"):
        assert found[-1] == expected[-1]
        if loader.stats()["engine"] == "threads" and order not in OF_TORCH:
            drawn = torch.Generator().manual_seed(1).get_state()  # Nothing was drawn.
        assert torch.equal(torch.random.get_rng_state(), drawn)
    loader.close()


@pytest.mark.wrong_data
@pytest.mark.parametrize("options", [ENGINES["threads"], ENGINES["auto"]])
def test_a_program_that_restores_its_random_numbers_goes_on_to_the_bit(
    files: Files, options: dict[str, Any]
) -> None:
    """As a model with dropout that is resumed within an epoch."""
    torch.manual_seed(5)
    whole = made(files, "bytes", "sampler", options)
    drawn, saved = [], []
    for _ in whole:
        drawn.append(torch.rand(1).item())
        saved.append((torch.get_rng_state(), whole.state_dict()))
    random, state = saved[TAKEN - 1]

    resumed = made(files, "bytes", "sampler", options)
    resumed.load_state_dict(state)
    torch.set_rng_state(random)

    assert [torch.rand(1).item() for _ in resumed] == drawn[TAKEN:]
    whole.close()
    resumed.close()


@pytest.mark.wrong_data
@every_cell
@pytest.mark.parametrize("options", [ENGINES[name] for name in ("workers", "threads", "auto")])
def test_a_state_goes_on_in_every_engine(
    files: Files, kind: str, order: str, options: dict[str, Any]
) -> None:
    first = made(files, kind, order, {})
    _, state = next(itertools.islice(steps(first, 1, seed=1), TAKEN - 1, None))
    alone, resumed = made(files, kind, order, {}), made(files, kind, order, options)
    alone.load_state_dict(state)
    expected = list(steps(alone, 2, seed=2))

    resumed.load_state_dict(state)
    found = list(steps(resumed, 2, seed=2))

    assert found == expected
    assert len(found) == 2 * len(first) - TAKEN
    resumed.close()


@pytest.mark.wrong_data
@pytest.mark.parametrize("engines", [*itertools.permutations(ENGINES, 2)], ids="-".join)
def test_a_run_changes_its_engine_in_the_middle_of_an_epoch(
    files: Files, engines: tuple[str, str]
) -> None:
    kind, order = "numbers", "sampler"
    whole = [batch for batch, _ in steps(made(files, kind, order, {}), 1, seed=1)]
    before, after = (made(files, kind, order, ENGINES[name]) for name in engines)

    running = steps(before, 1, seed=1)
    seen = list(itertools.islice(running, TAKEN))
    after.load_state_dict(seen[-1][1])
    rest = list(steps(after, 1, seed=2))
    running.close()

    assert [batch for batch, _ in seen + rest] == whole
    before.close()
    after.close()


def raising(sample: dict[str, Any]) -> int:
    """Refuses one record."""
    if sample["label"] == 60:
        raise KeyError("no 60")
    return int(sample["label"])


def stopping(sample: dict[str, Any]) -> int:
    """Asks an iterator that has ended for more, at one record."""
    return int(sample["label"]) if sample["label"] != 60 else int(next(iter(())))


def damaged(path: Path, copy: Path) -> Path:
    """A copy in which record 60 is damaged."""
    content = bytearray(path.read_bytes())
    content[content.index(bytes([60]) * 10_000)] ^= 1
    copy.write_bytes(content)
    return copy


FAULTS: dict[str, Callable[[Files, Path], tuple[Dataset, Any]]] = {
    "a damaged record": lambda files, folder: (
        Dataset(damaged(files["numbers"], folder / "bad.ffr")),
        data.BatchSampler(range(COUNT), BATCH, False),
    ),
    "damaged bytes": lambda files, folder: (
        Dataset(damaged(files["bytes"], folder / "bad.ffr")),
        data.BatchSampler(range(COUNT), BATCH, False),
    ),
    "an index beyond": lambda files, _: (
        Dataset(files["numbers"]),
        [[0, 1], [2, 3], [4, COUNT], [5]],
    ),
    "a transform": lambda files, _: (
        Dataset(files["numbers"], transform=raising),
        data.BatchSampler(range(COUNT), BATCH, False),
    ),
    "a transform that stops": lambda files, _: (
        Dataset(files["numbers"], transform=stopping),
        data.BatchSampler(range(COUNT), BATCH, False),
    ),
    "a column that is not there": lambda files, _: (
        Dataset(files["numbers"], columns=["colour"]),
        data.BatchSampler(range(COUNT), BATCH, False),
    ),
}


def until_it_fails(loader: DataLoader) -> tuple[int, type[BaseException], str]:
    """How many batches came, and the error."""
    count = 0
    try:
        for _ in loader:
            count += 1
    except Exception as error:  # A kept error would leave workers to the garbage collector.
        return count, type(error), str(error)
    raise AssertionError(f"no error after {count} batches")


@every_engine
@pytest.mark.parametrize("fault", FAULTS)
def test_errors_do_not_depend_on_what_loads(
    files: Files, tmp_path: Path, fault: str, options: dict[str, Any]
) -> None:
    dataset, batches = FAULTS[fault](files, tmp_path)
    count, kind, words = until_it_fails(DataLoader(dataset, batch_sampler=batches))

    loader = DataLoader(dataset, batch_sampler=batches, **options)
    found = until_it_fails(loader)

    assert found[:2] == (count, kind)
    assert words.strip("'\"") in found[2]  # Of a worker after its traceback.
    loader.close()


# Which engine the default takes.


class Own(Dataset[Any]):
    """A dataset of a program's own."""

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - as the base has it
        return super().__getitem__(key)


class OwnRecords(RecordsSubset):
    """Records that a program reads in its own way."""


class OwnDecoder(Decoder):
    """A decoder of a program's own."""

    def decode(self, field: Field) -> tuple[Any, dict[int, str]]:
        """See `Decoder`."""
        return field.sizes.tolist(), {}


class OwnSampler(data.Sampler[int]):
    """A sampler of a program's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT))


class Endless(data.IterableDataset[Any]):
    """A dataset without indices."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(4))


def ignore(_: int) -> None:
    """A `worker_init_fn`."""


class OwnBatches(Sampler):
    """A sampler of ours, changed by a program."""


Case = Callable[[Dataset], DataLoader]
# What the sentence names is the program's code, or what asks for processes.
CASES: dict[str, tuple[Case, str]] = {
    "a dataset": (lambda d: DataLoader(d, 20, num_workers=2), "threads"),
    "shuffled": (lambda d: DataLoader(d, 20, True, num_workers=2), "threads"),
    "a sampler": (
        lambda d: DataLoader(d, batch_sampler=Sampler(d, 20), num_workers=2),
        "threads",
    ),
    "a list of batches": (
        lambda d: DataLoader(d, batch_sampler=[[1, 2]], num_workers=1),
        "threads",
    ),
    "a subset": (lambda d: DataLoader(Subset(d, [3, 1]), num_workers=2), "threads"),
    "torch's subset": (lambda d: DataLoader(data.Subset(d, [3, 1]), num_workers=2), "threads"),
    "both": (lambda d: DataLoader(ConcatDataset([d, Subset(d, [1])]), num_workers=2), "threads"),
    "torch's join": (lambda d: DataLoader(data.ConcatDataset([d, d]), num_workers=2), "threads"),
    "our decoder": (
        lambda d: DataLoader(Dataset(d.fnames, decode={"image": Text()}), num_workers=2),
        "threads",
    ),
    "arguments that ask for nothing": (
        lambda d: DataLoader(
            d,
            num_workers=2,
            worker_init_fn=None,
            multiprocessing_context=None,
            in_order=True,
            collate_fn=collate,
        ),
        "threads",
    ),
    "no workers": (lambda d: DataLoader(d, 20), "num_workers is 0"),
    "transform": (
        lambda d: DataLoader(Dataset(d.fnames, transform=noise), num_workers=2),
        "transform",
    ),
    "transform below": (
        lambda d: DataLoader(
            ConcatDataset([d, data.Subset(Dataset(d.fnames, transform=noise), [1])]), num_workers=2
        ),
        "transform",
    ),
    "collate_fn": (lambda d: DataLoader(d, num_workers=2, collate_fn=len), "collate_fn"),
    "a decoder": (
        lambda d: DataLoader(Dataset(d.fnames, decode={"image": OwnDecoder()}), num_workers=2),
        "OwnDecoder",
    ),
    "a class": (lambda d: DataLoader(Own(d.fnames), num_workers=2), "Own"),
    "its records in a view": (
        lambda d: DataLoader(Dataset(ffrecord.concat([OwnRecords(d.source, [1])])), num_workers=2),
        "OwnRecords",
    ),
    "its records in views": (
        lambda d: DataLoader(
            Dataset(ffrecord.mix([OwnRecords(d.source, [1]).subset([0]), d.source], [1, 1])),
            num_workers=2,
        ),
        "OwnRecords",
    ),
    "a list": (lambda _: DataLoader([1, 2], num_workers=2), "list"),  # type: ignore[arg-type]
    "its sampler": (lambda d: DataLoader(d, 5, sampler=OwnSampler(), num_workers=2), "OwnSampler"),
    "its batches": (
        lambda d: DataLoader(d, batch_sampler=OwnBatches(d, 5), num_workers=2),
        "OwnBatches",
    ),
    "its generator": (
        lambda d: DataLoader(d, batch_sampler=iter([[1], [2]]), num_workers=2),
        "list_iterator",
    ),
    "iterable": (lambda _: DataLoader(Endless(), num_workers=2), "iterable"),
    "single samples": (lambda d: DataLoader(d, None, num_workers=2), "batch_size is None"),
    "worker_init_fn": (
        lambda d: DataLoader(d, num_workers=2, worker_init_fn=ignore),
        "worker_init_fn is for processes",
    ),
    "persistent_workers": (
        lambda d: DataLoader(d, num_workers=2, persistent_workers=True),
        "persistent_workers is",
    ),
    "in_order and a context": (
        lambda d: DataLoader(d, num_workers=2, in_order=False, multiprocessing_context="fork"),
        "in_order and multiprocessing_context are for processes",
    ),
    "mode is threads": (
        lambda d: DataLoader(d, num_workers=2, mode="threads"),
        "mode is 'threads'",
    ),
    "mode is workers": (
        lambda d: DataLoader(d, num_workers=2, mode="workers"),
        "mode is 'workers'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_default_takes_threads_only_where_no_code_of_the_program_makes_batches(
    files: Files, case: str
) -> None:
    make, word = CASES[case]
    loader = make(Dataset(files["bytes"]))
    stats = loader.stats()
    wanted = "threads" if word == "threads" or case == "mode is threads" else "processes"

    assert stats["engine"] == ("caller" if case == "no workers" else wanted)
    assert (word if word != "threads" else "no code of the program") in stats["engine_reason"]
    assert stats["engine_reason"].count(".") - word.count(".") == 1
    assert stats["engine_reason"].endswith(".")


def in_worker(sample: dict[str, Any]) -> int:
    """The number of the worker process that makes the sample; -1: none does."""
    worker = data.get_worker_info()
    return -1 if worker is None else worker.id


def test_a_transform_that_is_set_between_epochs_runs_in_processes(files: Files) -> None:
    dataset = Dataset(files["numbers"])
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, BATCH, last="short"), num_workers=2)
    first = [plain(batch["label"]) for batch in loader]
    assert loader.stats()["engine"] == "threads"

    dataset.transform = in_worker
    second = [number for batch in loader for number in batch.tolist()]

    assert set(second) <= {0, 1}
    assert (loader.stats()["engine"], loader.stats()["held_bytes"]) == ("processes", 0)
    dataset.transform = None
    third = [plain(batch["label"]) for batch in loader]
    assert loader.stats()["engine"] == "threads"
    loader.close()
    alone = Sampler(dataset, BATCH, last="short")
    epochs = [[plain(torch.tensor(list(indices))) for indices in alone] for _ in range(3)]
    assert [first, third] == [epochs[0], epochs[2]]


@pytest.mark.parametrize("mode", ["auto", "threads", "workers"])
def test_a_loader_shows_frameworks_the_workers_that_it_was_given(
    files: Files, mode: Literal["auto", "threads", "workers"]
) -> None:
    loader = DataLoader(Dataset(files["numbers"]), 20, num_workers=3, prefetch_factor=4, mode=mode)

    assert (loader.num_workers, loader.prefetch_factor) == (3, 4)
