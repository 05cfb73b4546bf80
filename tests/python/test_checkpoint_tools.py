"""Goal: safetensors files come and go unchanged, hostile ones are refused, and the commands work.

Method: files made by hand, byte by byte, as the format says; each rule of the header broken once;
random damage; the commands as processes.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
import ffrecord
import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord import _ffrecord
from ffrecord.errors import DeadlineExceeded, UnavailableError


def safetensors(header: object, data: bytes, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def example() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a.weight": entry("F32", [2, 3], 0, 24),
        "b": entry("BF16", [4], 24, 32),
        "scalar": entry("I64", [], 32, 40),
        "empty": entry("U8", [0, 5], 40, 40),
    }
    return safetensors(header, bytes(range(40)))


def test_a_file_comes_and_goes_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "model.safetensors"
    source.write_bytes(example())
    assert ckpt.import_safetensors(source, tmp_path / "run", 7).step == 7
    state: Any = {"a.weight": np.zeros((2, 3), "float32"), "scalar": np.zeros((), "int64")}
    ckpt.load(tmp_path / "run", state, strict=False)
    assert state["a.weight"].tobytes() == bytes(range(24))
    assert state["scalar"].tobytes() == bytes(range(32, 40))

    out = tmp_path / "out.safetensors"
    assert ckpt.export_safetensors(tmp_path / "run", out).step == 7

    content = out.read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    assert json.loads(content[8 : 8 + size]) == json.loads(example()[8:-40])
    assert content[8 + size :] == bytes(range(40))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors", "out.safetensors", "run",
    ]  # fmt: skip


def test_a_part_of_a_state_is_named_from_there_on(tmp_path: Path) -> None:
    state = {
        "model": {"layer/0": {"weight": np.arange(300_000.0)}, "bias": np.ones(3, "float16")},
        "optim": [{"lr": 0.1, "m": np.zeros(4)}],
    }
    ckpt.save(tmp_path / "run", 1, state)
    out = tmp_path / "model.safetensors"
    ckpt.export_safetensors(tmp_path / "run", out, prefix="model")
    ckpt.import_safetensors(out, tmp_path / "again", 1, prefix="model")
    loaded: Any = ckpt.load(tmp_path / "again")
    assert list(loaded) == ["model"] and sorted(loaded["model"]) == ["bias", "layer/0.weight"]
    assert np.array_equal(loaded["model"]["layer/0.weight"], np.arange(300_000.0))

    with pytest.raises(FileExistsError):
        ckpt.export_safetensors(tmp_path / "run", out)
    ckpt.export_safetensors(tmp_path / "run", out, overwrite=True)
    assert b"optim.0.m" in out.read_bytes()
    with pytest.raises(ValueError, match="nothing below modl"):
        ckpt.export_safetensors(tmp_path / "run", tmp_path / "x", prefix="modl")
    ckpt.save(tmp_path / "odd", 1, {"c": np.zeros(2, "complex128")})
    with pytest.raises(ValueError, match="c: safetensors has no complex128"):
        ckpt.export_safetensors(tmp_path / "odd", tmp_path / "x")
    assert not (tmp_path / "x").exists() and not list(tmp_path.glob(".ffrecord-*"))


GOOD = entry("U8", [4], 0, 4)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"1234567", id="shorter than its first field"),
        pytest.param(
            safetensors({"w": GOOD}, b"1234", size=2**63), id="a header that is too large"
        ),
        pytest.param(safetensors({"w": GOOD}, b"1234", size=2**64 - 1), id="the largest header"),
        pytest.param(safetensors(b"{", b""), id="no JSON"),
        pytest.param(safetensors(b"[" * 100_000, b""), id="nested JSON"),
        pytest.param(safetensors(b"\xff{}", b""), id="no UTF-8"),
        pytest.param(safetensors(b'{"w":1e999}', b""), id="infinite"),
        pytest.param(safetensors(b'{"w":' + b"9" * 5000 + b"}", b""), id="a long number"),
        pytest.param(safetensors([GOOD], b"1234"), id="a list"),
        pytest.param(
            safetensors(b'{"w":%b,"w":%b}' % ((json.dumps(GOOD).encode(),) * 2), b"1234"),
            id="a name twice",
        ),
        pytest.param(safetensors({"w": {"dtype": "U8"}}, b""), id="fields missing"),
        pytest.param(safetensors({"w": {**GOOD, "x": 1}}, b"1234"), id="another field"),
        pytest.param(safetensors({"w": entry("U9", [4], 0, 4)}, b"1234"), id="unknown type"),
        pytest.param(safetensors({"w": entry("U8", [-4], 0, 4)}, b"1234"), id="negative"),
        pytest.param(safetensors({"w": entry("U8", [True], 0, 1)}, b"1"), id="a boolean"),
        pytest.param(safetensors({"w": entry("U8", [2**47, 2**47], 0, 4)}, b"1234"), id="huge"),
        pytest.param(safetensors({"w": entry("U8", [1] * 65, 0, 1)}, b"1"), id="65 dimensions"),
        pytest.param(safetensors({"w": entry("U8", [4], 4, 0)}, b"1234"), id="backwards"),
        pytest.param(safetensors({"w": entry("F32", [4], 0, 4)}, b"1234"), id="size and offsets"),
        pytest.param(safetensors({"w": entry("U8", [4], 1, 5)}, b"12345"), id="a gap"),
        pytest.param(
            safetensors({"w": GOOD, "v": entry("U8", [4], 2, 6)}, b"123456"), id="overlap"
        ),
        pytest.param(safetensors({"w": GOOD}, b"12345"), id="bytes left over"),
        pytest.param(safetensors({"w": GOOD}, b"123"), id="bytes missing"),
        pytest.param(safetensors({"": GOOD}, b"1234"), id="no name"),
        pytest.param(safetensors({"\ud800": GOOD}, b"1234"), id="half a surrogate pair"),
        pytest.param(safetensors({"__metadata__": {"a": 1}}, b""), id="metadata of numbers"),
        pytest.param(safetensors({"__metadata__": {"a": "\udfff"}}, b""), id="odd metadata"),
    ],
)
def test_a_hostile_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    with pytest.raises(ffrecord.CorruptionError, match=r"hostile\.safetensors: not a safetensors"):
        ckpt.import_safetensors(path, tmp_path / "run", 1)
    assert not (tmp_path / "run").exists()


def test_random_damage_of_a_header_is_refused_or_harmless(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "damaged.safetensors"
    good = example()
    for step in range(300):
        content = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(good) - 40)] = chance.randrange(256)
        path.write_bytes(content)
        try:
            ckpt.import_safetensors(path, tmp_path / "run", step)
        except ffrecord.CorruptionError:
            continue
        ckpt.remove(tmp_path / "run", step)


def test_what_differs_is_told_by_path(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": np.arange(100_000), "n": 1, "same": [1, "x", {}], "gone": 1}
    ckpt.save(tmp_path, 1, state)
    state["w"][99_999] += 1
    state["n"] = 2
    del state["gone"]
    state["new"] = {"deep": np.ones(2)}
    state["rng"] = ckpt.PerRank({"key": 5})
    ckpt.save(tmp_path, 2, state)
    found = ckpt.diff((tmp_path, 1), (tmp_path, 2))
    assert (found.only_first, found.only_second) == (["gone"], ["new/deep", "rng/#0/key"])
    assert found.different == ["n", "w"]
    assert bool(found) and not ckpt.diff((tmp_path, 2), (tmp_path, 2))


def test_the_commands_list_check_compare_and_move(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ckpt.save(run, 1, {"w": np.arange(10_000)})
    ckpt.save(run, 2, {"w": np.arange(10_000) + 1})
    listed = json.loads(cli.ok("ffrecord", "checkpoint", "list", run, "--json"))
    assert [each["step"] for each in listed] == [1, 2]
    assert listed[0]["attempt"] in cli.ok("ffrecord", "checkpoint", "list", run)
    assert cli.ok("ffrecord", "checkpoint", "diff", run, "1", "2") == "~ w\n"
    assert "no damage found" in cli.ok("ffrecord", "checkpoint", "verify", run, "--step", "1")
    out = tmp_path / "out.safetensors"
    cli.ok("ffrecord", "checkpoint", "export", run, out, "--step", "1")
    assert cli.run("ffrecord", "checkpoint", "export", run, out).returncode == 4
    cli.ok("ffrecord", "checkpoint", "import", out, tmp_path / "new", "--step", "5")
    assert not ckpt.diff((run, 1), (tmp_path / "new", 5))

    segment = run / "step-000000002/part-00000/seg-0000"
    content = bytearray(segment.read_bytes())
    content[9] ^= 1
    segment.write_bytes(content)
    prune = ["ffrecord", "checkpoint", "prune", tmp_path / "new", "--keep-last", "1"]
    cli.ok("ffrecord", "checkpoint", "import", out, tmp_path / "new", "--step", "6")
    assert cli.run(*prune).returncode == 2  # Nobody is there to say yes.
    assert json.loads(cli.ok(*prune, "--yes", "--json")) == {"removed": [5]}
    done = cli.run("ffrecord", "checkpoint", "verify", run)
    assert done.returncode == 3 and "offset 0 fails" in done.stdout
    assert cli.run("ffrecord", "checkpoint", "verify", run, "--step", "9").returncode == 4
    assert cli.run("ffrecord", "checkpoint", "import", segment, run, "--step", "9").returncode == 3


def test_pruning_looks_again_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the person thinks, the newest step is removed: what may go is less than was asked."""
    from ffrecord._cli import checkpoint, console

    for step in (1, 2, 3):
        ckpt.save(tmp_path / "run", step, {"x": np.arange(4)})

    def thinks(question: str) -> None:
        assert question == "Remove 2 steps, 1 to 2?"
        ckpt.remove(tmp_path / "run", 3)

    monkeypatch.setattr(checkpoint, "confirm", thinks)
    arguments = ["ffrecord", "prune", str(tmp_path / "run"), "--keep-last", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    assert console.run(checkpoint.checkpoint) == 0
    assert [commit.step for commit in ckpt.list(tmp_path / "run")] == [2]


@pytest.mark.wrong_data
def test_pruning_removes_no_save_that_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the first step goes, training saves the second one again."""
    from ffrecord._cli import checkpoint, console

    run = tmp_path / "run"
    for step in (1, 2, 3):
        ckpt.save(run, step, {"x": np.full(4, step)})
    real, calls = _ffrecord.remove_checkpoint, 0

    def remove(*args: Any, **rest: Any) -> None:  # noqa: ANN401
        nonlocal calls
        calls += 1
        if calls == 1:
            ckpt.save(run, 2, {"x": np.full(4, 20)}, overwrite=True)
        real(*args, **rest)

    monkeypatch.setattr(_ffrecord, "remove_checkpoint", remove)
    monkeypatch.setattr("sys.argv", ["f", "prune", str(run), "--keep-last", "1", "--yes"])
    assert console.run(checkpoint.checkpoint) == 0
    assert capsys.readouterr().out == "removed 1 steps\n"
    assert [commit.step for commit in ckpt.list(run)] == [2, 3]
    loaded: Any = ckpt.load(run, step=2)
    assert loaded["x"][0] == 20


def test_a_daemon_that_is_gone_is_an_error_and_no_damage(tmp_path: Path) -> None:
    """A user removes a step that is called damaged."""
    with Daemon(tmp_path / "served") as daemon:
        run = daemon.address("runs/x")
        ckpt.save(run, 1, {"w": np.arange(100_000)})
        reader = _ffrecord.CheckpointReader(run, 1, 10.0)
        assert reader.verify() == []  # Now it has the checksums, and asks for blocks only.

        daemon.kill()

        with pytest.raises((UnavailableError, DeadlineExceeded)):
            reader.verify()
