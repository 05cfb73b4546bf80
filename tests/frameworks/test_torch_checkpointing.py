"""Goal: our storage of `torch_checkpointing` does what its own storage does, and notices damage.

Method: one table over both storages; saves and loads of its manager; a byte flipped in each file.
"""

import io
import itertools
import pathlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tutorial import framework

from ffrecord.errors import CorruptionError

package = framework("torch_checkpointing")
base = framework("torch_checkpointing.storage.base_storage")
theirs = framework("torch_checkpointing.storage.filesystem")
ours = framework("ffrecord.torch.torch_checkpointing")

STORAGES = [
    pytest.param(ours.CheckedStorageConfig(), id="ours"),
    pytest.param(theirs.LocalFileSystemStorageConfig(use_direct_io=False), id="theirs"),
]
DATA = bytes(range(256)) * 8192 + b"end"  # Two blocks and a rest.


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - of the package
    return pickle.loads(pickle.dumps(request.param)).create_storage()


def put(storage: Any, path: Path, kind: str) -> None:  # noqa: ANN401
    if kind == "file":
        storage.write(path, b"there")
    elif kind != "absent":
        storage.mkdir(path)
        if kind == "populated":
            storage.write(path / "in", b"there")


TABLE = {
    ("populated", "absent"): True,
    ("populated", "empty"): True,
    ("populated", "populated"): False,
    ("populated", "file"): False,
    ("file", "absent"): True,
    ("file", "file"): True,
    ("file", "empty"): False,
    ("file", "populated"): False,
}


@pytest.mark.parametrize(("source", "destination"), TABLE)
def test_a_rename_follows_the_table(
    storage: Any,  # noqa: ANN401
    source: str,
    destination: str,
    tmp_path: Path,
) -> None:
    put(storage, tmp_path / "from", source)
    put(storage, tmp_path / "to", destination)
    words = (tmp_path / "from", tmp_path / "to")

    if TABLE[source, destination]:
        storage.rename(*words, is_directory=source != "file")
        assert not storage.exists(tmp_path / "from")
    else:
        with pytest.raises(OSError, match=r"occupied|something is there"):
            storage.rename(*words, is_directory=source != "file")
    where = tmp_path / ("to" if TABLE[source, destination] else "from")
    assert storage.read(where / "in" if source == "populated" else where) == b"there"


@pytest.mark.parametrize("whole", [True, False])
def test_streams_give_the_bytes_at_every_position(
    storage: Any,  # noqa: ANN401
    whole: bool,
    tmp_path: Path,
) -> None:
    with storage.stream_write(tmp_path / "f") as stream:
        for begin in range(0, len(DATA), 100_003):
            stream.write(memoryview(DATA)[begin:][:100_003])

    words = base.ReadArgs(pre_read_full_file=whole)
    with storage.stream_read(tmp_path / "f", words) as reader:
        for begin, size in itertools.product((0, 5, 1 << 20, len(DATA) - 3), (0, 1, 1 << 20)):
            assert reader.seek(begin) == begin
            into = bytearray(size)
            assert bytes(into[: reader.readinto(into)]) == DATA[begin:][:size]
        assert reader.seek(-3, io.SEEK_END) == len(DATA) - 3
        assert reader.read() == b"end"
    assert storage.getsize(tmp_path / "f") == len(DATA)
    assert (tmp_path / "f").read_bytes() == DATA


def test_names_folders_and_removals_are_as_theirs(
    storage: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    storage.mkdir(tmp_path / "a" / "b")
    storage.mkdir(tmp_path / "a" / "b")
    with pytest.raises(FileExistsError):
        storage.mkdir(tmp_path / "a", recursive=False)
    with pytest.raises(FileNotFoundError):
        storage.mkdir(tmp_path / "x" / "y", recursive=False)
    storage.write(tmp_path / "a" / "f_1", b"1")
    storage.write(tmp_path / "a" / "g", b"2")

    assert sorted(storage.ls(tmp_path / "a")) == ["b", "f_1", "g"]
    assert storage.glob(str(tmp_path / "a" / "f_*")) == [str(tmp_path / "a" / "f_1")]
    assert storage.isdir(tmp_path / "a" / "b") and not storage.isdir(tmp_path / "a" / "g")
    storage.delete(tmp_path / "a" / "g")
    assert not storage.exists(tmp_path / "a" / "g")
    for absent in (storage.delete, storage.getsize, storage.read, storage.ls, storage.rmdir):
        with pytest.raises(FileNotFoundError):
            absent(tmp_path / "a" / "g")
    storage.rmdir(tmp_path / "a")
    assert storage.ls(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {
        "model": {f"w{i}": torch.randn(300, 1001, generator=generator) for i in range(3)},
        "step": {"step": 7},
    }


def manager(storage_config: object) -> Any:  # noqa: ANN401
    saving = package.CheckpointManager.Config.with_sync_save()
    saving.storage_config = storage_config
    return saving.build()


def test_its_manager_loads_what_it_saved(tmp_path: Path) -> None:
    saved = manager(ours.CheckedStorageConfig())

    saved.save(str(tmp_path / "step-7"), state())
    loaded = saved.load(str(tmp_path / "step-7"), into=state())
    saved.close()

    assert loaded["step"] == {"step": 7}
    for name, tensor in state()["model"].items():
        assert torch.equal(loaded["model"][name], tensor)
    found = ours.verify(tmp_path)
    assert found.checked >= 2
    assert found.unchecked == []
    assert found.damaged == {}
    plain = manager(theirs.LocalFileSystemStorageConfig())
    assert plain.load(str(tmp_path / "step-7"), into=state())["step"] == {"step": 7}
    plain.close()


@pytest.mark.wrong_data
def test_a_flipped_byte_in_any_file_is_an_error_and_never_a_state(tmp_path: Path) -> None:
    saved = manager(ours.CheckedStorageConfig())
    saved.save(str(tmp_path / "step-7"), state())
    files = [path for path in (tmp_path / "step-7").rglob("*") if path.is_file()]

    for path in files:
        whole = path.read_bytes()
        at = len(whole) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert len(ours.verify(tmp_path).damaged) == 1
        if "metadata" not in path.name:  # Not every load reads it.
            with pytest.raises(CorruptionError, match=r"fails its checksum|is damaged"):
                saved.load(str(tmp_path / "step-7"), into=state())
        path.write_bytes(whole)
    saved.close()


def test_a_step_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    saved = manager(ours.CheckedStorageConfig())
    saved.save(str(tmp_path / "step-7"), state())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(Exception, match="something is there"):
        saved.save(str(tmp_path / "step-7"), {"model": {}, "step": {"step": 8}})
    saved.close()

    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_size_that_is_not_the_known_one_and_remote_addresses_are_refused(tmp_path: Path) -> None:
    storage = ours.CheckedStorageConfig().create_storage()
    storage.write(tmp_path / "f", b"1")

    with pytest.raises(CorruptionError, match="1 bytes, but 2 were expected"):
        storage.stream_read(tmp_path / "f", base.ReadArgs(known_size_bytes=2))
    for address in ("s3://bucket/run", "ffrecord://host/run"):
        with pytest.raises(ValueError, match="give a path"):
            storage.write(pathlib.Path(address) / "f", b"1")
