"""Goal: what a daemon serves is read as files are, byte for byte, and its absence is an error.

Method: a real daemon on loopback serves files made here; it is stopped, killed and started again
while readers, loaders and commands use it.
"""

import json
import multiprocessing
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from daemon import Daemon
from ffrecord import checkpoint
from ffrecord.torch import DataLoader, Dataset, Sampler
from interrupting import interrupted_after

COUNT = 500


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "served") as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(7)
    for part in range(2):
        schema = {"label": "i64", "image": "bytes"}
        options: dict[str, Any] = {"compress": "zstd"} if part else {}
        with ffrecord.Writer(folder / f"{part}.ffr", schema, **options) as writer:
            for i in range(COUNT // 2):
                image = random.integers(0, 4, int(random.integers(0, 9000)), np.uint8)
                writer.write({"label": part * COUNT // 2 + i, "image": image})
    return [folder / "0.ffr", folder / "1.ffr"]


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"ffrecord://127.0.0.1:{probe.getsockname()[1]}/x"


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_an_interrupt_ends_the_wait_for_a_daemon(
    daemon: Daemon, files: list[Path], how: str
) -> None:
    ffrecord.publish(files, daemon.address("x"))
    reader = ffrecord.open(daemon.address("x"), timeout_s=600)
    assert len(reader) == COUNT
    daemon.freeze() if how == "frozen" else daemon.kill()
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
        reader.read(range(COUNT))
    daemon.thaw() if how == "frozen" else daemon.start()
    np.testing.assert_array_equal(reader.read([0, COUNT - 1])["label"], [0, COUNT - 1])


@pytest.mark.parametrize(
    "look_up",
    [
        lambda reader: reader.find("key 7"),
        lambda reader: reader.metadata(),
        lambda reader: reader._sizes(np.arange(COUNT)),
    ],
    ids=["key", "metadata", "sizes"],
)
def test_an_interrupt_ends_a_look_up_that_waits_for_a_daemon(
    daemon: Daemon, tmp_path: Path, look_up: Callable[[ffrecord.Reader], object]
) -> None:
    metadata = {"long": b"m" * 200_000}  # Too long to be read when the file is opened.
    with ffrecord.Writer(tmp_path / "a.ffr", key=True, metadata=metadata) as writer:
        for i in range(COUNT):
            writer.write(bytes(1000), key=f"key {i}")
    ffrecord.publish([tmp_path / "a.ffr"], daemon.address("x"))
    reader = ffrecord.open(daemon.address("x"), timeout_s=600)
    assert len(reader) == COUNT
    daemon.freeze()
    with pytest.raises(KeyboardInterrupt), interrupted_after(0.3):
        look_up(reader)
    daemon.thaw()
    assert reader.find("key 7") == 7


# Those that are complete soon it has; a daemon that is silent keeps it no longer.
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_program_that_ends_waits_for_its_futures_and_not_for_ever(
    daemon: Daemon, files: list[Path], is_frozen: bool
) -> None:
    ffrecord.publish(files, daemon.address("x"))
    program = f"""
import sys, ffrecord
reader = ffrecord.open({daemon.address("x")!r}, timeout_s=600)
reader.read(range(len(reader)))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    future = reader.submit(range(len(reader)))
    future.add_done_callback(
        lambda one: sys.stdout.write("cancelled " if one.cancelled() else "read ")
    )
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if is_frozen:
            daemon.freeze()
        try:
            told, complaint = process.communicate("\n", timeout=60)
        finally:
            process.kill()
            if is_frozen:
                daemon.thaw()
    assert complaint == ""
    assert told.split() == ["cancelled" if is_frozen else "read"] * 20


def test_served_and_local_are_the_same_bytes(daemon: Daemon, files: list[Path]) -> None:
    ffrecord.publish(files, daemon.address("set/train"))
    local, served = ffrecord.open(files), ffrecord.open(daemon.address("set/train"))
    order = np.random.default_rng(1)

    assert len(served) == len(local) == COUNT
    assert (served.fingerprint, served.schema) == (local.fingerprint, local.schema)
    for _ in range(20):
        indices = order.integers(-COUNT, COUNT, 64)
        mine, theirs = local.read(indices), served.read(indices)
        np.testing.assert_array_equal(theirs.data, mine.data)
        np.testing.assert_array_equal(theirs.offsets, mine.offsets)
    with pytest.raises(IndexError, match=f"{COUNT}"):
        served[COUNT]
    assert len(served.read([])) == 0


@pytest.mark.parametrize("transport", ["auto", "shm", "tcp"])
def test_every_transport_gives_the_same_bytes_and_doctor_tells_which(
    daemon: Daemon, files: list[Path], transport: str
) -> None:
    address = f"{daemon.address('x')}?transport={transport}"
    ffrecord.publish(files, address)
    served, local = ffrecord.open(address), ffrecord.open(files)
    indices = np.random.default_rng(3).integers(0, COUNT, 300)

    np.testing.assert_array_equal(served.read(indices).data, local.read(indices).data)
    findings = json.loads(ok("ffrecord", "doctor", address, "--json"))
    assert findings["transport"] == ("tcp" if transport == "tcp" else "shm")
    assert findings["transport_reason"]
    assert findings["round_trip_us"] >= 0
    assert "transports=tcp,shm" in "".join(daemon.log)


def test_shared_memory_that_is_demanded_and_not_offered_is_an_error_with_the_remedy(
    tmp_path: Path, files: list[Path]
) -> None:
    with Daemon(tmp_path / "served", "--transport", "tcp") as daemon:
        ffrecord.publish(files, daemon.address("x"))
        findings = json.loads(ok("ffrecord", "doctor", daemon.address(), "--json"))
        assert findings["transport"] == "tcp"
        assert "does not offer it" in findings["transport_reason"]
        with pytest.raises(ValueError, match="transport=shm was asked for"):
            len(ffrecord.open(daemon.address("x") + "?transport=shm"))
        refused = run("ffrecord", "doctor", daemon.address() + "?transport=shm")
        assert refused.returncode == 2
        assert "transport to auto" in refused.stderr
    with pytest.raises(ValueError, match="transport="):
        len(ffrecord.open("ffrecord://localhost/x?transport=pigeon"))


def test_files_named_in_an_address_stay_the_same_when_the_program_goes_elsewhere(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader opens at its first read, and a save in the background when its turn comes."""
    keys = tmp_path / "keys"
    keys.write_text("11" * 32 + "\n")
    keys.chmod(0o600)
    (tmp_path / "own").write_text(ok("ffrecord", "token", keys, "--rights", "read,write,delete"))
    monkeypatch.chdir(tmp_path)
    with Daemon(tmp_path / "served", "--token-keys", str(keys)) as daemon:
        address = daemon.address("x") + "?token_file=own&transport=tcp"
        ffrecord.publish(files, address)
        reader = ffrecord.open(address)
        run_of = daemon.address("runs/a") + "?token_file=own"
        save = checkpoint.async_save(run_of, 1, {"w": np.ones(100_000)})
        monkeypatch.chdir("/")

        np.testing.assert_array_equal(reader[7]["image"], ffrecord.open(files)[7]["image"])
        assert save.result().step == 1
    checkpoint.close()


def test_tokens_made_by_the_command_open_what_they_say_and_nothing_else(
    tmp_path: Path, files: list[Path]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("11" * 32 + "\n")
    keys.chmod(0o600)

    def token(name: str, *options: str) -> str:
        path = tmp_path / name
        path.write_text(ok("ffrecord", "token", keys, *options))
        return f"?token_file={path}"

    with Daemon(tmp_path / "served", "--token-keys", str(keys)) as daemon:
        own = token("own", "--prefix", "mine/", "--rights", "read,write,delete")
        reader = token("reader", "--prefix", "mine/", "--client", "a reader")
        stranger = token("stranger", "--prefix", "other/", "--rights", "read,write,delete")
        expired = token("expired", "--hours", "1e-9")
        address = daemon.address("mine/x")

        ffrecord.publish(files, address + own)
        for transport in ("&transport=shm", "&transport=tcp"):
            served = ffrecord.open(address + reader + transport)
            np.testing.assert_array_equal(served[7]["image"], ffrecord.open(files)[7]["image"])
        whys = {
            "": "requires a valid token",
            stranger: 'is for names that begin with "other/"',
            expired: "the token expired at 2",
        }
        for query, why in whys.items():
            with pytest.raises(PermissionError, match=f"access denied: .*{why}"):
                len(ffrecord.open(address + query))
        with pytest.raises(PermissionError, match='lacks the right "delete"'):
            ffrecord.remove_published(address + reader)
        ffrecord.remove_published(address + own)
    assert "auth=tokens" in "".join(daemon.log)
    assert "11" * 32 not in "".join(daemon.log)
    keys.chmod(0o644)
    assert run("ffrecord", "token", keys).returncode == 4


def test_publish_list_and_remove_from_python(daemon: Daemon, files: list[Path]) -> None:
    seen: list[tuple[int, int]] = []

    ffrecord.publish(
        files, daemon.address("a/b"), progress=lambda done, total: seen.append((done, total))
    )

    total = sum(file.stat().st_size for file in files)
    assert ffrecord.list_published(daemon.address()) == [ffrecord.Published("a/b", total, 2)]
    assert seen[-1][0] == seen[-1][1]
    with pytest.raises(ffrecord.ConflictError, match="a/b"):
        ffrecord.publish(files[:1], daemon.address("a/b"))
    ffrecord.publish(files[:1], daemon.address("a/b"), replace=True)
    assert len(ffrecord.open(daemon.address("a/b"))) == COUNT // 2
    ffrecord.remove_published(daemon.address("a/b"))
    assert ffrecord.list_published(daemon.address()) == []
    with pytest.raises(FileNotFoundError, match="a/b"):
        len(ffrecord.open(daemon.address("a/b")))
    with pytest.raises(FileNotFoundError, match="a/b"):
        ffrecord.remove_published(daemon.address("a/b"))


def test_an_exception_of_the_progress_callback_comes_through(
    daemon: Daemon, files: list[Path]
) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        ffrecord.publish(files, daemon.address("x"), progress=fail)


def test_a_damaged_file_is_not_published(daemon: Daemon, files: list[Path], tmp_path: Path) -> None:
    content = bytearray(files[0].read_bytes())
    content[len(content) // 2] ^= 1
    bad = tmp_path / "bad.ffr"
    bad.write_bytes(content)

    with pytest.raises(ffrecord.CorruptionError, match=r"bad\.ffr"):
        ffrecord.publish(bad, daemon.address("bad"))
    assert ffrecord.list_published(daemon.address()) == []


def test_a_daemon_that_is_not_there_is_named_with_the_remedy() -> None:
    address = unused_address()

    for call in (
        lambda: len(ffrecord.open(address, timeout_s=1)),
        lambda: ffrecord.list_published(address, timeout_s=1),
        lambda: ffrecord.remove_published(address, timeout_s=1),
    ):
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1.*ffrecordd"):
            call()


@pytest.mark.parametrize(
    "address", ["ffrecord://", "ffrecord://h:99999/x", "ffrecord://h/../x", "ffrecord://h/a b"]
)
def test_a_malformed_address_is_a_value_error(address: str) -> None:
    with pytest.raises(ValueError, match=r"ffrecord://|bad name"):
        len(ffrecord.open(address, timeout_s=1))


def test_a_daemon_that_dies_in_mid_epoch_is_a_connection_error(
    daemon: Daemon, files: list[Path]
) -> None:
    ffrecord.publish(files, daemon.address("x"))
    dataset = Dataset(ffrecord.open(daemon.address("x"), timeout_s=1), on_corrupt="skip")
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 10))
    batches = iter(loader)
    next(batches)

    daemon.kill()

    with pytest.raises((ConnectionError, TimeoutError), match=r"127\.0\.0\.1"):
        for _ in batches:
            pass


def test_an_epoch_goes_on_after_a_restart(daemon: Daemon, files: list[Path]) -> None:
    ffrecord.publish(files, daemon.address("x"))
    dataset = Dataset(daemon.address("x"))
    loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 10))
    seen = []
    for number, batch in enumerate(loader):
        seen += batch["label"].tolist()
        if number == 10:
            daemon.kill()
            daemon.start()

    local = Dataset(files)
    whole = DataLoader(local, batch_sampler=Sampler(local, 10))
    assert seen == [label for batch in whole for label in batch["label"].tolist()]


def labels_of(reader: ffrecord.Reader, indices: list[int]) -> list[int]:
    return [int(label) for label in reader.read(indices)["label"]]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_served_reader_used_before_works_in_children(
    daemon: Daemon, files: list[Path], method: str
) -> None:
    ffrecord.publish(files, daemon.address("x"))
    reader = ffrecord.open(daemon.address("x"))
    assert labels_of(reader, [3]) == [3]

    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.starmap(labels_of, [(reader, [9, COUNT - 1, 9])] * 4)

    assert results == [[9, COUNT - 1, 9]] * 4
    assert labels_of(reader, [4]) == [4]


def test_a_loader_gives_the_same_from_daemon_and_files(daemon: Daemon, files: list[Path]) -> None:
    ffrecord.publish(files, daemon.address("x"))

    def epoch(where: Any, **options: Any) -> list[int]:  # noqa: ANN401
        dataset = Dataset(where)
        loader = DataLoader(dataset, batch_sampler=Sampler(dataset, 20, 5), **options)
        return [label for batch in loader for label in batch["label"].tolist()]

    local = epoch(files)
    assert epoch(daemon.address("x")) == local
    assert epoch(daemon.address("x"), mode="workers", num_workers=2) == local
    assert epoch(daemon.address("x"), mode="threads", num_workers=2) == local


def test_a_served_reader_pickles_small(daemon: Daemon, files: list[Path]) -> None:
    ffrecord.publish(files, daemon.address("x"))
    reader = ffrecord.open(daemon.address("x"))
    reader[0]

    assert len(pickle.dumps(reader)) <= 1024


def test_the_commands_publish_list_inspect_verify_and_remove(
    daemon: Daemon, files: list[Path]
) -> None:
    address = daemon.address("demo/images")

    assert ok("ffrecord", "publish", *files, address) == f"published {address}\n"
    assert "demo/images" in ok("ffrecord", "list", daemon.address())
    assert f"records      {COUNT}" in ok("ffrecord", "inspect", address)
    assert ok("ffrecord", "verify", address).strip().endswith(": good")
    conflict = run("ffrecord", "publish", *files, address)
    assert conflict.returncode == 4
    assert "demo/images" in conflict.stderr
    asked = run("ffrecord", "remove", address)
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert "demo/images" in ok("ffrecord", "list", daemon.address())
    assert ok("ffrecord", "remove", address, "--yes") == f"removed {address}\n"
    assert ok("ffrecord", "list", daemon.address()) == ""


def test_the_commands_say_that_no_daemon_answers() -> None:
    address = unused_address()

    for arguments in (["list", address], ["remove", "--yes", address]):
        done = run("ffrecord", *arguments, "--timeout", "1")
        assert done.returncode == 4
        assert "127.0.0.1" in done.stderr
