"""Goal: sealed files pushed to a store come back as they were, whatever stops a push on the way.

Method: moto's server in this process, behind a door that fails at each request in turn; folders as
targets where the store does not matter.
"""

import json
import os
from pathlib import Path

import pytest

import cli
import ffrecord
import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord.archive import Mirror, pull, push
from ffrecord.errors import CorruptionError
from object_store import Store

NAMES = ["0.ffr", "1.ffr", "2.ffr"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(3):
        make(folder / f"{number}.ffr", number)
    return folder


def make(path: Path, number: int) -> None:
    with ffrecord.Writer(path) as writer:
        for record in range(50):
            writer.write(f"{number}/{record}".encode() * 100)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_push_that_fails_anywhere_goes_on_where_it_was(
    store: Store, shards: Path, tmp_path: Path
) -> None:
    target = "s3://bucket/archive/shards"
    attempts = 0
    while True:
        attempts += 1
        allowed = 6 * attempts  # Requests; all that follow fail.
        store.set_door(lambda number, method, path, n=allowed: "serve" if number < n else "403")
        try:
            push(shards, target)
            break
        except PermissionError:
            store.serve_all()
            if attempts == 1:
                with pytest.raises(FileNotFoundError):  # The list comes last.
                    pull(target, tmp_path / "early")
            assert attempts < 40
    store.serve_all()
    assert attempts > 2
    assert len(ckpt.list(f"{target}/0.ffr")) == 1  # Sent once, for all that failed later.

    assert push(shards, target) == []
    assert pull(target, tmp_path / "back") == ["0.ffr", "1.ffr", "2.ffr"]
    assert contents(tmp_path / "back") == contents(shards)


def test_a_mirror_copies_what_is_sealed_while_more_is_written(store: Store, tmp_path: Path) -> None:
    store.serve_all()
    target, shards = "s3://bucket/archive/mirror", tmp_path / "growing"
    shards.mkdir()
    make(shards / "0.ffr", 0)
    with Mirror(shards, target) as mirror:
        assert mirror.start().result() == ["0.ffr"]
        with ffrecord.Writer(shards / "1.ffr") as writer:
            writer.write(b"not sealed yet")
            assert mirror.start().result() == []
        assert mirror.start().result() == ["1.ffr"]
        make(shards / "2.ffr", 2)
        mirror.start()
    assert pull(target, tmp_path / "back") == NAMES
    assert contents(tmp_path / "back") == contents(shards)


def test_a_mirror_tells_of_its_failure_and_goes_on_where_it_was(
    store: Store, shards: Path, tmp_path: Path
) -> None:
    target = "s3://bucket/archive/failing"
    store.set_door(lambda number, method, path: "serve" if number < 12 else "403")
    with pytest.raises(PermissionError), Mirror(shards, target) as mirror:
        mirror.start()
    store.serve_all()
    with Mirror(shards, target) as mirror:
        assert mirror.start().result() in (NAMES, NAMES[1:])
        assert mirror.start().result() == []
    assert pull(target, tmp_path / "back") == NAMES


def test_only_what_differs_is_sent_and_brought(shards: Path, tmp_path: Path) -> None:
    target, back = tmp_path / "target", tmp_path / "back"
    sent = json.loads(cli.ok("ffrecord", "push", "--json", shards, target))["sent"]
    assert sent == ["0.ffr", "1.ffr", "2.ffr"]
    assert len(json.loads(cli.ok("ffrecord", "pull", "--json", target, back))["brought"]) == 3

    (shards / "1.ffr").unlink()
    make(shards / "1.ffr", 7)
    assert push(shards, target) == ["1.ffr"]
    assert pull(target, back) == ["1.ffr"]
    assert pull(target, back) == []
    assert contents(back) == contents(shards)

    with (back / "0.ffr").open("r+b") as file:
        file.truncate(100)
    assert pull(target, back) == ["0.ffr"]
    assert contents(back) == contents(shards)


def test_damage_at_the_target_leaves_no_file(shards: Path, tmp_path: Path) -> None:
    target, back = tmp_path / "target", tmp_path / "back"
    push([shards / "0.ffr"], target)
    [segment] = (target / "0.ffr").rglob("seg-*")
    with segment.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(CorruptionError):
        pull(target, back)
    assert os.listdir(back) == []


@pytest.mark.wrong_data
@pytest.mark.parametrize("file", ["root.manifest", "part-00000.manifest"])
def test_an_older_list_does_not_stand_for_a_damaged_one(
    shards: Path, tmp_path: Path, file: str
) -> None:
    """It would replace newer files by those that it lists."""
    target, back = tmp_path / "target", tmp_path / "back"
    push(shards, target)
    (shards / "1.ffr").unlink()
    make(shards / "1.ffr", 7)
    push(shards, target)
    pull(target, back)
    manifest = target / "step-000000001" / file
    manifest.write_bytes(manifest.read_bytes()[:-1])

    with pytest.raises(CorruptionError, match=r"step 1.*push the files again"):
        pull(target, back)
    assert contents(back) == contents(shards)
    assert push(shards, target) == []
    assert pull(target, tmp_path / "other") == NAMES
    assert contents(tmp_path / "other") == contents(shards)


@pytest.mark.parametrize("victim", ["root.manifest", "part-00000.manifest", "part-00000/seg-0000"])
def test_pushing_again_heals_what_is_damaged_at_the_target(
    shards: Path, tmp_path: Path, victim: str
) -> None:
    target = tmp_path / "target"
    push(shards, target)
    cut(target / "1.ffr/step-000000000" / victim)
    with pytest.raises(CorruptionError):
        pull(target, tmp_path / "damaged")

    assert push(shards, target) == ["1.ffr"]
    pull(target, tmp_path / "pulled")
    assert contents(tmp_path / "pulled") == contents(shards)


def test_pushing_again_heals_a_damaged_list(shards: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    push(shards, target)
    cut(target / "step-000000000/root.manifest")
    with pytest.raises(CorruptionError, match=r"list of files is damaged .* push the files again"):
        pull(target, tmp_path / "damaged")

    assert push(shards, target) == []
    pull(target, tmp_path / "pulled")
    assert contents(tmp_path / "pulled") == contents(shards)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_what_is_no_dataset_is_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pull(tmp_path / "nothing", tmp_path / "back")
    ckpt.save(tmp_path / "run", 1, {"files": {"../x": {}}})
    with pytest.raises(CorruptionError, match="not the list"):
        pull(tmp_path / "run", tmp_path / "back")
    with pytest.raises(ValueError, match="two files"):
        push([shards / "0.ffr", shards / "0.ffr"], tmp_path / "target")
    (shards / "0.ffr").write_bytes(b"nonsense")
    with pytest.raises(CorruptionError):
        push(shards, tmp_path / "target")


@pytest.mark.parametrize("kind", ["replicated", "options"])
def test_any_kind_of_target_holds_a_dataset(shards: Path, tmp_path: Path, kind: str) -> None:
    with Daemon(tmp_path / "served") as daemon:
        places = [tmp_path / "a", tmp_path / "b"]
        target = daemon.address("x?transport=tcp")
        if kind == "replicated":
            target = ckpt.replicated_target([*places, daemon.address("y")])
        assert push(shards, target) == NAMES
        assert push(shards, target) == []
        assert pull(target, tmp_path / "back") == NAMES
    assert contents(tmp_path / "back") == contents(shards)


def test_what_is_no_target_is_refused_before_anything_is_written(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the dataset would be `/0.ffr`, or in a folder that is called `gs:`."""
    monkeypatch.chdir(tmp_path)
    push(shards, "away")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ValueError, match="the target is empty"):
        push(shards, "")
    for wrong in ("gs://bucket/x", "S3://bucket/x", "file:///tmp/x"):
        with pytest.raises(
            ValueError, match=f"there are no targets at {wrong[: wrong.index('/')]}"
        ):
            push(shards, wrong)
        with pytest.raises(ValueError, match="is an address, and the folder must be a local name"):
            pull("away", wrong)
    assert sorted(os.listdir(tmp_path)) == before and not Path("/0.ffr").exists()
