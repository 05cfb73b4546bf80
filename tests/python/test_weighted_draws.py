"""Goal: records are drawn by weight, the same ones on any ranks, in any loader, after a resume.

Method: the draws are compared with format.md's in plain Python, and counted against the weights;
samplers of all ranks are laid side by side, cut and resumed; loaders of each engine, and torch's
own under spawn, deliver what the sampler says.
"""

import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from ffrecord._order.epoch_order import EpochOrder
from ffrecord._order.mixture import Mixture
from ffrecord._order.weights import Weights
from ffrecord.torch import DataLoader, Dataset, Sampler, Subset
from loading import every_engine
from order import draw

pytestmark = pytest.mark.wrong_data

WEIGHTS = [0, 1, 2.5, 0, 4, 0.5, 0, 2]


@given(
    weights=st.lists(st.floats(0, 100), min_size=1, max_size=50).filter(lambda w: sum(w) > 1e-270),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**40),
)
def test_draws_are_the_specified_ones(weights: list[float], seed: int, epoch: int) -> None:
    made = Weights(weights, len(weights))

    found = made.draw(seed, epoch, np.arange(3, 40))

    assert found.tolist() == [draw(seed, epoch, weights, p) for p in range(3, 40)]
    assert all(weights[index] > 0 for index in found)


def test_a_share_at_the_edge_of_two_records_is_of_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = np.array([0, 0.25, 0.5, 1 - 2.0**-53])
    monkeypatch.setattr("ffrecord._order.weights._uniform", lambda *_: shares)

    assert Weights([0, 1, 0, 1, 2], 5).draw(0, 0, np.arange(4)).tolist() == [1, 3, 4, 4]


def test_the_golden_vector_of_the_page() -> None:
    order = EpochOrder(0, 0, 8, weights=Weights(WEIGHTS, 8))

    assert order.range(0, 10).tolist() == [2, 4, 7, 7, 2, 2, 4, 4, 2, 4]  # It begins again.


def test_each_record_comes_as_often_as_its_weight_says() -> None:
    count = 1000
    weights = np.random.default_rng(0).exponential(size=count)
    weights[::10] = 0
    made = Weights(weights, count)

    every = np.arange(count)
    found = np.concatenate([made.draw(7, epoch, every) for epoch in range(200)])

    seen = np.bincount(found, minlength=count)
    expected = weights / weights.sum() * found.size
    assert not seen[::10].any()
    drawn = expected > 0
    chi_square = float(((seen - expected)[drawn] ** 2 / expected[drawn]).sum())
    degrees = int(drawn.sum()) - 1
    assert abs(chi_square - degrees) < 5 * (2 * degrees) ** 0.5
    # Draws that follow each other, and those of two epochs, have nothing to do with each other.
    shares = np.searchsorted(np.cumsum(weights), weights.cumsum()[found]) / count
    assert abs(np.corrcoef(shares[:-1], shares[1:])[0, 1]) < 0.01
    assert (made.draw(7, 0, every) != made.draw(7, 1, every)).mean() > 0.9


@given(
    data=st.data(),
    count=st.integers(24, 200),
    seed=st.integers(0, 2**64 - 1),
    last=st.sampled_from(["drop", "pad", "short"]),
)
def test_every_world_size_sees_one_stream_and_resumes_it(
    data: st.DataObject, count: int, seed: int, last: str
) -> None:
    weights = np.arange(count) % 7
    worlds = st.sampled_from([1, 2, 3, 4, 8])

    def ranks(world: int, seed: int) -> list[Sampler]:
        return [
            Sampler(count, 24, seed, weights=weights, rank=r, world_size=world, last=last)  # type: ignore[arg-type]
            for r in range(world)
        ]

    def steps(samplers: list[Sampler], number: int | None = None) -> list[int]:
        shares = [list(islice(iter(sampler), number)) for sampler in samplers]
        together = zip(*shares, strict=True)
        return [i for step in together for share in step for i in share]

    whole = count // 24 * 24
    expected = steps(ranks(1, seed))[:whole]
    samplers = ranks(data.draw(worlds), seed)
    seen: list[int] = []
    while len(seen) < whole:
        seen += steps(samplers, data.draw(st.integers(1, (whole - len(seen)) // 24)))
        states = [json.loads(json.dumps(sampler.state_dict())) for sampler in samplers]
        assert all(state == states[0] for state in states)
        samplers = ranks(data.draw(worlds), 0)
        for sampler in samplers:
            sampler.load_state_dict(states[0])

    assert seen[:whole] == expected
    assert len(json.dumps(states[0])) <= 256
    assert all(weights[index] for index in expected)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, -0.5, 1], r"weight of record 1 is -0.5; .* \(1 of 3 are not\)"),
        ([1, float("nan"), float("nan")], r"weight of record 1 is nan; .* \(2 of 3 are not\)"),
        ([0, 0, 0], "all weights are 0"),
        ([1, float("inf"), 0], "add up to infinity"),
        ([1e308, 1e308, 1e308], "add up to infinity"),
        ([1, 2], r"shape \(2,\); there must be one for each of the 3"),
        ([[1], [2], [3]], r"shape \(3, 1\)"),
        (1.0, r"shape \(\)"),
        (np.ma.MaskedArray([1, 2, 3], [False, True, True]), "weight of record 1 is missing"),
        ([5e-324, 0, 5e-324], "add up to 1e-323, too little to draw by"),
    ],
)
def test_weights_that_are_none_are_refused(weights: Any, said: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=said):
        Sampler(3, 1, weights=weights)


def test_weights_may_be_what_a_model_made() -> None:
    scores = torch.tensor(WEIGHTS, dtype=torch.bfloat16, requires_grad=True)
    expected = list(Sampler(8, 2, weights=WEIGHTS))

    assert list(Sampler(8, 2, weights=scores)) == expected
    assert list(Sampler(8, 2, weights=np.ma.MaskedArray(WEIGHTS))) == expected
    # Whatever their unit: half of the draws are of each.
    tiny = Weights([2.0**-890, 0, 2.0**-890], 3).draw(0, 0, np.arange(10_000))
    assert abs(np.bincount(tiny)[0] - 5000) < 250


@pytest.mark.parametrize("weights", [["a", "b", "c"], [1j, 1, 1], [None, 1, 2]])
def test_weights_that_are_no_numbers_are_refused(weights: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="must be real numbers"):
        Sampler(3, 1, weights=weights)


def test_what_does_not_go_with_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="no block, no mixture, no shuffle=False"):
        Sampler(3, 1, weights=[1, 1, 1], shuffle=False)
    with pytest.raises(ValueError, match="no block, no mixture, no shuffle=False"):
        Sampler(8, 1, weights=[1] * 8, block=2, window=2)

    class Mixed:
        mixture = Mixture([1, 2], [1, 1])

        def __len__(self) -> int:
            return 3

    with pytest.raises(ValueError, match="no block, no mixture, no shuffle=False"):
        Sampler(Mixed(), 1, weights=[1, 1, 1])
    with pytest.raises(ValueError, match="nothing to sample"):
        Sampler(0, 1, weights=[])
    with pytest.raises(TypeError, match="make another Sampler"):
        Sampler(3, 1, weights=[1, 1, 1]).set_weights([1, 2])


def test_a_state_of_other_weights_or_of_none_is_refused() -> None:
    drawn = Sampler(8, 2, weights=WEIGHTS)
    state = drawn.state_dict()

    Sampler(8, 4, weights=torch.tensor(WEIGHTS, dtype=torch.float64)).load_state_dict(state)
    for others in ([1.0] * 8, [*WEIGHTS[:-1], 3]):
        with pytest.raises(ValueError, match="drawn by other weights"):
            Sampler(8, 2, weights=others).load_state_dict(state)
    with pytest.raises(ValueError, match="one of the state and the sampler draws by weights"):
        Sampler(8, 2).load_state_dict(state)
    with pytest.raises(ValueError, match="one of the state and the sampler draws by weights"):
        drawn.load_state_dict(Sampler(8, 2).state_dict())
    assert drawn.identity() != Sampler(8, 2, weights=[1.0] * 8).identity()
    assert "by weight" in repr(drawn)


def test_batches_on_their_way_do_not_carry_the_weights() -> None:
    sampler = Sampler(100_000, 10, weights=np.ones(100_000))
    batch = next(iter(sampler))

    data = pickle.dumps(batch)

    assert len(data) < 1000
    assert list(pickle.loads(data)) == list(batch)
    again: Sampler = pickle.loads(pickle.dumps(sampler))
    assert next(iter(again)) == batch
    assert again.state_dict() == Sampler(100_000, 10, weights=np.ones(100_000)).state_dict() | {
        "position": 10
    }


COUNT = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data.ffr"
    with ffrecord.Writer(path, {"label": "i64", "text": "bytes"}) as writer:
        for i in range(COUNT):
            writer.write({"label": i, "text": b"x" * i})
    return path


@every_engine
def test_loaders_deliver_what_was_drawn(path: Path, options: dict[str, Any]) -> None:
    weights = np.arange(COUNT) % 3
    dataset = Dataset(path)
    expected = [list(batch) for _ in range(2) for batch in _epoch(weights, _)]
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 12, weights=weights), **options)

    seen = [batch["label"].tolist() for _ in range(2) for batch in loader]
    state = loader.state_dict()

    assert seen == expected
    assert state["epoch"] == 2
    loader.close()


def _epoch(weights: Any, epoch: int) -> Sampler:  # noqa: ANN401
    sampler = Sampler(COUNT, 12, weights=weights)
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_damaged_record_is_replaced_by_the_next_draw_in_workers_too(
    path: Path, context: str
) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"x" * 30)
    data[at] ^= 1
    path.write_bytes(data)
    bad = next(i for i in range(COUNT) if _is_damaged(path, i))
    weights = np.zeros(COUNT)
    weights[[3, bad]] = 1, 9  # Nearly every draw is the damaged one: 3 must come instead.
    dataset = Dataset(path, on_corrupt="replace")
    loader = DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 12, weights=weights),
        mode="workers",
        num_workers=1,
        multiprocessing_context=context,
    )

    assert {label for batch in loader for label in batch["label"].tolist()} == {3}


def _is_damaged(path: Path, index: int) -> bool:
    try:
        ffrecord.open(path).read([index])
    except ffrecord.CorruptionError:
        return True
    return False


def test_torchs_own_loader_has_the_draws_without_the_weights(path: Path) -> None:
    dataset = Dataset(path)
    chosen = Subset(dataset, range(10, 30))
    weights = np.arange(20) % 2
    sampler = Sampler(chosen, 5, weights=weights)
    expected = [[10 + i for i in batch] for batch in Sampler(20, 5, weights=weights)]
    loader: Any = torch.utils.data.DataLoader(
        chosen,
        batch_sampler=sampler,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=ffrecord.torch.collate,
    )

    assert [batch["label"].tolist() for batch in loader] == expected


def test_weights_that_another_process_has_say_so() -> None:
    unknown = Weights.known("0123456789abcdef")

    with pytest.raises(ValueError, match=r"ffrecord\.torch\.DataLoader"):
        unknown.draw(0, 0, np.arange(1))
    assert "another process" in repr(pickle.loads(pickle.dumps(unknown)))
