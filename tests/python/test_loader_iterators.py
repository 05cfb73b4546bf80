"""Goal: iterators of one loader take nothing from each other, and a state counts what came.

Method: iterators beside, inside and after each other; batches that overtake each other.
"""

import gc
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ffrecord
import ffrecord.errors
from eventually import eventually
from ffrecord.errors import ClosedError
from ffrecord.torch import DataLoader, Dataset, Sampler
from ffrecord.torch._engines import Beginning
from ffrecord.torch._sampler import Cursor
from ffrecord.torch._threads import Threads
from loading import COUNT, ENGINES, KINDS, every_engine, expected, labels, written


@pytest.fixture(scope="module", params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("loader"), request.param)


def first_labels(batches: Any, count: int) -> list[list[int]]:  # noqa: ANN401 - an iterator
    return labels(itertools.islice(batches, count))


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"label": 2 * sample["label"]}


@every_engine
def test_two_iterators_side_by_side_each_give_the_whole_epoch(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=60, **options)

    pairs = [(a["label"].tolist(), b["label"].tolist()) for a, b in zip(loader, loader)]  # noqa: B905

    assert pairs == [(batch, batch) for batch in expected()]
    assert loader.state_dict()["epoch"] == 1
    assert labels(loader) == expected(1)
    assert loader.stats()["batches"] == 3 * len(expected())
    loader.close()


@every_engine
@pytest.mark.parametrize("ordered", ["sampler", "shuffle"])
def test_an_iterator_has_the_length_of_its_loader(
    path: Path, ordered: str, options: dict[str, Any]
) -> None:
    """As torch's iterators, of which progress bars ask it."""
    dataset = Dataset(path)
    order: dict[str, Any] = {"batch_size": 20, "shuffle": True}
    if ordered == "sampler":
        order = {"batch_sampler": Sampler(dataset, 20)}
    loader = DataLoader(dataset, timeout=60, **order, **options)
    iterator: Any = iter(loader)

    assert len(iterator) == len(loader) == len(expected())
    next(iterator)
    assert len(iterator) == len(loader)
    iterator.close()
    loader.close()


@every_engine
def test_an_iterator_inside_another_and_one_that_was_abandoned_leave_it_alone(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=60, **options)
    outer = iter(loader)
    seen = first_labels(outer, 1)
    abandoned = iter(loader)
    first_labels(abandoned, 2)

    inner = [first_labels(loader, 3), labels(loader)]
    seen += labels(outer)

    assert inner == [expected()[:3], expected()]
    assert seen == expected()
    assert labels(abandoned) == expected()[2:]
    loader.close()


def test_plain_orders_have_independent_iterators_too(path: Path) -> None:
    loader = DataLoader(Dataset(path), batch_size=20, mode="threads", num_workers=2)

    pairs = list(zip(labels(loader), labels(loader), strict=True))

    together = [(a["label"].tolist(), b["label"].tolist()) for a, b in zip(loader, loader)]  # noqa: B905
    assert together == pairs
    assert len(pairs) == COUNT // 20


def test_what_was_read_over_the_end_of_an_epoch_is_counted_for_who_goes_on_there(
    path: Path,
) -> None:
    dataset = Dataset(path)
    sampler = Sampler(dataset, 20)
    threads = Threads(1 << 30)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)

    def epoch(number: int) -> list[list[int]]:
        return labels(
            batch
            for _, batch in threads.batches(loader, Beginning(sampler, Cursor(number, 0), None))
        )

    assert epoch(0) == expected()
    # On a busy machine none of it may have begun.
    eventually(lambda: threads.pending(loader, sampler, Cursor(1, 0)) > 0)
    # The depth may have become less since: there, shares of several become small ones.
    assert threads.pending(loader, sampler, Cursor(1, 0)) <= 256
    assert threads.pending(loader, sampler, Cursor(0, 0)) == 0  # Such a one reads anew.
    assert threads.pending(loader, Sampler(dataset, 20, seed=1), Cursor(1, 0)) == 0
    assert epoch(1) == expected(1)
    threads.close()
    assert (threads.depth, threads.pending(loader, sampler, Cursor(2, 0))) == (0, 0)


def test_an_iterator_of_a_loader_that_was_closed_says_so(path: Path) -> None:
    dataset = Dataset(path)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), mode="threads", num_workers=1)
    batches = iter(loader)
    next(batches)

    loader.close()

    with pytest.raises(ffrecord.errors.ClosedError, match="start a new iteration"):
        next(batches)
    assert labels(loader) == expected()


def test_what_native_threads_have_read_ahead_is_made_as_the_user_has_set_since(
    tmp_path: Path,
) -> None:
    dataset = Dataset(written(tmp_path, "numbers"))
    sampler = Sampler(dataset, 20)
    loader = DataLoader(dataset, batch_sampler=sampler, mode="threads", num_workers=2)
    batches = iter(loader)
    first = next(batches)["label"].tolist()

    dataset.transform = doubled
    second = next(batches)["label"].tolist()

    assert [first, second] == [expected()[0], [2 * label for label in expected()[1]]]
    assert isinstance(dataset.source, ffrecord.Reader)
    dataset.source.close()
    with pytest.raises(ValueError, match="closed"):
        list(zip(batches, itertools.count()))
    loader.close()


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    "options", [ENGINES[name] for name in ("threads", "workers", "persistent")]
)
def test_an_iterator_that_a_fork_takes_along_says_so_in_the_child(
    path: Path, options: dict[str, Any], is_plain: bool
) -> None:
    dataset = Dataset(path)
    order = {"sampler": next(iter(Sampler(COUNT, COUNT))), "batch_size": 20} if is_plain else {}
    order = order or {"batch_sampler": Sampler(dataset, 20)}
    loader = DataLoader(dataset, timeout=20, **order, **options)
    batches = iter(loader)
    seen = first_labels(batches, 1)

    if (pid := os.fork()) == 0:
        try:
            next(batches)
        except ffrecord.errors.ClosedError:
            del batches  # Leaves the workers to the parent.
            gc.collect()
            os._exit(0)
        os._exit(1)

    assert os.waitpid(pid, 0)[1] == 0
    assert seen + labels(batches) == expected()


overtaken = multiprocessing.get_context("fork").Event()
SLOW = expected()[1][0]  # Its batch, the second, comes after those behind it.


def late(sample: dict[str, Any]) -> int:
    if sample["label"] == SLOW:
        overtaken.wait(30)
    return int(sample["label"])


def out_of_order(path: Path) -> DataLoader:
    dataset = Dataset(path, transform=late)
    return DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 20),
        num_workers=2,
        in_order=False,
        multiprocessing_context="fork",
        timeout=60,
    )


def test_a_state_among_batches_out_of_order_loses_and_repeats_nothing(path: Path) -> None:
    overtaken.clear()
    loader = out_of_order(path)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(4)]
    assert expected()[1] not in seen  # It was overtaken.
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == 20

    overtaken.set()
    dataset = Dataset(path)
    for options in ENGINES.values():
        resumed = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), **options)  # type: ignore[arg-type]
        resumed.load_state_dict(state)
        rest = iter(resumed)
        again = first_labels(rest, 1)
        further = DataLoader(dataset, batch_sampler=Sampler(dataset, 20))
        further.load_state_dict(resumed.state_dict())
        assert sorted(seen + again + labels(rest)) == sorted(expected())
        assert sorted(seen + again + labels(further)) == sorted(expected())
        assert labels(resumed) == expected(1)
    assert sorted(seen + [batch.tolist() for batch in batches]) == sorted(expected())
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)


def test_a_state_among_batches_out_of_order_is_refused_where_it_would_be_wrong(path: Path) -> None:
    sampler = Sampler(COUNT, 20)
    sampler.deliver(Cursor(0, 20, frozenset({60, 80})))
    state = sampler.state_dict()

    with pytest.raises(ValueError, match="global_batch=20, not 40"):
        Sampler(COUNT, 40).load_state_dict(state)
    for wrong in ([20], [30], [COUNT]):
        damaged = {**state, "ahead": {"step": 20, "positions": wrong}}
        with pytest.raises(ValueError, match="damaged"):
            Sampler(COUNT, 20).load_state_dict(damaged)
    ranks = DataLoader(
        Dataset(path),
        batch_sampler=Sampler(COUNT, 20, rank=0, world_size=2),
        num_workers=1,
        in_order=False,
    )
    with pytest.raises(ValueError, match="on 2 ranks"):
        ranks.state_dict()


def out_of_range(sample: dict[str, Any]) -> int:
    """A transform that fails at one record."""
    if sample["label"] == expected()[2][3]:
        raise ValueError("this one")
    return int(sample["label"])


def stopping(sample: dict[str, Any]) -> int:
    """A transform with a mistake that looks like the end of something."""
    return next(iter([] if sample["label"] == expected()[-1][-1] else [0]))


def put_together(samples: list[Any]) -> int:
    """A collate function with the same mistake."""
    return next(iter([] if any(s["label"] == expected()[-1][-1] for s in samples) else [0]))


class Foreign(torch.utils.data.Dataset[int]):
    """A dataset that is not ours, likewise."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return stopping({"label": index})


@every_engine
def test_an_iteration_that_failed_does_not_end_as_if_the_epoch_were_over(
    path: Path, options: dict[str, Any]
) -> None:
    dataset = Dataset(path, transform=out_of_range)
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20), timeout=60, **options)
    batches = iter(loader)

    seen = list(itertools.islice(batches, 2))
    with pytest.raises(ValueError, match="this one"):
        next(batches)

    assert len(seen) == 2
    for _ in range(2):
        with pytest.raises(ClosedError, match=r"this one; .* not delivered"):
            next(batches)
    assert loader.state_dict()["position"] == 40
    loader.close()


@every_engine
@pytest.mark.parametrize("ours", [True, False], ids=["sampler", "torch"])
def test_a_stop_iteration_out_of_a_transform_is_an_error_not_the_end_of_the_epoch(
    path: Path, options: dict[str, Any], ours: bool
) -> None:
    wrong: list[tuple[Any, Any]] = [
        (Dataset(path, transform=stopping), None),
        (Dataset(path), put_together),
        (Foreign(), None),
    ]
    for dataset, collate_fn in wrong:
        order: dict[str, Any] = (
            {"batch_sampler": Sampler(COUNT, 20)} if ours else {"batch_size": 20}
        )
        loader = DataLoader(dataset, collate_fn=collate_fn, timeout=60, **order, **options)

        with pytest.raises(RuntimeError, match="StopIteration"):
            list(loader)
        loader.close()


@pytest.mark.parametrize("mistake", [stopping, out_of_range])
def test_workers_end_with_an_iteration_that_failed_and_wait_for_no_collection(
    path: Path, mistake: Callable[[Any], Any]
) -> None:
    loader = DataLoader(Dataset(path, transform=mistake), 20, num_workers=2)
    others = set(multiprocessing.active_children())

    gc.disable()
    try:
        with pytest.raises((RuntimeError, ValueError)):
            list(loader)

        assert set(multiprocessing.active_children()) <= others
    finally:
        gc.enable()


def test_a_stop_iteration_is_an_error_in_torchs_own_loader_too(path: Path) -> None:
    dataset = Dataset(path, transform=stopping)

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(torch.utils.data.DataLoader(dataset, batch_size=20))
