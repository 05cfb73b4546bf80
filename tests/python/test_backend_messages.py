"""Goal: a message ends for each way of waiting; a receive from any rank takes each message once.

Method: ranks wait, poll, take futures, drop works, and leave.
"""

import gc
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import ffrecord.distributed.backend
from ffrecord._ffrecord import CollectiveEngine
from ffrecord.distributed._any_source import AnySource
from ffrecord.distributed._lines import Line, Message
from ffrecord.errors import UnavailableError
from ranks import Ranks, run_ranks

SIZES = (0, 1, 1020, 1021, 300_000)  # Of floats; 4,080 bytes go in the head of a message.


def ours(timeout_s: float = 60.0) -> dist.ProcessGroup:
    group = dist.new_group(backend="ffrecord", timeout=timedelta(seconds=timeout_s))
    assert isinstance(group, ffrecord.distributed.backend.ProcessGroup)
    return group


def _full(size: int, value: float) -> torch.Tensor:
    return torch.full((size,), value)


# --- Ways to wait --------------------------------------------------------------------------------


def _waited(work: dist.Work) -> None:
    work.wait()


def _polled(work: dist.Work) -> None:
    while not work.is_completed():
        os.sched_yield()


def _by_future(work: dist.Work) -> None:
    ended = threading.Event()
    work.get_future().add_done_callback(lambda _: ended.set())
    ended.wait()


def _by_two(work: dist.Work) -> None:
    other = threading.Thread(target=work.wait)
    other.start()
    work.wait()
    other.join()


def _with_limit(work: dist.Work) -> None:
    work.wait(timedelta(seconds=60))


def _while_waiting(work: dist.Work) -> None:
    """A future that is made while a thread waits."""
    other = threading.Thread(target=work.wait)
    other.start()
    _by_future(work)
    other.join()


_WAYS = (_waited, _polled, _by_future, _by_two, _with_limit, _while_waiting)


def ways(rank: int, world: int) -> object:
    del world
    group, found = ours(), []
    for number, way in enumerate(_WAYS):
        for size in SIZES:
            tensor = _full(size, 1.0 + number) if rank == 0 else torch.zeros(2, size).T[:, 0]
            start = dist.isend if rank == 0 else dist.irecv
            work = start(tensor, 1 - rank, group=group)
            assert work is not None
            way(work)
            found.append(torch.equal(tensor, _full(size, 1.0 + number)))
            assert work.is_success() and work.wait()
            assert work.exception() is None
    return found


def test_a_message_ends_for_each_way_of_waiting() -> None:
    for found in run_ranks(ways, 2):
        assert found == [True] * (len(_WAYS) * len(SIZES))


def dropped(rank: int, world: int) -> object:
    del world
    group = ours()
    if rank == 0:
        for value in range(50):
            dist.isend(_full(5000, float(value)), 1, group=group)
            gc.collect()
        dist.isend(_full(3, 7.0), 1, group=group, tag=1)
        dist.barrier()
        return None
    places = [torch.empty(5000) for _ in range(50)]
    for value, place in enumerate(places):
        dist.recv(place, 0, group=group)
        assert place.tolist() == [value] * 5000
    last = torch.empty(3)
    dist.recv(last, 0, group=group, tag=1)
    dist.barrier()
    return last.tolist()


def test_messages_whose_works_were_dropped_arrive() -> None:
    assert run_ranks(dropped, 2)[1] == [7.0] * 3


def overlapping(rank: int, world: int) -> object:
    """Large messages in both directions go on while their ranks wait for others."""
    del world
    group, other = ours(20), 1 - rank
    place = torch.empty(5_000_000)
    received = dist.irecv(place, other, group=group)
    dist.send(_full(5_000_000, float(rank)), other, group=group)
    token = torch.ones(1)
    dist.all_reduce(token, group=group)
    assert received is not None
    received.wait()
    return float(place.mean())


def test_a_receive_goes_on_while_nobody_waits_for_it() -> None:
    assert run_ranks(overlapping, 2) == [1.0, 0.0]


def back_only_once(rank: int, world: int) -> object:
    """What a program writes into a tensor after the wait stays there."""
    del world
    group = ours()
    if rank == 0:
        dist.send(_full(8, 1.0), 1, group=group)
        return None
    tensor = torch.zeros(8, 2)[:, 0]  # With strides: it is copied back.
    work = dist.irecv(tensor, 0, group=group)
    assert work is not None
    work.wait()
    tensor.fill_(5.0)
    work.get_future().wait()
    assert work.is_completed()
    return tensor.tolist()


def test_a_received_tensor_is_written_once() -> None:
    assert run_ranks(back_only_once, 2)[1] == [5.0] * 8


def forked(rank: int, world: int) -> object:
    del world
    group, other = ours(), 1 - rank
    one = torch.ones(1)
    for work in (dist.isend(one, other, group=group), dist.irecv(one, other, group=group)):
        assert work is not None
        work.wait()
    child = os.fork()
    if child == 0:
        try:
            dist.send(torch.ones(1), other, group=group)
        except RuntimeError as error:
            os._exit(0 if "was forked from process" in str(error) else 1)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_told_that_the_group_is_not_its_own() -> None:
    assert run_ranks(forked, 2) == [0, 0]


# --- From any rank -------------------------------------------------------------------------------


def from_any(rank: int, world: int) -> object:
    group = ours()
    count = 6
    if rank > 0:
        for number in range(count):
            size = SIZES[number % len(SIZES)]
            dist.send(_full(size, 10.0 * rank + number), 0, group=group, tag=number)
        return None
    found: dict[int, list[int]] = {}
    for number in reversed(range(count)):  # In another order than they come.
        for _ in range(1, world):
            place = torch.empty(SIZES[number % len(SIZES)])
            source = dist.recv(place, None, group=group, tag=number)
            assert torch.equal(place, _full(place.numel(), 10.0 * source + number))
            found.setdefault(source, []).append(number)
    return [found[source] for source in sorted(found)]


def test_a_receive_from_any_rank_takes_each_message_once() -> None:
    assert run_ranks(from_any, 4)[0] == [[5, 4, 3, 2, 1, 0]] * 3


def of_all(rank: int, world: int) -> object:
    """Receives from any rank and from a given one, with the same tag."""
    group, count = ours(), 8
    if rank > 0:
        for number in range(count):
            dist.send(torch.tensor([rank, number]), 0, group=group)
        return None
    seen: dict[int, list[int]] = {source: [] for source in range(1, world)}
    for turn in range(count * (world - 1)):
        given = 1 + turn % (world - 1) if turn % 2 else None
        place = torch.empty(2, dtype=torch.int64)
        if given is not None and len(seen[given]) == count:
            given = None
        source = dist.recv(place, given, group=group)
        assert place[0] == source and given in (None, source)
        seen[source].append(int(place[1]))
    return [seen[source] for source in sorted(seen)]


def test_receives_from_any_and_from_one_rank_share_the_messages_in_their_order() -> None:
    assert run_ranks(of_all, 3)[0] == [list(range(8))] * 2


class _Ready:
    """Lines from two ranks that always have a message."""

    rank, size, timeout_s = 0, 3, 60.0

    def senders(self) -> list[int]:
        return [1, 2]

    def from_rank(self, rank: int) -> "_Ready":
        assert rank in (1, 2)
        return self

    def receive_kept(self, array: torch.Tensor, tag: int) -> "_Ready":
        assert tag == 4
        self.array = array
        return self

    def future(self) -> torch.futures.Future[torch.Tensor]:
        ended: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        ended.set_result(self.array)
        return ended


def test_ranks_take_turns() -> None:
    lines: Any = _Ready()
    any_source = AnySource(lines)
    found = []
    for _ in range(6):
        asked = any_source.receive(torch.empty(1), 4)
        asked.future.wait()
        found.append(asked.source)
    any_source.stop()
    assert found == [1, 2] * 3


def nobody(rank: int, world: int) -> object:
    del world
    group = ours(timeout_s=0.5)
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"no rank has sent a message with tag 3 within 0.5"):
            dist.recv(torch.empty(1), None, group=group, tag=3)
    return True


def test_a_receive_from_any_rank_ends_in_time() -> None:
    assert all(run_ranks(nobody, 2))


def left(rank: int, world: int) -> object:
    """The others have sent something else and left."""
    group = ours()
    if rank > 0:
        dist.send(torch.ones(1), 0, group=group, tag=1)
        group.shutdown()
        return None
    with pytest.raises(RuntimeError, match="no rank can send any more: line 1 to 0: ") as raised:
        dist.recv(torch.empty(1), None, group=group, tag=2)
    assert all(
        f"line {other} to 0: rank {other} " in str(raised.value) for other in range(1, world)
    )
    place = torch.zeros(1)
    found = sorted(dist.recv(place, None, group=group, tag=1) for _ in range(1, world))
    return found


def test_ranks_that_have_left_are_named_and_their_messages_are_there() -> None:
    assert run_ranks(left, 3)[0] == [1, 2]


def stopped(rank: int, world: int) -> object:
    del rank, world
    group = ours()
    work = dist.irecv(torch.empty(1), None, group=group)
    group.shutdown()
    assert work is not None
    with pytest.raises(RuntimeError, match="has left the group"):
        work.wait()
    with pytest.raises(RuntimeError, match="has left the group"):
        dist.recv(torch.empty(1), None, group=group)
    return True


def test_a_receive_from_any_rank_fails_when_this_rank_leaves() -> None:
    assert all(run_ranks(stopped, 2))


def vanishing(rank: int, world: int) -> object:
    """Rank 1 ends without a word, with a message under way."""
    del world
    group = ours(timeout_s=600)
    if rank == 1:
        dist.send(torch.ones(2), 0, group=group, tag=1)
        dist.isend(torch.ones(10_000_000), 0, group=group, tag=2)
        os._exit(0)
    place, found = torch.empty(2), []
    assert dist.recv(place, None, group=group, tag=1) == 1
    for source in (1, None):
        with pytest.raises(RuntimeError) as raised:
            dist.recv(torch.empty(10_000_000), source, group=group, tag=2)
        found.append(str(raised.value))
    return found


def test_a_rank_that_vanishes_ends_receives_from_it_and_from_any() -> None:
    ranks = Ranks(vanishing, 2)
    while not ranks.context.join():
        pass
    given, any_rank = ranks.found(0)
    assert "line 1 to 0: rank 1 " in given
    assert "no rank can send any more: line 1 to 0: rank 1 " in any_rank


def nested(rank: int, world: int) -> object:
    """A callback of a receive sends, and waits for that."""
    del world
    group, rounds = ours(), 5
    if rank == 0:
        for number in range(rounds):
            dist.send(_full(3, float(number)), 1, group=group)
            place = torch.empty(3)
            dist.recv(place, None, group=group, tag=1)
            assert place.tolist() == [number + 1.0] * 3
        return True
    answered = []
    for _ in range(rounds):
        place = torch.empty(3)

        def answer(_: object, place: torch.Tensor = place) -> None:
            dist.send(place + 1, 0, group=group, tag=1)
            answered.append(True)

        work = dist.irecv(place, 0, group=group)
        assert work is not None
        work.get_future().then(answer).wait()
    return answered == [True] * rounds


def test_a_callback_may_send_and_wait() -> None:
    assert all(run_ranks(nested, 2))


def pending(rank: int, world: int) -> object:
    """The program ends while receives wait."""
    del world
    group = ours()
    works = [dist.irecv(torch.empty(1), source, group=group) for source in (1 - rank, None)]
    dist.send(torch.ones(1), 1 - rank, group=group, tag=9)  # With another tag.
    dist.barrier()
    return len(works)


def test_a_program_may_end_while_receives_wait() -> None:
    assert run_ranks(pending, 2) == [2, 2]


# --- Ends of a message ---------------------------------------------------------------------------


def line_of(wait: Callable[[int], None]) -> mock.Mock:
    """The line of a message, whose engine answers with `wait`."""

    def wait_for(token: int, limit_s: float) -> bool:
        del limit_s
        wait(token)
        return True

    def serve_until(ends_within: Callable[[float], bool], first_s: float, limit_s: float) -> bool:
        del limit_s
        while not ends_within(first_s):
            pass
        return True

    line: mock.Mock = mock.create_autospec(Line, instance=True)
    line.name = "line 0 to 1"
    line.engine = mock.create_autospec(CollectiveEngine, instance=True)
    line.engine.wait_for = wait_for
    line.serve_until = serve_until
    line.told = lambda error: error
    return line


def test_a_message_ends_once_for_two_that_find_it_ended() -> None:
    # Both the thread that ends it and one that asks for the future just then complete that.
    failed = Message(line_of(lambda _: None), torch.empty(1), lambda _: 1)
    end = failed.start(None, RuntimeError("the other rank does not take part"))
    future = failed.future()
    end()
    with pytest.raises(RuntimeError, match="does not take part"):
        future.wait()


def test_a_message_whose_wait_was_interrupted_has_ended() -> None:
    def interrupted(token: int) -> None:
        del token
        raise KeyboardInterrupt  # Python raises it once the engine has answered.

    line = line_of(interrupted)
    message = Message(line, torch.empty(1), lambda _: 1)
    message.start(line.engine, None)()
    with pytest.raises(KeyboardInterrupt):
        message.wait()
    for wait in (message.wait, message.wait, message.future().value):
        with pytest.raises(RuntimeError, match="line 0 to 1: the wait was interrupted"):
            wait()


def test_all_that_wait_for_a_message_get_the_same_error() -> None:
    has_come, may_end = threading.Event(), threading.Event()

    def gone(token: int) -> None:
        del token
        has_come.set()
        may_end.wait()
        raise UnavailableError("rank 1 has left the group")

    line = line_of(gone)
    message = Message(line, torch.empty(1), lambda _: 1)
    message.start(line.engine, None)()
    found: list[Exception | None] = []
    first = threading.Thread(target=lambda: found.append(raised_by(message.wait)))
    first.start()
    has_come.wait()
    message.future()  # So that the second one waits for it, and not in the engine.
    may_end.set()
    found.append(raised_by(message.wait))
    first.join()
    assert [(type(error), str(error)) for error in found] == [
        (RuntimeError, "rank 1 has left the group")
    ] * 2


def raised_by(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
