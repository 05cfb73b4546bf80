"""Goal: a folder of checkpoints may have any name that the file system allows.

Method: every call with a folder whose path is no UTF-8, named as str, as bytes and by a path-like
object; damage in it; the commands as processes; addresses, which are text.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import ffrecord
import ffrecord.checkpoint as ckpt
from ffrecord.errors import CorruptionError

NAME = b"caf\xe9"
STATE = {"w": np.arange(64, dtype="float32")}


class BytesPath:
    """An os.PathLike[bytes]."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def __fspath__(self) -> bytes:
        return self.path


FORMS: list[Callable[[bytes], Any]] = [
    os.fsdecode,
    bytes,
    lambda path: Path(os.fsdecode(path)),
    BytesPath,
]


@pytest.fixture(params=FORMS, ids=["str", "bytes", "Path", "PathLike[bytes]"])
def form(request: pytest.FixtureRequest) -> Callable[[bytes], Any]:
    made: Callable[[bytes], Any] = request.param
    return made


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / os.fsdecode(NAME))


def steps(target: Any) -> list[int]:  # noqa: ANN401
    return [commit.step for commit in ckpt.list(target)]


def flip_a_byte_of_a_segment(folder: bytes, step: int) -> None:
    path = os.path.join(folder, b"step-%09d" % step, b"part-00000", b"seg-0000")
    with open(path, "r+b") as file:
        first = file.read(1)[0]
        file.seek(0)
        file.write(bytes([first ^ 1]))


def test_every_call_takes_a_folder_of_any_name(
    folder: bytes, form: Callable[[bytes], Any], tmp_path: Path
) -> None:
    target, copies, replica = form(folder), form(folder + b"-copies"), form(folder + b"-replica")

    ckpt.save(target, 1, STATE)
    ckpt.save(target, 2, STATE, incremental=True)
    ckpt.async_save(target, 3, {"w": STATE["w"] + 1}).result()
    ckpt.close()

    assert os.path.isdir(folder)
    assert steps(target) == [1, 2, 3]
    newest = ckpt.latest(target)
    assert newest is not None
    assert newest.step == 3
    assert np.array_equal(ckpt.load(target)["w"], STATE["w"] + 1)
    assert ckpt.verify(target) == []
    assert not ckpt.diff((target, 1), (target, 2))
    assert ckpt.copy(target, copies, 1).step == 1
    ckpt.stage(target, copies).flush()
    assert steps(copies) == [1, 2, 3]
    out = os.path.join(folder, b"x.safetensors")
    ckpt.export_safetensors(target, form(out), step=1)
    ckpt.import_safetensors(form(out), target, 4)
    assert [commit.step for commit in ckpt.prune(target, keep_last=2)] == [1, 2]
    ckpt.remove(target, 4)
    assert steps(target) == [3]

    both = ckpt.replicated_target([copies, replica])
    ckpt.save(both, 9, STATE)
    assert np.array_equal(ckpt.load(both)["w"], STATE["w"])
    assert sorted(os.listdir(os.fsencode(tmp_path))) == [
        NAME,
        NAME + b"-copies",
        NAME + b"-replica",
    ]


def test_a_relative_name_is_of_any_bytes_too(
    folder: bytes, form: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    ckpt.save(form(NAME), 1, STATE)

    assert steps(folder) == steps(form(NAME)) == [1]


def test_damage_in_such_a_folder_is_told_as_anywhere(folder: bytes) -> None:
    for step in (1, 2):
        ckpt.save(folder, step, STATE)
    flip_a_byte_of_a_segment(folder, 2)

    assert "caf\udce9" in ckpt.verify(folder)[0]
    with pytest.raises(CorruptionError, match="caf\udce9"):
        ckpt.load(folder)
    with pytest.warns(UserWarning, match="caf\udce9"):
        ckpt.load(folder, on_corrupt="previous")

    (Path(os.fsdecode(folder)) / "step-000000002" / "part-00000.manifest").write_bytes(b"x")
    with pytest.warns(UserWarning, match="caf\udce9"):
        ckpt.load(folder)
    with pytest.raises(FileNotFoundError, match="caf\udce9"):
        ckpt.remove(folder, 7)


def test_the_commands_take_such_a_folder(folder: bytes, tmp_path: Path) -> None:
    target, copies = os.fsdecode(folder), os.fsdecode(folder + b"-copies")
    out = tmp_path / "x.safetensors"
    for step in (1, 2):
        ckpt.save(folder, step, STATE)

    assert cli.ok("ffrecord", "checkpoint", "list", target).count("\n") == 3
    cli.ok("ffrecord", "checkpoint", "verify", target)
    cli.ok("ffrecord", "checkpoint", "diff", target, "1", "2")
    cli.ok("ffrecord", "checkpoint", "export", target, out)
    cli.ok("ffrecord", "checkpoint", "import", out, target, "--step", "3")
    assert r"caf\udce9" in cli.ok("ffrecord", "checkpoint", "push", target, copies)
    assert r"caf\udce9" in cli.ok("ffrecord", "checkpoint", "pull", copies, f"{target}-back")
    cli.ok("ffrecord", "checkpoint", "prune", target, "--keep-last", "1", "--yes")
    assert steps(folder) == [3]

    flip_a_byte_of_a_segment(folder, 3)
    done = cli.run("ffrecord", "checkpoint", "verify", target)
    assert done.returncode == 3
    assert r"caf\udce9" in done.stdout


def test_record_files_are_kept_in_such_a_folder(folder: bytes, tmp_path: Path) -> None:
    files = tmp_path / os.fsdecode(b"files-\xe9")
    files.mkdir()
    with ffrecord.Writer(files / "a.ffr") as writer:
        writer.write(b"x")

    target = os.fsdecode(folder)
    cli.ok("ffrecord", "push", files / "a.ffr", target)
    cli.ok("ffrecord", "pull", target, tmp_path / "back")
    cli.ok("ffrecord", "evict", files, target)
    assert not (files / "a.ffr").exists()

    assert bytes(ffrecord.open(files)[0]) == b"x"
    assert (tmp_path / "back" / "a.ffr").read_bytes() == (files / "a.ffr").read_bytes()


@pytest.mark.parametrize("address", ["s3://caf\udce9/run", "ffrecord://caf\udce9/run"])
def test_an_address_is_text(address: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        ckpt.list(address)
    assert "is not UTF-8" in cli.run("ffrecord", "checkpoint", "list", address).stderr


@pytest.mark.parametrize("target", [5, None, ["a"]])
def test_what_is_no_path_is_refused_by_its_type(target: Any) -> None:  # noqa: ANN401
    calls: list[Callable[[], object]] = [
        lambda: ckpt.save(target, 1, STATE),
        lambda: ckpt.load(target),
        lambda: ckpt.list(target),
        lambda: ckpt.prune(target, keep_last=1),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object, not"):
            call()


@pytest.mark.parametrize(
    "address",
    [
        "gs://bucket/x",
        "S3://bucket/x",
        "file:///tmp/x",
        "az+dfs://x",
        "buddies:/tmp/x|gs://bucket/x",
    ],
)
def test_an_address_of_another_kind_is_no_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would believe that its checkpoints are in a store, and lose them with its machine."""
    monkeypatch.chdir(tmp_path)
    there = "there are no targets at"
    with pytest.raises(ValueError, match=there):
        ckpt.save(address, 1, STATE)
    with pytest.raises(ValueError, match=there):
        ckpt.load(address, {"w": np.zeros(64, "float32")})
    for call in (ckpt.list, ckpt.latest, ckpt.verify):
        with pytest.raises(ValueError, match=there):
            call(address)
    ckpt.save("here", 1, STATE)
    with pytest.raises(ValueError, match=there):
        ckpt.latest(ckpt.stage("here", address))
    assert os.listdir() == ["here"]


@pytest.mark.parametrize("name", ["a:/x", "1://x", "://x", "x/gs://y", "a b://x"])
def test_a_folder_whose_name_is_no_address_is_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ckpt.save(name, 1, STATE)
    assert steps(name) == [1]
