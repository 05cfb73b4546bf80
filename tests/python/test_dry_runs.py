"""Goal: a dry run of what copies, publishes or converts says what would be done, and does nothing.

Method: the dry run, then the same command; what the first names the second does. Those that rewrite
files, remove data or run clusters have tests of their own.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
import ffrecord.checkpoint as ckpt
from cli import ok, run
from daemon import Daemon
from ffrecord.pack import _estimate, estimate_packing


def told(*words: str | Path) -> Any:  # noqa: ANN401 - JSON
    return json.loads(ok("ffrecord", *words, "--json"))


def everything(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All that is in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(2):
        with ffrecord.Writer(folder / f"{number}.ffr") as writer:
            writer.write(bytes(1000 + number))
    return sorted(folder.iterdir())


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    for step in (1, 2):
        ckpt.save(tmp_path / "runs", step, {"w": np.arange(100.0) * step})
    return tmp_path / "runs"


@pytest.mark.parametrize("destination", ["packed", "packed.ffr"])
def test_packing_is_foretold_from_a_sample(destination: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": n, "text": "x" * (n % 90)}) + "\n" for n in range(50_000)]
    source.write_text("".join(lines))
    before = everything(tmp_path)

    done = ok("ffrecord-pack", source, tmp_path / destination, "--dry-run", "--json")

    assert everything(tmp_path) == before
    found = json.loads(done)
    assert found["columns"] == {"id": "i64", "text": "utf8"}
    assert found["is_whole"]
    made = json.loads(ok("ffrecord-pack", source, tmp_path / destination, "--json"))
    assert found["record_count"] == made["record_count"] == 50_000
    assert found["raw_size_bytes"] == made["raw_size_bytes"]
    shown = ok("ffrecord-pack", source, tmp_path / "other", "--dry-run")
    assert shown.splitlines()[:2] == ["id: i64", "text: utf8"]
    assert "would pack 50000 records" in shown


def test_a_sample_of_several_inputs_stands_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_estimate, "_SAMPLE_BYTES", 100_000)
    paths = [tmp_path / f"{number}.jsonl" for number in range(4)]
    for path in paths:
        path.write_text('{"n": 1, "text": "some text"}\n' * 2000)

    found = estimate_packing([str(path) for path in paths], tmp_path / "x")

    assert not found.is_whole
    assert found.sample_count == 4000
    assert abs(found.record_count - 8000) < 10


def test_datasets_are_pushed_and_pulled(shards: list[Path], tmp_path: Path) -> None:
    away, back = tmp_path / "away", tmp_path / "back"
    assert told("push", *shards, away, "--dry-run") == {"sent": ["0.ffr", "1.ffr"], "dry_run": True}
    assert not away.exists()
    told("push", shards[0], away)
    before = everything(away)
    assert told("push", *shards, away, "--dry-run")["sent"] == ["1.ffr"]
    assert everything(away) == before
    assert told("push", *shards, away) == {"sent": ["1.ffr"], "dry_run": False}

    assert told("pull", away, back, "--dry-run")["brought"] == ["0.ffr", "1.ffr"]
    assert not back.exists()
    told("pull", away, back)
    assert told("pull", away, back, "--dry-run")["brought"] == []
    assert "would download 0 files" in ok("ffrecord", "pull", away, back, "--dry-run")


def test_a_dataset_is_published(shards: list[Path], tmp_path: Path) -> None:
    with Daemon(tmp_path / "served") as daemon:
        address = daemon.address("x")
        facts = told("publish", *shards, address, "--dry-run")
        assert facts["would_publish"] == address and facts["record_count"] == 2
        assert facts["size_bytes"] > 2000 and not facts["replaces"]
        assert ffrecord.list_published(daemon.address("")) == []

        told("publish", *shards, address)
        for words in ([], ["--dry-run"]):
            refused = run("ffrecord", "publish", *shards, address, *words)
            assert refused.returncode == 4
            assert f"{address} exists; --overwrite replaces it" in refused.stderr
        assert told("publish", *shards, address, "--dry-run", "--overwrite")["replaces"] is True
        shown = ok("ffrecord", "publish", shards[0], address, "--dry-run", "--overwrite")
        assert "would publish 1 records" in shown and "and replace what is there" in shown
        assert len(ffrecord.open(address)) == 2
        missing = run("ffrecord", "publish", tmp_path / "none.ffr", address, "--dry-run")
        assert missing.returncode == 4


def test_checkpoints_are_copied(steps: Path, tmp_path: Path) -> None:
    away, back = tmp_path / "away", tmp_path / "back"

    def copied(*words: str | Path) -> list[int]:
        facts = told("checkpoint", *words)
        assert facts["dry_run"] == ("--dry-run" in words)
        return [commit["step"] for commit in facts["copied"]]

    assert copied("push", steps, away, "--dry-run") == [1, 2]
    assert copied("push", steps, away, "--step", "1", "--dry-run") == [1]
    assert not away.exists()
    assert copied("push", steps, away, "--step", "1") == [1]
    assert copied("push", steps, away, "--dry-run") == [2]
    assert copied("push", steps, away) == [2]
    assert copied("push", steps, away, "--dry-run") == []

    assert copied("pull", away, back, "--dry-run") == [2]
    assert not back.exists()
    assert copied("pull", away, back) == [2]
    assert copied("pull", away, back, "--dry-run") == []
    missing = run("ffrecord", "checkpoint", "pull", away, back, "--step", "9", "--dry-run")
    assert missing.returncode == 4 and "has no step 9" in missing.stderr


def test_checkpoints_are_converted(steps: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "a.safetensors", tmp_path / "other"
    shown = ok("ffrecord", "checkpoint", "export", steps, file, "--dry-run")
    assert shown == f"step 2 would be in {file}\n"
    assert not file.exists()
    assert run("ffrecord", "checkpoint", "export", steps, file, "--prefix", "x", "--dry-run").stderr
    told("checkpoint", "export", steps, file)
    for words in ([], ["--dry-run"]):
        refused = run("ffrecord", "checkpoint", "export", steps, file, *words)
        assert refused.returncode == 4 and f"{file} exists; --overwrite replaces" in refused.stderr

    words = ("checkpoint", "import", file, other, "--step", "7")
    assert told(*words, "--dry-run") == {
        **{"step": 7, "tensors": 1, "size_bytes": 800, "dry_run": True}
    }
    assert not other.exists()
    told(*words)
    refused = run("ffrecord", *words, "--dry-run")
    assert refused.returncode == 4 and "has a step 7 already" in refused.stderr
    file.write_bytes(b"nothing")
    assert run("ffrecord", *words[:-1], "8", "--dry-run").returncode == 3


def both(*words: str | Path) -> tuple[Any, Any]:
    """The dry run of a command, then the command."""
    return run("ffrecord", *words, "--dry-run"), run("ffrecord", *words)


def test_a_dry_run_refuses_what_publish_refuses(shards: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.ffr"
    content = bytearray(shards[0].read_bytes())
    content[4096] ^= 1
    damaged.write_bytes(content)
    with Daemon(tmp_path / "served") as daemon:
        address = daemon.address("x")
        for words, expected in {
            ("publish", damaged, address): "nothing was published",
            ("publish", shards[0], tmp_path / "y"): "does not begin with ffrecord://",
            ("publish", shards[0], address, "--durability", "r9"): "durability is",
            ("publish", shards[0], address, "--durability", "r2"): "is a single daemon",
            ("publish", shards[0], address, "--durability", "origin"): "is a single daemon",
            (
                *("publish", shards[0], address, "--durability", "origin"),
                *("--copy-to", tmp_path / "away"),
            ): "is a single daemon",
            ("publish", shards[0], daemon.address("a b")): "bad name",
            ("remove", shards[0], "--yes"): "does not begin with ffrecord://",
            ("remove", daemon.address("none"), "--yes"): "nothing is published under the name",
        }.items():
            dry, real = both(*words)
            assert dry.returncode == real.returncode != 0, words
            assert expected in dry.stderr and expected in real.stderr
        assert ffrecord.list_published(daemon.address("")) == []
        ok("ffrecord", "publish", shards[0], address)
        dry, real = both("publish", address, daemon.address("copy"))
        assert dry.returncode == real.returncode == 4  # Only local files are published.
    assert shards[0].exists()


def test_a_dry_run_refuses_what_copies_refuse(
    shards: list[Path], steps: Path, tmp_path: Path
) -> None:
    away, file, other = tmp_path / "away", tmp_path / "a.safetensors", tmp_path / "other"
    below = shards[0] / "below"  # Where a file is no folder can be.
    told("push", *shards, away)
    told("checkpoint", "export", steps, file)
    ckpt.save(other, 1, {"w": np.arange(100.0) * 9})
    nowhere = tmp_path / "nowhere" / "a.safetensors"
    for words in (
        ("push", *shards, below),
        ("push", *shards, ""),
        ("push", *shards, "gs://bucket/x"),
        ("pull", away, below),
        ("pull", away, "gs://bucket/x"),
        ("pull", "gs://bucket/x", away),
        ("checkpoint", "import", file, below, "--step", "1"),
        ("checkpoint", "import", file, "gs://bucket/x", "--step", "1"),
        ("checkpoint", "export", steps, nowhere),
        ("checkpoint", "push", steps, below),
        ("checkpoint", "push", steps, "gs://bucket/x"),
        ("checkpoint", "push", steps, other, "--step", "1"),
        ("checkpoint", "pull", steps, other, "--step", "1"),
        ("checkpoint", "pull", steps, below),
    ):
        dry, real = both(*words)
        assert dry.returncode == real.returncode != 0, (words, dry, real)
    refused = run("ffrecord", "checkpoint", "push", steps, other, "--dry-run")
    assert refused.returncode == 4 and "another save of step 1" in refused.stderr
    assert ckpt.latest(other).step == 1  # type: ignore[union-attr]


def test_a_step_that_was_saved_again_would_be_refused(steps: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    told("checkpoint", "push", steps, away)
    ckpt.remove(steps, 2)
    ckpt.save(steps, 2, {"w": np.arange(7.0)})
    before = everything(tmp_path)

    dry, real = both("checkpoint", "push", steps, away)

    assert everything(tmp_path) == before
    assert dry.returncode == real.returncode == 4 and "another save of step 2" in dry.stderr


def test_a_step_that_the_run_has_given_up_would_be_replaced(steps: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    told("checkpoint", "push", steps, away)
    state = {"w": np.arange(100.0)}
    ckpt.load(steps, state, step=1, resume=True)
    ckpt.save(steps, 2, state)

    dry = told("checkpoint", "push", steps, away, "--dry-run")["copied"]

    assert dry == told("checkpoint", "push", steps, away)["copied"] and len(dry) == 1


def test_repair_names_the_option_that_replaces(shards: list[Path]) -> None:
    refused = run("ffrecord", "repair", *shards)
    assert refused.returncode == 4
    assert f"{shards[1]} exists; --overwrite replaces it" in refused.stderr
