"""Goal: checkpoints at a store are whole or not there, whatever breaks on the way.

Method: moto's server in this process, behind a door that loses answers, answers something else, or
kills the process that asks, at each request in turn; ranks that lose each other.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import copying
import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord, weights
from ffrecord.checkpoint._values import encode
from object_store import Store
from saved_at_a_store import client_of_store, keys_of, run_of, state
from thread_ranks import ThreadRank, ThreadRanks, same


@pytest.fixture
def run(request: pytest.FixtureRequest, store: Store) -> str:
    return run_of(request, store)


def large_state() -> dict[str, Any]:
    """In three parts: of 16 MiB, 16 and more than one."""
    return {"w": np.arange((33 << 20) // 8, dtype="float64")}


# --- What may be visible is not removed ----------------------------------------------------------


class LosingRank(ThreadRank):
    """Its ranks lose each other in a save's last round, after the commit."""

    rounds = 0

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Four rounds: what Python agrees on, then intents, reports, and the outcome."""
        self.rounds += 1
        if self.rounds == 4:
            raise ConnectionError("a rank is gone")
        return super().all_gather(mine)


def answers_lost(number: int, method: str, path: str) -> str:
    """The root's first PUT is served, and nothing more is heard of the root."""
    if "?" in path or not path.endswith(".root"):
        return "serve"
    return "lose" if method == "PUT" else "hang up"


def test_a_step_whose_last_round_failed_stays(run: str) -> None:
    ckpt.save(run, 1, state(1))

    def save(rank: ThreadRank) -> object:
        return ckpt.save(run, 2, state(2), group=LosingRank(rank.ranks, rank.rank))

    assert [type(each) for each in ThreadRanks(2).run(save)] == [ConnectionError] * 2

    assert ckpt.verify(run, 2) == []
    ckpt.prune(run, keep_last=1)
    assert same(ckpt.load(run), state(2))


def test_a_step_whose_every_answer_was_lost_stays(run: str, store: Store) -> None:
    store.set_door(answers_lost)
    with pytest.raises((ConnectionError, TimeoutError)):
        ckpt.save(run, 2, state(2), timeout_s=1.0)
    store.serve_all()
    assert ckpt.verify(run, 2) == []
    assert same(ckpt.load(run), state(2))


def test_parts_that_were_committed_without_an_answer_stay(run: str, store: Store) -> None:
    """As `torch.distributed.checkpoint` saves: the coordinator's object goes after the failure."""
    parts = _ffrecord.CheckpointShards(run, 2, None, True, 1.0, False)
    written, _ = parts.write(0, [])
    tree = encode({"step": 2})
    store.set_door(answers_lost)
    with pytest.raises((ConnectionError, TimeoutError)):
        parts.commit([written], tree)
    store.serve_all()
    del parts
    assert ckpt.verify(run, 2) == []

    abandoned = _ffrecord.CheckpointShards(run, 3, None, True, 30.0, False)
    abandoned.write(0, [])
    del abandoned
    assert not any("step-000000003" in key for key in keys_of(run))


def test_a_saver_whose_files_were_removed_with_another_save_does_not_report_success(
    run: str,
) -> None:
    """Two savers of a step: one commits, is removed, and with it went files of the other."""
    late = _ffrecord.CheckpointShards(run, 5, None, True, 30.0, False)
    written, _ = late.write(0, [])
    ckpt.save(run, 5, state(5))
    ckpt.remove(run, 5)
    with pytest.raises(FileExistsError, match="removed meanwhile"):
        late.commit([written], encode({"step": 5}))
    assert ckpt.list(run) == []
    ckpt.save(run, 5, state(6))
    assert same(ckpt.load(run), state(6))


def test_removing_a_step_keeps_what_another_is_saving_under_its_name(
    run: str, store: Store
) -> None:
    ckpt.save(run, 5, state(5))
    late: list[Any] = []

    def save_another(number: int, request: str) -> None:
        if request.startswith("DELETE") and request.endswith(".root") and not late:
            late.append(_ffrecord.CheckpointShards(run, 5, None, True, 30.0, False))
            late.append(late[0].write(0, [])[0])
            late[0].commit([late[1]], encode({"step": 5}))

    store.set_door(lambda number, method, path: "serve", save_another)
    ckpt.remove(run, 5)
    store.serve_all()
    assert ckpt.verify(run, 5) == []
    assert ckpt.load(run, step=5) == {"step": 5}


def test_buddies_at_a_store_decide_there_and_leave_no_word(run: str, tmp_path: Path) -> None:
    places = ckpt.replicated_target([f"{run}/a", f"{run}/b", tmp_path / "c"])
    ckpt.save(places, 1, state(1))
    assert ckpt.verify(places) == []
    # As a save that was killed has left it: visible at one place, and not whole.
    for place in (f"{run}/b", tmp_path / "c"):
        ckpt.remove(place, 1)
    part = next(key for key in keys_of(f"{run}/a") if key.endswith("part-00000.manifest"))
    client_of_store().delete_object(Bucket="bucket", Key=part)
    ckpt.save(places, 1, state(2))
    assert same(ckpt.load(places), state(2))
    assert not [key for key in keys_of(run) if "decision" in key]
    assert [path.name for path in (tmp_path / "c").glob("decision*")] == []


def test_a_large_file_whose_last_answer_was_lost_is_there(run: str, store: Store) -> None:
    """The store has made the object of the parts, and forgotten the upload."""
    ends: list[str] = []

    def door(number: int, method: str, path: str) -> str:
        if method != "POST" or "uploadId=" not in path:
            return "serve"
        ends.append(path)
        return "lose" if len(ends) == 1 else "404"

    store.set_door(door)
    ckpt.save(run, 1, large_state())
    store.serve_all()
    assert len(ends) == 2
    assert same(ckpt.load(run), large_state())


@pytest.mark.wrong_data
@pytest.mark.parametrize("fault", ["lose", "hang up", "404"])
def test_an_incremental_save_survives_or_fails_at_any_request(
    run: str, store: Store, fault: str
) -> None:
    before, after = {"w": np.ones(1 << 16), "step": 1}, {"w": np.ones(1 << 16), "step": 2}
    at = count = 0  # The first save has no fault.
    while at <= count:
        where = f"{run}/{at}"
        ckpt.save(where, 1, before, incremental=True)
        after["w"][0] = at
        store.set_door(lambda number, method, path, at=at: fault if number == at else "serve")
        with contextlib.suppress(OSError):
            ckpt.save(where, 2, after, incremental=True, timeout_s=1.0)
        count = max(count, len(store.seen))
        store.serve_all()
        assert ckpt.verify(where) == []
        for commit in ckpt.list(where):
            assert same(ckpt.load(where, step=commit.step), before if commit.step == 1 else after)
        at += 1
    assert count > 8


# --- Answers that are no listing -----------------------------------------------------------------


_LISTING = "<ListBucketResult><IsTruncated>false</IsTruncated>"


def listing_is(store: Store, text: str, of: str = "") -> None:
    """Answers listings of prefixes that contain `of` with a text."""

    def door(number: int, method: str, path: str) -> str:
        return f"say {text}" if "list-type=2" in path and of in path else "serve"

    store.set_door(door)


@pytest.mark.wrong_data
@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>Sign in to the network</html>",
        f"{_LISTING}<Contents><Key>runs of/",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        f"{_LISTING}<Contents><Key>another</Key><Size>1</Size></Contents></ListBucketResult>",
    ],
)
def test_an_answer_that_is_no_listing_is_not_taken_for_one(
    run: str, store: Store, text: str
) -> None:
    for step in (1, 2):
        ckpt.save(run, step, state(step))
    client_of_store().put_object(Bucket="bucket", Key="another", Body=b"!")
    before = keys_of(run)
    listing_is(store, text)
    for call in (ckpt.list, ckpt.latest, ckpt.load):
        with pytest.raises(ConnectionError, match=r"listing|ListBucketResult"):
            call(run, timeout_s=0.5)
    for change in (
        lambda: ckpt.save(run, 3, state(3), timeout_s=0.5),
        lambda: ckpt.remove(run, 2, timeout_s=0.5),
    ):
        with contextlib.suppress(OSError):
            change()
    store.serve_all()
    assert {*before} >= {*keys_of(run)}
    client_of_store().head_object(Bucket="bucket", Key="another")
    assert same(ckpt.load(run, step=1), state(1))


def test_leases_that_the_store_did_not_list_keep_their_version(run: str, store: Store) -> None:
    publisher = weights.Publisher(run, timeout_s=0.5)
    publisher.publish(1, {"w": np.ones(3)})
    with weights.Subscriber(run).open():
        listing_is(store, "<html></html>", of=".readers")
        publisher.publish(2, {"w": np.zeros(3)})
        store.serve_all()
        assert [commit.step for commit in ckpt.list(run)] == [1, 2]


# --- Killed on the way ---------------------------------------------------------------------------


_processes = multiprocessing.get_context("forkserver")


class Victim:
    """A process that copies, and can be killed from a thread of the store as soon as it asks."""

    def __init__(self, source: Path, run: str, compress: bool) -> None:
        names = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
        arguments = (names | {"no_proxy": "*"}, str(source), run, compress)
        self.process: Any = _processes.Process(target=copying.copy, args=arguments)
        self.started = threading.Event()

    def kill(self) -> None:
        """At once, so that it does nothing more."""
        assert self.started.wait(60)
        os.kill(self.process.pid, signal.SIGKILL)

    def run(self) -> bool:
        """True if it was killed, False if it came to its end."""
        self.process.start()
        self.started.set()
        self.process.join()
        assert self.process.exitcode in (0, -signal.SIGKILL)
        return bool(self.process.exitcode)


def killed_copy(store: Store, source: Path, run: str, at: int, when: str, compress: bool) -> bool:
    """Copies in a process that is killed at a request; False if it ended before."""
    victim = Victim(source, run, compress)

    def door(number: int, method: str, path: str) -> str:
        if when == "before" and number == at:
            victim.kill()
        return "hang up" if when == "before" and number >= at else "serve"

    def after(number: int, request: str) -> None:
        if when == "after" and number == at:
            victim.kill()

    store.set_door(door, after)
    was_killed = victim.run()
    store.serve_all()
    return was_killed


@pytest.mark.parametrize(
    ("when", "compress"), [("before", False), ("after", False), ("after", True)]
)
def test_a_copy_killed_at_any_request_is_whole_or_not_there(
    run: str, store: Store, tmp_path: Path, when: str, compress: bool
) -> None:
    source = tmp_path / "a"
    commit = ckpt.save(source, 1, state())
    at = 0
    was_killed = True
    while was_killed:
        at += 1
        where = f"{run}/{at}"

        was_killed = killed_copy(store, source, where, at, when, compress)

        seen = ckpt.list(where)
        assert seen in ([], [commit])
        if seen:
            assert ckpt.verify(where) == []
        assert ckpt.copy(source, where, compress=compress) == commit
        assert same(ckpt.load(where), state())
    assert at > 5


def test_parts_that_were_sent_are_not_sent_again(run: str, store: Store, tmp_path: Path) -> None:
    source = tmp_path / "a"
    ckpt.save(source, 1, large_state())
    sent: list[str] = []

    def is_part(request: str) -> bool:
        return request.startswith("PUT") and "partNumber" in request

    victim = Victim(source, run, compress=False)

    def kill_at_second_part(number: int, request: str) -> None:
        if is_part(request):
            sent.append(request)
            if len(sent) == 2:
                victim.kill()

    store.set_door(lambda number, method, path: "serve", kill_at_second_part)
    assert victim.run()
    assert ckpt.list(run) == []

    done = set(sent)  # A third may have been on its way.
    store.serve_all()
    ckpt.copy(source, run)

    again = {request for request in store.seen if is_part(request)}
    assert not again & done
    assert same(ckpt.load(run), large_state())


def test_verify_asks_a_store_for_pieces_and_names_blocks(run: str, store: Store) -> None:
    """Each request costs: a megabyte is one, and sixteen more if some of it is damaged."""
    ckpt.save(run, 1, {"w": np.arange((5 << 20) // 8, dtype="float64")})
    client = client_of_store()
    segment = next(key for key in keys_of(run) if "/seg-0000" in key)

    def asked() -> int:
        return sum(request.startswith("GET") and "/seg-0000" in request for request in store.seen)

    store.serve_all()
    assert ckpt.verify(run) == []
    assert asked() < 10
    content = bytearray(client.get_object(Bucket="bucket", Key=segment)["Body"].read())
    for at in (100, 200, 3 << 20):
        content[at] ^= 1
    client.put_object(Bucket="bucket", Key=segment, Body=bytes(content))
    store.serve_all()
    found = ckpt.verify(run)
    assert len(found) == 2
    for at, line in zip((0, 3 << 20), found, strict=True):
        assert f"block at offset {at} fails" in line
    assert asked() < 60


@pytest.mark.wrong_data
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_file_that_was_sent_is_sent_again_only_if_the_store_has_another(
    run: str, store: Store, tmp_path: Path, is_damaged: bool
) -> None:
    """A copy that was killed, or a removal, leaves files without the step that they are of."""
    source = tmp_path / "a"
    ckpt.save(source, 1, large_state())
    ckpt.copy(source, run)
    client = client_of_store()
    root, segment = (
        next(key for key in keys_of(run) if name in key) for name in (".root", "/seg-0000")
    )
    client.delete_object(Bucket="bucket", Key=root)
    if is_damaged:
        content = bytearray(client.get_object(Bucket="bucket", Key=segment)["Body"].read())
        content[100] ^= 1
        client.put_object(Bucket="bucket", Key=segment, Body=bytes(content))
    store.serve_all()

    ckpt.copy(source, run)

    assert any("partNumber" in request for request in store.seen) == is_damaged
    assert ckpt.verify(run) == []
    assert same(ckpt.load(run), large_state())
