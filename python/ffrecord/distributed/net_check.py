"""A test of the network by the ranks of a run, before it: every pair, and every collective.

As `torchrun --nproc-per-node 8 --no-python ffrecord net check`, or from a program by `check`.
"""

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from ffrecord._base import clock
from ffrecord._ffrecord import CollectiveEngine
from ffrecord.distributed._group import exchange, gather_bytes, own_address

# The last is what the ranks choose by what they measure.
_ALGORITHMS = ("ring", "halving_doubling", "recursive_doubling", "double_tree", None)
_SMALL_ROUNDS = 20
_CHUNK_BYTES = 512 << 10
# The findings of a rank, as text: pairs and collectives of a few hundred bytes each.
_REPORT_SIZE = 1 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks that exchanged arrays while all other ranks did so in pairs too."""

    first: int
    second: int
    shares_memory: bool
    latency_us: float
    """The time of a sum of one element."""
    mbyte_s: float
    """Each way, while both send."""
    is_right: bool
    error: str = ""
    """Why they could not, if they could not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """One collective of all ranks."""

    name: str
    ms: float
    wrong_ranks: list[int]
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The findings of all ranks; the same on each."""

    world_size: int
    size_bytes: int
    pairs: list[Pair]
    collectives: list[Collective]
    slow: list[str]
    """Pairs and ranks that are far below the others."""
    wrong: list[str]
    """Pairs, ranks and collectives that failed or gave a wrong result."""


def check(
    process_group: dist.ProcessGroup | None = None,
    *,
    size_bytes: int = 8 << 20,
    repeats: int = 5,
    timeout_s: float = 30.0,
    slow_factor: float = 2.0,
    listen_host: str | None = None,
) -> Report:
    """Test every pair of ranks, and every collective among all; a collective call.

    Args:
        process_group: the ranks; the default group if None.
        size_bytes: of the arrays.
        repeats: of each exchange; the median counts.
        timeout_s: for each exchange. A pair that fails is reported, and the others continue.
        slow_factor: a pair is slow if its rate is below the median of its kind divided by this.
        listen_host: as for `Group`.

    Raises:
        ValueError: an argument is out of range. RuntimeError: the process group itself has failed.
    """
    if size_bytes < 8 or repeats < 1 or slow_factor <= 1:
        raise ValueError("size_bytes is at least 8, repeats at least 1, slow_factor above 1")
    rank, world = dist.get_rank(process_group), dist.get_world_size(process_group)
    host = listen_host or own_address(process_group)
    array = torch.empty(size_bytes // 8, dtype=torch.int64)
    pairs: list[Pair] = []
    for opponents in _rounds(world):
        other = opponents[rank]
        found = _try_pair(process_group, (rank, other), host, array, repeats, timeout_s)
        pairs += [Pair(**each) for each in _gather(process_group, found)]
    collectives = _try_collectives(process_group, host, array, repeats, timeout_s)
    pairs.sort(key=lambda pair: (pair.first, pair.second))
    return Report(
        world_size=world,
        size_bytes=array.numel() * 8,
        pairs=pairs,
        collectives=collectives,
        slow=slow_links(pairs, slow_factor),
        wrong=wrong_links(pairs)
        + [
            f"{each.name} among all ranks: "
            + (each.error or f"a wrong result on ranks {each.wrong_ranks}")
            for each in collectives
            if each.error or each.wrong_ranks
        ],
    )


# --- What the figures mean -----------------------------------------------------------------------


def slow_links(pairs: list[Pair], slow_factor: float) -> list[str]:
    """The pairs far below the median of their kind; if all of a rank are, that rank instead."""
    slow: list[str] = []
    for shares_memory, kind in ((False, "the network"), (True, "shared memory")):
        alike = [p for p in pairs if p.shares_memory == shares_memory and not p.error]
        if len(alike) < 3:
            continue  # Two have no median that says which of them is wrong.
        median = statistics.median(p.mbyte_s for p in alike)
        late = statistics.median(p.latency_us for p in alike)
        bad = [
            p
            for p in alike
            if p.mbyte_s < median / slow_factor or p.latency_us > late * slow_factor * 4
        ]
        ranks, rest = _blame(bad, alike)
        slow += [
            f"rank {rank} is slow to all others over {kind}: "
            f"{_range(p.mbyte_s for p in bad if rank in (p.first, p.second))} MB/s, the median of"
            f" all pairs is {median:.0f}"
            for rank in ranks
        ]
        slow += [
            f"ranks {p.first} and {p.second} are slow over {kind}: {p.mbyte_s:.0f} MB/s and"
            f" {p.latency_us:.0f} us, the medians are {median:.0f} and {late:.0f}"
            for p in rest
        ]
    return slow


def wrong_links(pairs: list[Pair]) -> list[str]:
    """The pairs that failed or had a wrong sum; if all of a rank did, that rank instead."""
    bad = [p for p in pairs if p.error or not p.is_right]
    ranks, rest = _blame(bad, pairs)
    wrong = []
    for rank in ranks:
        errors = [p.error for p in bad if rank in (p.first, p.second) and p.error]
        wrong.append(f"rank {rank} with all others: " + (errors[0] if errors else "wrong sums"))
    return wrong + [f"ranks {p.first} and {p.second}: " + (p.error or "a wrong sum") for p in rest]


def _blame(bad: list[Pair], alike: list[Pair]) -> tuple[list[int], list[Pair]]:
    """Ranks all of whose pairs, at least two, are bad; and the bad pairs without them."""
    members = {rank for p in alike for rank in (p.first, p.second)}
    ranks = []
    for rank in sorted(members):
        own = [p for p in alike if rank in (p.first, p.second)]
        if len(own) >= 2 and all(p in bad for p in own):
            ranks.append(rank)
    if len(ranks) == len(members):
        return [], bad  # All are: that tells nobody apart.
    return ranks, [p for p in bad if p.first not in ranks and p.second not in ranks]


def _range(values: Iterator[float]) -> str:
    least, *_, most = sorted([*values] * 2)
    return f"{least:.0f}" if least == most else f"{least:.0f} to {most:.0f}"


# --- Trying --------------------------------------------------------------------------------------


def _rounds(world: int) -> Iterator[list[int | None]]:
    """Every pair once: for each round, the opponent of each rank, or None if it pauses."""
    seats: list[int | None] = [*range(world), *([None] if world % 2 else [])]
    for _ in range(len(seats) - 1):
        opponents: list[int | None] = [None] * world
        for a, b in zip(seats, reversed(seats), strict=True):
            if a is not None:
                opponents[a] = b
        yield opponents
        seats = [seats[0], seats[-1], *seats[1:-1]]


def _fill(array: torch.Tensor, rank: int) -> None:
    """The data that this rank sends: other in each element, and other for each rank."""
    torch.arange(array.numel(), out=array)
    array.mul_(0x9E3779B1).add_(rank * 7919)


def _expected(array: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    sums = torch.arange(array.numel(), dtype=torch.int64).mul_(0x9E3779B1 * len(ranks))
    return sums.add_(sum(ranks) * 7919)


def _timed(engine: CollectiveEngine, start: Callable[[], int]) -> float:
    before = clock.now()
    engine.wait(start())
    return clock.now() - before


def _try_pair(
    group: dist.ProcessGroup | None,
    ranks: tuple[int, int | None],
    host: str,
    array: torch.Tensor,
    repeats: int,
    timeout_s: float,
) -> dict[str, Any] | None:
    """The report of the pair's first rank; None for the other, and for a rank that pauses."""
    own, other = ranks
    members = sorted([own, own if other is None else other])
    side = members.index(own)
    engine, error = _open(max(side, 0), 2, host, timeout_s, "ring")
    # All take part in the exchange, even ranks that could not open a listener.
    addresses, secret = exchange(group, engine.address if engine else "")
    if other is None or engine is None:
        if other is None or side == 1:
            return None
        return _failed(members, error)
    latencies, seconds, is_right = [0.0], [1.0], False
    shares = False
    try:
        if not addresses[other]:
            raise ConnectionError(f"rank {other} could not open its listener")
        engine.connect([addresses[member] for member in members], secret)
        one = array[:1]
        latencies = [
            _timed(engine, lambda: engine.all_reduce(one.data_ptr(), 1, "int64", "sum"))
            for _ in range(_SMALL_ROUNDS)
        ]
        seconds, is_right = [], True
        expected = _expected(array, members)
        for _ in range(repeats):
            _fill(array, own)
            engine.wait(engine.barrier())
            seconds.append(
                _timed(
                    engine,
                    lambda: engine.all_reduce(array.data_ptr(), array.numel(), "int64", "sum"),
                )
            )
            is_right = is_right and torch.equal(array, expected)
        # If one of them finds a fault, both report it.
        verdict = torch.tensor([not is_right], dtype=torch.int64)
        engine.wait(engine.all_reduce(verdict.data_ptr(), 1, "int64", "max"))
        is_right = not verdict.item()
        shares = engine.stats()["bytes_shared"] > 0
    except OSError as failure:
        error = str(failure)
    finally:
        engine.shutdown()
    if side == 1:
        return None
    if error:
        return _failed(members, error)
    pair = Pair(
        first=members[0],
        second=members[1],
        shares_memory=shares,
        latency_us=round(statistics.median(latencies) * 1e6, 1),
        mbyte_s=round(array.numel() * 8 / statistics.median(seconds) / 1e6, 1),
        is_right=is_right,
    )
    return dataclasses.asdict(pair)


def _failed(members: list[int], error: str) -> dict[str, Any]:
    return dataclasses.asdict(Pair(members[0], members[1], False, 0.0, 0.0, False, error[:500]))


def _open(
    rank: int, world: int, host: str, timeout_s: float, algorithm: str | None
) -> tuple[CollectiveEngine | None, str]:
    try:
        engine = CollectiveEngine(
            rank=rank,
            world_size=world,
            listen_host=host,
            timeout_s=timeout_s,
            chunk_size_bytes=_CHUNK_BYTES,
            algorithm=algorithm,
        )
    except OSError as failure:
        return None, str(failure)
    return engine, ""


def _try_collectives(
    group: dist.ProcessGroup | None,
    host: str,
    array: torch.Tensor,
    repeats: int,
    timeout_s: float,
) -> list[Collective]:
    """All-reduces in a group of its own for each algorithm, then the others along the ring."""
    found = []
    for algorithm in _ALGORITHMS:
        name = f"all-reduce by {algorithm.replace('_', ' ')}" if algorithm else "all-reduce"
        found.append(_try_all(group, host, array, (algorithm, name, repeats, timeout_s)))
    for name in ("reduce-scatter", "all-gather", "broadcast"):
        found.append(_try_all(group, host, array, ("ring", name, repeats, timeout_s)))
    return found


def _try_all(
    group: dist.ProcessGroup | None,
    host: str,
    array: torch.Tensor,
    what: tuple[str | None, str, int, float],
) -> Collective:
    algorithm, name, repeats, timeout_s = what
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    engine, error = _open(rank, world, host, timeout_s, algorithm)
    addresses, secret = exchange(group, engine.address if engine else "")
    is_right, seconds = True, [0.0]
    if engine is not None and all(addresses):
        try:
            engine.connect(addresses, secret)
            seconds = []
            for repeat in range(repeats):
                is_right = _run(engine, name, array, rank, world, repeat, seconds) and is_right
        except OSError as failure:
            error = str(failure)
    if engine is not None:
        engine.shutdown()
    mine = {"right": is_right, "s": statistics.median(seconds or [0.0]), "error": error[:500]}
    all_ranks = _gather(group, mine)
    return Collective(
        name=name,
        ms=round(max(each["s"] for each in all_ranks) * 1e3, 2),
        wrong_ranks=[i for i, each in enumerate(all_ranks) if not each["right"]],
        error=next((each["error"] for each in all_ranks if each["error"]), ""),
    )


def _run(
    engine: CollectiveEngine,
    name: str,
    array: torch.Tensor,
    rank: int,
    world: int,
    repeat: int,
    seconds: list[float],
) -> bool:
    """Run it once; return whether this rank has the expected result."""
    _fill(array, rank)
    count, at = array.numel(), array.data_ptr()
    begin = count // world * rank + min(rank, count % world)
    end = begin + count // world + (rank < count % world)
    root = repeat % world
    start: Callable[[], int] = {
        "reduce-scatter": lambda: engine.reduce_scatter(at, count, "int64", "sum"),
        "all-gather": lambda: engine.all_gather(at, count, "int64"),
        "broadcast": lambda: engine.broadcast(at, count, "int64", root),
    }.get(name, lambda: engine.all_reduce(at, count, "int64", "sum"))
    engine.wait(engine.barrier())
    seconds.append(_timed(engine, start))
    if name == "reduce-scatter":
        return torch.equal(array[begin:end], _expected(array, list(range(world)))[begin:end])
    if name == "broadcast":
        return torch.equal(array, _expected(array, [root]))
    if name == "all-gather":
        shares = [count // world + (r < count % world) for r in range(world)]
        expected = torch.repeat_interleave(torch.arange(world) * 7919, torch.tensor(shares))
        return torch.equal(array, expected + _expected(array, [0]))
    return torch.equal(array, _expected(array, list(range(world))))


def _gather(group: dist.ProcessGroup | None, mine: object) -> list[dict[str, Any]]:
    """The reports of all ranks, without None."""
    texts = gather_bytes(group, json.dumps(mine).encode(), _REPORT_SIZE)
    return [said for text in texts if (said := json.loads(text)) is not None]
