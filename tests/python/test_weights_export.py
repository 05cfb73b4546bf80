"""Goal: an export is the folder of safetensors files that others read, whole or not there at all.

Method: the package safetensors reads what was written, for each element type that both have; ranks
that are threads; a kill at every call that changes names; damage, full names, and folders in use.
"""

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cli
import ffrecord.checkpoint as ckpt
import ffrecord.weights as weights
from dying import run_and_kill
from ffrecord.checkpoint import _safetensors_file
from ffrecord.checkpoint._safetensors_file import NAMES
from ffrecord.errors import CorruptionError
from ffrecord.weights import _export
from thread_ranks import ThreadRank, ThreadRanks

pytestmark = pytest.mark.wrong_data

safetensors = pytest.importorskip("safetensors.torch")


def model(seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    tied = torch.randn(256, 64, generator=made)
    layers = [
        {"w": torch.randn(64, 48, generator=made), "b": torch.randn(5, generator=made).bfloat16()}
        for _ in range(6)
    ]
    odd = {
        "flag": torch.tensor([True, False, True]),
        "n": torch.tensor(7),
        "none": torch.ones(0, 2),
    }
    return {"embed": tied, "head": tied, "layers": layers, "odd": odd, "about": "text"}


def flat(seed: int = 0) -> dict[str, torch.Tensor]:
    state = model(seed)
    found = {name: state[name] for name in ("embed", "head")}
    for i, layer in enumerate(state["layers"]):
        found |= {f"layers.{i}.{name}": tensor for name, tensor in layer.items()}
    return found | {f"odd.{name}": tensor for name, tensor in state["odd"].items()}


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    """As a program does that goes by the index; each tensor is where the index says."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return dict(safetensors.load_file(folder / "model.safetensors"))
    found = json.loads(index.read_text())
    files = {
        name: safetensors.load_file(folder / name) for name in set(found["weight_map"].values())
    }
    assert {path.name for path in folder.glob("*.safetensors")} == set(files)
    whole = {name: files[file][name] for name, file in found["weight_map"].items()}
    assert sum(map(len, files.values())) == len(whole)
    assert found["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    return whole


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )


@pytest.mark.parametrize("file_bytes_max", [1, 30_000, 1 << 30])
@pytest.mark.parametrize("ranks", [1, 3])
def test_others_read_what_was_saved(tmp_path: Path, file_bytes_max: int, ranks: int) -> None:
    ckpt.save(tmp_path / "run", 4, {"model": model(4), "optimizer": torch.zeros(3)})

    def work(rank: ThreadRank) -> weights.Export:
        return weights.export(
            tmp_path / "run",
            tmp_path / "out",
            prefix="model",
            file_bytes_max=file_bytes_max,
            group="alone" if ranks == 1 else rank,
        )

    made: Any = ThreadRanks(ranks).must(work)
    assert same(loaded(tmp_path / "out"), flat(4))
    assert len(set(made)) == 1 and made[0].step == 4
    assert made[0].size_bytes == sum(tensor.nbytes for tensor in flat().values())
    assert len(made[0].files) >= ranks
    assert sorted(made[0].files) == sorted(
        path.name for path in (tmp_path / "out").glob("*.safetensors")
    )
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}
    with safetensors.safe_open(tmp_path / "out" / made[0].files[0], "pt") as file:
        assert file.metadata() == {
            "format": "pt", "ffrecord.step": "4", "ffrecord.attempt": made[0].attempt,
            "ffrecord.prefix": "model",
        }  # fmt: skip


@pytest.mark.parametrize("dtype", sorted(NAMES))
def test_elements_of_every_type_are_read_by_others(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (64,), dtype=torch.uint8)
    ckpt.save(tmp_path / "run", 1, {"x": raw.view(kind), "odd": torch.ones(3, dtype=torch.bool)})
    weights.export(tmp_path / "run", tmp_path / "out")
    found = safetensors.load_file(tmp_path / "out" / "model.safetensors")["x"]
    assert found.dtype == kind
    assert torch.equal(found.view(torch.uint8), raw)


def test_large_tensors_are_written_in_windows(tmp_path: Path) -> None:
    state = {
        "large": torch.arange(20 << 20, dtype=torch.int32).reshape(-1, 80),
        "small": torch.arange(5),
        "wide": torch.randn(3, 5 << 20),
        "last": torch.tensor([1.5]),
    }
    ckpt.save(tmp_path / "run", 1, state)
    weights.export(tmp_path / "run", tmp_path / "out")
    assert same(loaded(tmp_path / "out"), state)
    weights.export(tmp_path / "run", tmp_path / "half", dtype="bfloat16")
    expected = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
    assert same(loaded(tmp_path / "half"), expected)
    ckpt.export_safetensors(tmp_path / "run", tmp_path / "one")
    assert same(dict(safetensors.load_file(tmp_path / "one")), state)


def export(run: str, folder: str) -> None:
    weights.export(run, folder, prefix="model", file_bytes_max=60_000, group="alone")


def test_killed_at_any_call_nothing_is_half_there_and_the_next_run_ends_it(tmp_path: Path) -> None:
    ckpt.save(tmp_path / "run", 1, {"model": model(1)})
    for number in range(1, 400):
        out = tmp_path / "out"
        ended = run_and_kill(export, number, str(tmp_path / "run"), str(out))
        if out.exists():
            assert same(loaded(out), flat(1)), f"half an export after call {number}"
        else:
            assert not ended
        if number % 3:  # Again from where it was; else from the beginning, to come to all calls.
            export(str(tmp_path / "run"), str(out))
            assert same(loaded(out), flat(1))
            assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}
        shutil.rmtree(out, ignore_errors=True)
        if number % 3 == 0:
            shutil.rmtree(tmp_path / ".out.ffrecord-export", ignore_errors=True)
        if ended:
            return
    raise AssertionError("it never came to its end")


def test_what_is_finished_is_not_written_again(tmp_path: Path) -> None:
    run, out, staging = tmp_path / "run", tmp_path / "out", tmp_path / ".out.ffrecord-export"
    state = {name: np.full(1 << 20, i, np.uint8) for i, name in enumerate("abcd")}
    ckpt.save(run, 1, state)
    (segment,) = run.glob("step-*/part-*/seg-*")
    good = segment.read_bytes()
    damaged = bytearray(good)
    damaged[good.index(bytes([2]) * 1000) + 500_000] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(CorruptionError, match=r"seg-.* tensor c\."):
        weights.export(run, out, file_bytes_max=1 << 20)
    assert not out.exists()
    (begun,) = staging.iterdir()
    finished = {path.name: path.stat().st_ino for path in begun.iterdir()}
    assert finished and all(name.endswith(".safetensors") for name in finished)
    segment.write_bytes(good)
    (begun / "model-00009-of-00009.safetensors").write_bytes(b"of another plan")
    (begun / "model-00004-of-00004.safetensors.tmp").write_bytes(b"half")
    (begun / "model-00003-of-00004.safetensors").mkdir()
    (staging / "x").write_bytes(b"of a user")
    made = weights.export(run, out, file_bytes_max=1 << 20)
    assert same(loaded(out), {name: torch.from_numpy(each) for name, each in state.items()})
    assert all((out / name).stat().st_ino == inode for name, inode in finished.items())
    assert len(made.files) == 4 and len(list(out.iterdir())) == 5


def test_a_late_rank_of_an_export_that_failed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    state = {"a": torch.arange(20_000), "b": torch.arange(20_000) + 7}
    ckpt.save(run, 1, state)
    monkeypatch.setattr(_safetensors_file, "_WINDOW_SIZE", 16 << 10)
    late: list[Any] = []
    write_file, write_all = _export._write_file, _safetensors_file.write_all
    ends = OSError("this rank ends here")

    def end(*args: object) -> None:
        late.append(args)
        raise ends

    monkeypatch.setattr(_export, "_write_file", end)
    with pytest.raises(OSError, match="ends here"):
        weights.export(run, out, group="alone")
    monkeypatch.setattr(_export, "_write_file", write_file)
    calls = 0

    def write(descriptor: int, blocks: Any) -> None:  # noqa: ANN401
        nonlocal calls
        write_all(descriptor, blocks)
        calls += 1
        if calls == 4:  # The late rank comes in the middle, and does not get far.
            monkeypatch.setattr(_safetensors_file, "write_all", end)
            with pytest.raises(FileNotFoundError):
                write_file(*late[0])
            monkeypatch.setattr(_safetensors_file, "write_all", write)

    monkeypatch.setattr(_safetensors_file, "write_all", write)
    weights.export(run, out, group="alone")
    assert same(loaded(out), state) and calls > 4
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


def test_a_folder_that_cannot_be_replaced_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    ckpt.save(run, 1, {"model": model(1)})
    out.write_bytes(b"")
    with pytest.raises(FileExistsError, match="a file of that name"):
        weights.export(run, out, prefix="model")
    out.unlink()
    out.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: path == str(out))
        with pytest.raises(OSError, match="mount point") as caught:
            weights.export(run, out, prefix="model")
        assert caught.value.errno == errno.EBUSY
    (tmp_path / "link").symlink_to("out")  # The folder itself is replaced.
    assert weights.export(run, tmp_path / "link", prefix="model").folder == str(out)
    assert same(loaded(out), flat(1)) and (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out", "link"}


def test_an_export_that_is_there_is_found_and_anything_else_refused(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    ckpt.save(run, 1, {"model": model(1), "average": model(3)})
    out.mkdir()  # Empty: as good as none.
    first = weights.export(run, out, prefix="model")
    inode = (out / "model.safetensors").stat().st_ino
    assert weights.export(run, out, prefix="model") == first
    assert (out / "model.safetensors").stat().st_ino == inode
    (out / "config.json").write_text("{}")  # Of the user.
    assert weights.export(run, out, prefix="model") == first
    ckpt.save(run, 2, {"model": model(2)})
    for others in (
        {"step": 2},
        {"file_bytes_max": 1000},
        {"dtype": "bfloat16"},
        {"prefix": "average"},
    ):
        options: dict[str, Any] = {"step": 1, "prefix": "model", **others}
        with pytest.raises(FileExistsError, match="absent or empty"):
            weights.export(run, out, **options)
    assert same(loaded(out), flat(1))
    assert weights.export(run, out, step=1, prefix="model") == first


def test_two_exports_to_one_folder_do_not_meet(tmp_path: Path) -> None:
    ckpt.save(tmp_path / "run", 1, {"model": model(1)})
    (tmp_path / ".out.ffrecord-export").mkdir()
    descriptor = os.open(tmp_path / ".out.ffrecord-export", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match="another export") as caught:
        weights.export(tmp_path / "run", tmp_path / "out")
    assert caught.value.errno == errno.EWOULDBLOCK
    os.close(descriptor)
    weights.export(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize("what", ["damage", "prefix", "folder", "dry_run"])
def test_ranks_that_fail_leave_nothing_and_all_are_told(tmp_path: Path, what: str) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    ckpt.save(run, 1, {"model": model(1), "other": model(1)})
    if what == "damage":
        (segment,) = run.glob("step-*/part-*/seg-*")
        content = bytearray(segment.read_bytes())
        content[100] ^= 1
        segment.write_bytes(content)

    def work(rank: ThreadRank) -> object:
        odd = rank.rank == 1
        prefix = "other" if what == "prefix" and odd else "model"
        folder = tmp_path / "elsewhere" if what == "folder" and odd else out
        dry_run = what == "dry_run" and odd
        return weights.export(run, folder, prefix=prefix, group=rank, dry_run=dry_run)

    results = ThreadRanks(3).run(work)
    assert all(isinstance(each, Exception) for each in results), results
    if what == "damage":
        assert any(isinstance(each, CorruptionError) for each in results)
        assert all("rank" in str(e) for e in results if isinstance(e, ckpt.PeerError))
    assert not out.exists() and not (tmp_path / "elsewhere").exists()


def test_wrong_arguments_write_nothing(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    ckpt.save(run, 1, {"model": model(1), "c": torch.zeros(2, dtype=torch.complex128)})
    for options, message in (
        ({}, "c: safetensors has no complex128"),
        ({"prefix": "modl"}, "nothing below modl"),
        ({"prefix": "model", "dtype": "bf16"}, "'bf16'"),
        ({"prefix": "model", "dtype": "int32"}, "dtype is 'int32': floating-point"),
        ({"prefix": "model", "file_bytes_max": 0}, "must be at least 1"),
        ({"prefix": "model", "dtype": "float8_e4m3fnuz"}, "no float8_e4m3fnuz"),
    ):
        with pytest.raises(ValueError, match=message):
            weights.export(run, out, **options)  # type: ignore[arg-type]
    ckpt.save(tmp_path / "named", 1, {"__metadata__": torch.zeros(2)})
    with pytest.raises(ValueError, match="__metadata__: safetensors has metadata of that name"):
        weights.export(tmp_path / "named", out)
    with pytest.raises(FileNotFoundError):
        weights.export(run, tmp_path / "no" / "out", prefix="model")
    assert weights.export(run, out, prefix="model", dry_run=True).files == ("model.safetensors",)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "named"}


def test_the_command_exports_a_folder(tmp_path: Path) -> None:
    ckpt.save(tmp_path / "run", 1, {"model": model(1)})
    words = ("ffrecord", "checkpoint", "export", tmp_path / "run", tmp_path / "out")
    options = ("--prefix", "model", "--file-size", "100KiB")
    assert "would be in 3 files" in cli.ok(*words, *options, "--dry-run")
    assert not (tmp_path / "out").exists()
    assert "step 1 is in 3 files in" in cli.ok(*words, *options)
    assert same(loaded(tmp_path / "out"), flat(1))
    refused = cli.run(*words, "--prefix", "model")
    assert refused.returncode == 2 and "--file-size" in refused.stderr
    half = (*words[:-1], tmp_path / "half", *options, "--dtype", "bfloat16")
    cli.ok(*half)
    assert loaded(tmp_path / "half")["embed"].dtype == torch.bfloat16
    for wrong in (("--overwrite",), ("--dtype", "bf16")):
        assert cli.run(*words, *options, *wrong).returncode == 2
