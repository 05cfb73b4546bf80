"""Goal: servers get published weights whole, of one version, which stays while they read it.

Method: trainers and servers at each kind of target, in every order; kills of either at each call;
versions that go while they are read; ranks of one server, which get the same version.
"""

import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
import ffrecord.weights as weights
from daemon import Daemon
from dying import run_and_kill
from eventually import eventually
from ffrecord import _ffrecord
from ffrecord.errors import CorruptionError
from object_store import Store
from thread_ranks import AfterARound, ThreadRank, ThreadRanks
from virtual_clock import virtual_time

pytestmark = pytest.mark.wrong_data


@pytest.fixture(params=["folder", "daemon", "store"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "weights" / "policy")
    elif request.param == "daemon":
        with Daemon(tmp_path) as daemon:
            yield daemon.address("weights/policy")
    else:
        request.getfixturevalue("store")
        yield f"s3://bucket/{tmp_path.name}/policy"


def model(version: int) -> dict[str, Any]:
    chance = np.random.default_rng(version)
    tensors = {f"w{i}": chance.integers(0, 256, (64, 4096), np.uint8) for i in range(3)}
    return {"model": {**tensors, "version": np.full(5, version)}, "rest": np.zeros(1)}


def buffers() -> dict[str, Any]:
    tensors = {f"w{i}": np.zeros((64, 4096), np.uint8) for i in range(3)}
    return {**tensors, "version": np.zeros(5, np.int64)}


def is_whole(into: dict[str, Any], version: int) -> bool:
    return all(np.array_equal(each, model(version)["model"][name]) for name, each in into.items())


def versions_at(target: str) -> list[int]:
    return sorted(commit.step for commit in ckpt.list(target))


def leases_at(target: str) -> list[int]:
    return sorted(commit.step for commit in ckpt.list(f"{target}.readers"))


def test_a_server_gets_the_newest_version_and_old_ones_go(target: str) -> None:
    source = weights.Subscriber(target, prefix="model")
    assert source.newest() is None
    assert source.wait(timeout_s=0.0) is None
    with pytest.raises(FileNotFoundError, match="no version has been published"):
        source.pull(buffers())
    publisher = weights.Publisher(target)
    for version in (3, 4, 7):
        publisher.publish(version, model(version))
        into = buffers()
        assert source.wait(version - 1) == version
        assert source.pull(into) == version and is_whole(into, version)
        assert versions_at(target) == [version] and leases_at(target) == []
    for version in (7, 5):
        with pytest.raises(ValueError, match=f"version {version} is not greater than 7"):
            publisher.publish(version, model(version))
    assert versions_at(target) == [7]


def test_a_version_stays_as_long_as_it_is_read(target: str) -> None:
    publisher, source = weights.Publisher(target), weights.Subscriber(target, prefix="model")
    publisher.publish(1, model(1))
    with source.open() as first:
        publisher.publish(2, model(2))
        publisher.publish(3, model(3))
        with source.open() as third:
            publisher.publish(4, model(4))
            assert versions_at(target) == [1, 3, 4]
            for found, version in ((first, 1), (third, 3)):
                assert found.commit.step == version
                into = buffers()
                found.fill(into)
                assert is_whole(into, version)
        assert publisher.retire() == [3]
    publisher.publish(5, model(5))
    assert versions_at(target) == [5] and leases_at(target) == []


def test_a_version_that_goes_after_the_listing_is_no_missing_version(
    store: Store, tmp_path: Path
) -> None:
    target = f"s3://bucket/{tmp_path.name}/policy"
    publisher, source = weights.Publisher(target), weights.Subscriber(target, prefix="model")
    publisher.publish(1, model(1))
    left = [2]

    def after(number: int, request: str) -> None:
        if left and "list-type" in request:
            version = left.pop()
            publisher.publish(version, model(version))

    store.set_door(lambda number, method, path: "serve", after)
    try:
        assert source.newest() == 1 and versions_at(target) == [2]
        left.append(3)
        into = buffers()
        assert source.pull(into) == 3 and is_whole(into, 3)
    finally:
        store.serve_all()


def test_versions_that_come_and_go_never_leave_a_server_without_one(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    publisher, source = weights.Publisher(target), weights.Subscriber(target)
    publisher.publish(0, {"x": np.zeros(1)})

    def publish() -> None:
        for version in range(1, 200):
            publisher.publish(version, {"x": np.zeros(1)})

    thread = threading.Thread(target=publish)
    thread.start()
    seen = []
    while thread.is_alive():
        seen.append(source.newest())
    thread.join()
    assert None not in seen, "a moment without a version was seen"
    assert seen == sorted(seen, key=lambda version: version or 0), "an older version was seen"


@pytest.mark.parametrize("spelled", ["link", "real/../real", "real/.", "./real//", "link/"])
def test_a_lease_holds_however_the_target_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("real")
    os.symlink("real", "link")
    for publishing, reading in ((tmp_path / "real", spelled), (spelled, tmp_path / "real")):
        publisher, source = weights.Publisher(publishing), weights.Subscriber(reading)
        first = (source.newest() or 0) + 1
        publisher.publish(first, model(first))
        with source.open():
            publisher.publish(first + 1, model(first + 1))
            assert versions_at("real") == [first, first + 1]
    assert sorted(os.listdir()) == ["link", "real", "real.readers"]
    monkeypatch.chdir("real")
    with weights.Subscriber(".").open():
        weights.Publisher(tmp_path / "link").publish(100, model(100))
        assert versions_at(".") == [4, 100]


def test_a_renewed_lease_is_in_every_listing_however_long_that_takes(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    with virtual_time() as time:
        publisher, source = weights.Publisher(target), weights.Subscriber(target, renew_s=60)
        publisher.publish(1, model(1))
        with source.open():
            before = leases_at(target)
            for _ in range(4):  # A listing that takes until then finds one at its end or beginning.
                time.run_for(61)
                assert set(before) & set(leases_at(target)), "all leases were replaced"
                before = leases_at(target)
        assert leases_at(target) == []


def test_some_old_versions_stay_if_the_publisher_says_so(tmp_path: Path) -> None:
    publisher = weights.Publisher(tmp_path / "run", keep=3)
    for version in range(5):
        publisher.publish(version, model(version))
    assert versions_at(str(tmp_path / "run")) == [2, 3, 4]
    with pytest.raises(ValueError, match="keep is 0"):
        weights.Publisher(tmp_path / "run", keep=0)
    with pytest.raises(ValueError, match="one place"):
        weights.Publisher(ckpt.replicated_target([tmp_path / "a", tmp_path / "b"]))


def test_servers_that_pull_all_the_time_never_see_two_versions(tmp_path: Path) -> None:
    target = "/dev/shm/" + tmp_path.name if os.path.isdir("/dev/shm") else str(tmp_path / "x")
    publisher, last = weights.Publisher(target), 12
    publisher.publish(0, model(0))
    seen: list[list[int]] = [[], []]

    def serve_from(number: int) -> None:
        source, into = weights.Subscriber(target, prefix="model"), buffers()
        while not seen[number] or seen[number][-1] < last:
            version = source.pull(into, group="alone")
            assert is_whole(into, version), f"version {version} is mixed with another"
            seen[number].append(version)

    threads = [threading.Thread(target=serve_from, args=(i,)) for i in range(2)]
    try:
        for thread in threads:
            thread.start()
        for version in range(1, last + 1):
            publisher.publish(version, model(version))
        for thread in threads:
            thread.join()
        assert all(each == sorted(each) and each[-1] == last for each in seen)
        publisher.retire()
        assert versions_at(target) == [last]
    finally:
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(f"{target}.readers", ignore_errors=True)


def test_a_server_that_is_late_reads_the_version_that_is_the_newest_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "run")
    publisher, source = weights.Publisher(target), weights.Subscriber(target, prefix="model")
    publisher.publish(1, model(1))
    prepared, late = _ffrecord.PreparedSave, [True]

    def save(run: str, *rest: Any) -> object:  # noqa: ANN401
        if run.endswith(".readers") and late:
            late.clear()
            publisher.publish(2, model(2))  # Before the lease is there.
            assert versions_at(target) == [2]
        return prepared(run, *rest)

    monkeypatch.setattr(_ffrecord, "PreparedSave", save)
    into = buffers()
    assert source.pull(into) == 2 and is_whole(into, 2)
    assert leases_at(target) == []


def test_a_version_that_goes_while_it_is_read_is_pulled_again(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    publisher = weights.Publisher(target)
    publisher.publish(1, model(1))

    def replace() -> None:  # As if the lease had ended long ago.
        ckpt.save(target, 2, model(2), group="alone")
        ckpt.remove(target, 1)

    def work(rank: ThreadRank) -> object:
        into = buffers()
        source = weights.Subscriber(target, prefix="model")
        version = source.pull(into, group=AfterARound(rank, 1, replace))
        assert is_whole(into, version)
        return version

    assert ThreadRanks(2).must(work) == [2, 2]


def test_ranks_of_one_server_get_one_version_each_its_slices(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    weights.Publisher(target).publish(1, model(1))

    def publish() -> None:
        weights.Publisher(target).publish(2, model(2))

    def work(rank: ThreadRank) -> object:
        half = np.zeros((32, 4096), np.uint8)
        into = {"w1": ckpt.Shard(half, shape=(64, 4096), offset=(32 * rank.rank, 0))}
        source = weights.Subscriber(target, prefix="model")
        version = source.pull(into, group=AfterARound(rank, 1, publish))
        rows = model(version)["model"]["w1"][32 * rank.rank : 32 * rank.rank + 32]
        assert np.array_equal(half, rows)
        return version

    assert ThreadRanks(2).must(work) == [1, 1]
    assert versions_at(target) == [1, 2]  # The first was being read.


def test_damage_is_told_and_the_server_keeps_going(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    publisher, source = weights.Publisher(target), weights.Subscriber(target, prefix="model")
    publisher.publish(1, model(1))
    (segment,) = Path(target).glob("step-*/part-*/seg-*")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with pytest.raises(CorruptionError, match=r"seg-.* tensor model/\w+\."):
        source.pull(buffers())
    with pytest.raises(ckpt.MismatchError, match="missing in the checkpoint: other"):
        source.pull({"other": np.zeros(1)})
    assert leases_at(target) == []
    publisher.publish(2, model(2))
    into = buffers()
    assert source.pull(into) == 2 and is_whole(into, 2)


def test_a_lease_is_renewed_while_it_is_used_and_forgotten_after_its_server(
    tmp_path: Path,
) -> None:
    target = str(tmp_path / "run")
    with virtual_time() as time:
        publisher = weights.Publisher(target, lease_s=300)
        source = weights.Subscriber(target, renew_s=60)
        publisher.publish(1, model(1))
        with source.open():
            publisher.publish(2, model(2))
            for _ in range(5):
                time.run_for(200)
                publisher.retire()
                assert versions_at(target) == [1, 2]
        # A server that was killed leaves its lease.
        prepared = _ffrecord.PreparedSave(f"{target}.readers", 2 << 21, [], True, 30, False, None)
        prepared.commit(b"\0", None, None)
        publisher.publish(3, model(3))
        assert versions_at(target) == [2, 3]
        time.run_for(299)
        assert publisher.retire() == []
        time.run_for(2)
        assert publisher.retire() == [2]
        assert versions_at(target) == [3] and leases_at(target) == []


def test_old_versions_that_cannot_be_removed_are_no_failure_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = str(tmp_path / "run")
    publisher = weights.Publisher(target)
    publisher.publish(1, model(1))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("not now")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(_ffrecord, "remove_checkpoint", refuse)
        assert publisher.publish(2, model(2)).step == 2
    assert "stay for now: not now" in caplog.text
    assert versions_at(target) == [1, 2]
    publisher.publish(3, model(3))
    assert versions_at(target) == [3]


def publish(target: str, version: int) -> None:
    weights.Publisher(target).publish(version, model(version))


def hold(target: str, told: Any) -> None:  # noqa: ANN401 (a connection)
    with weights.Subscriber(target, prefix="model").open() as found:
        told.send(found.commit.step)
        told.recv()


# Of the library's own calls; those of the extension are killed in the tests of saves.
STEPS = ("PreparedSave", "list_checkpoints", "remove_checkpoint", "CheckpointReader")


def publish_and_die(target: str, version: int, number: int) -> None:
    left = number

    def counted(name: str) -> Any:  # noqa: ANN401
        real = getattr(_ffrecord, name)

        def instead(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            made = real(*args, **kwargs)
            return made

        return instead

    for name in STEPS:
        setattr(_ffrecord, name, counted(name))
    publish(target, version)


def test_a_publisher_killed_at_any_call_leaves_the_old_version_or_the_new_one(
    tmp_path: Path,
) -> None:
    target = str(tmp_path / "run")
    publish(target, 1)
    version, ended = 1, False
    for number in range(1, 40):
        ended = run_and_kill(publish_and_die, 0, target, version + 1, number)
        into = buffers()
        found = weights.Subscriber(target, prefix="model").pull(into)
        assert found in (version, version + 1) and is_whole(into, found)
        assert found == version + 1 or not ended
        version = found
        if ended:
            break
    assert ended and versions_at(target) == [version]


def test_a_server_killed_while_it_reads_holds_its_version_for_a_while(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    publish(target, 1)
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(target, there))
    process.start()
    assert here.recv() == 1
    process.kill()
    process.join()
    publisher = weights.Publisher(target, lease_s=0.05)
    publisher.publish(2, model(2))
    assert versions_at(target) == [1, 2]
    assert eventually(publisher.retire) == [1]
    assert versions_at(target) == [2] and leases_at(target) == []
