"""Goal: the trouble of one place of a replicated target is that place's, and is told.

Method: a table of troubles at one of two folders: lost, no folder, a folder that cannot be read,
damage in each file. The other place answers every question, and verification names the ill one.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord.checkpoint as ckpt
from ffrecord.errors import ConflictError
from thread_ranks import ThreadRank, ThreadRanks

pytestmark = pytest.mark.wrong_data

STEP = "step-000000002"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)


def no_folder(place: Path) -> None:
    shutil.rmtree(place)
    place.write_bytes(b"")


def unreadable(place: Path) -> None:
    """Every call fails, and not as for a place that holds nothing."""
    shutil.rmtree(place)
    place.symlink_to(place)


def no_file(path: Path) -> None:
    """Opening it succeeds, reading it fails."""
    path.unlink()
    path.mkdir()


TROUBLES: dict[str, Callable[[Path], object]] = {
    "lost": shutil.rmtree,
    "no folder": no_folder,
    "unreadable": unreadable,
    "lost step": lambda place: shutil.rmtree(place / STEP),
    "damaged root": lambda place: flip(place / STEP / "root.manifest"),
    "missing root": lambda place: (place / STEP / "root.manifest").unlink(),
    "unreadable root": lambda place: no_file(place / STEP / "root.manifest"),
    "damaged part": lambda place: flip(place / STEP / "part-00000.manifest"),
    "missing part": lambda place: (place / STEP / "part-00000.manifest").unlink(),
    "damaged segment": lambda place: flip(place / STEP / "part-00000/seg-0000"),
    "missing segment": lambda place: (place / STEP / "part-00000/seg-0000").unlink(),
}


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(10_000, step)}


def places_of(tmp_path: Path) -> tuple[list[Path], str]:
    places = [tmp_path / "a", tmp_path / "b"]
    target = ckpt.replicated_target(places)
    for step in (1, 2):
        ckpt.save(target, step, state(step), group="alone")
    return places, target


@pytest.mark.parametrize("ill", [0, 1])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_other_place_answers_and_the_ill_one_is_named(
    tmp_path: Path, trouble: str, ill: int
) -> None:
    places, target = places_of(tmp_path)
    TROUBLES[trouble](places[ill])

    latest = ckpt.latest(target)
    assert latest is not None and latest.step == 2
    assert [(each.step, each.damage) for each in ckpt.list(target)] == [(1, ""), (2, "")]
    loaded: Any = ckpt.load(target, group="alone")
    assert loaded["w"].tolist() == [2] * 10_000
    told = ckpt.verify(target)
    assert told and any(str(places[ill]) in message for message in told), told
    ckpt.copy(target, tmp_path / "copy")
    assert ckpt.verify(tmp_path / "copy") == []
    with pytest.raises((OSError, ValueError), match=str(tmp_path)):  # Needs every place.
        ckpt.save(target, 2, state(9), group="alone")
    loaded = ckpt.load(target, group="alone")
    assert loaded["w"].tolist() == [2] * 10_000  # It is whole: it stays.


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_step_that_is_damaged_at_both_places_gives_way(tmp_path: Path, trouble: str) -> None:
    places, target = places_of(tmp_path)
    if trouble in ("lost", "no folder", "unreadable", "unreadable root"):
        pytest.skip("that is no damage to the step alone")
    for place in places:
        TROUBLES[trouble](place)
    assert ckpt.prune(target, keep_last=1) == []
    ckpt.save(target, 2, state(9), group="alone")
    assert ckpt.verify(target) == []
    loaded: Any = ckpt.load(target, step=2, group="alone")
    assert loaded["w"][0] == 9


@pytest.mark.parametrize("trouble", ["no folder", "unreadable"])
def test_that_there_is_no_step_is_no_ill_places_answer(tmp_path: Path, trouble: str) -> None:
    """The other place may have lost what it had: a run must not begin anew for that."""
    places, target = places_of(tmp_path)
    TROUBLES[trouble](places[0])
    shutil.rmtree(places[1])
    with pytest.raises((OSError, ValueError)) as raised:
        ckpt.latest(target)
    assert str(places[0]) in str(raised.value)
    assert not isinstance(raised.value, FileNotFoundError)


def test_a_target_that_is_no_folder_is_no_run_without_steps(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for ask in (ckpt.latest, ckpt.list, ckpt.verify, ckpt.load):
        with pytest.raises(NotADirectoryError, match="a target is a folder"):
            ask(tmp_path / "file")


@pytest.mark.parametrize(
    "spellings",
    [("x", "x/"), ("x", "./x"), ("x", "y/../x"), ("a/q", "b/q"), ("a", "b"), ("x//z", "x/z")],
)
@pytest.mark.parametrize("exists", [False, True])
def test_two_spellings_of_one_folder_are_one_place(
    tmp_path: Path, spellings: tuple[str, str], *, exists: bool
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    if exists:
        (tmp_path / spellings[0]).mkdir(parents=True, exist_ok=True)
    address = "buddies:" + "|".join(f"{tmp_path}/{each}" for each in spellings)
    with pytest.raises(ValueError, match="same place"):
        ckpt.save(address, 1, state(1), group="alone", timeout_s=2)
    with pytest.raises(ValueError, match="same place"):
        ckpt.load(address, group="alone")
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="same place"):  # Two are enough, and yet.
        ckpt.list(f"{address}|{tmp_path}/other")


@pytest.mark.parametrize("order", ["abc", "bac", "cba", "ab", "ba"])
def test_an_old_save_at_a_place_that_was_away_is_never_taken_for_the_new_one(
    tmp_path: Path, order: str
) -> None:
    def target(places: str) -> str:
        return ckpt.replicated_target([tmp_path / place for place in places])

    for step in (1, 2):
        ckpt.save(target("ab"), step, state(step), group="alone")
    (tmp_path / "b").rename(tmp_path / "away")
    ckpt.remove(target("ac"), 2)
    new = ckpt.save(target("ac"), 2, state(9), group="alone")
    (tmp_path / "away").rename(tmp_path / "b")

    two = str(tmp_path / "b" / STEP)
    for ask in (ckpt.load, ckpt.latest):
        with pytest.raises(ConflictError, match=two):
            ask(target(order))
    assert [each.step for each in ckpt.list(target(order)) if not each.damage] == [1]
    assert any(two in message for message in ckpt.verify(target(order)))
    assert ckpt.prune(target(order), keep_last=1) == []
    if "c" in order:
        with pytest.raises(ConflictError, match=two):
            ckpt.save(target(order), 2, state(8), group="alone")
    ckpt.remove(tmp_path / "b", 2)
    assert ckpt.latest(target(order)) == new
    loaded: Any = ckpt.load(target(order), group="alone")
    assert loaded["w"][0] == 9


@pytest.mark.parametrize("file", ["root.manifest", "part-00000.manifest", "part-00000/seg-0000"])
def test_a_step_that_cannot_be_read_hides_no_other(tmp_path: Path, file: str) -> None:
    for step in (1, 2):
        ckpt.save(tmp_path, step, state(step), group="alone")
    no_file(tmp_path / STEP / file)

    listed = ckpt.list(tmp_path)
    assert [each.step for each in listed] == [1, 2]
    assert not listed[0].damage and file in listed[1].damage
    assert ckpt.prune(tmp_path, keep_last=1) == []
    with pytest.raises((OSError, ValueError), match=file):  # Not an older one, unasked.
        ckpt.load(tmp_path)
    loaded: Any = ckpt.load(tmp_path, step=1)
    assert loaded["w"][0] == 1


@pytest.mark.parametrize("size", [-4096, -40, -8, 4096])
@pytest.mark.parametrize("ill", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_packed_copies_of_another_size_are_read_at_the_other_place(
    tmp_path: Path, ill: tuple[int, int], size: int
) -> None:
    """`ill` has, for each of the two parts, the place whose copy is cut or grown."""
    places = [tmp_path / "a", tmp_path / "b"]
    target = ckpt.replicated_target(places)
    saved = {"w": np.random.default_rng(3).integers(0, 9, 1_000_000)}

    def save(rank: ThreadRank) -> object:
        return ckpt.save(tmp_path / "run", 2, saved, group=rank, replicated="split")

    ThreadRanks(2).must(save)
    ckpt.copy(tmp_path / "run", target, 2, compress=True)
    for part, place in enumerate(ill):
        (packed,) = (places[place] / STEP / f"part-{part:05}").glob("*.packed")
        os.truncate(packed, packed.stat().st_size + size)
    loaded: Any = ckpt.load(target, resume=False)
    assert np.array_equal(loaded["w"], saved["w"])
    told = ckpt.verify(target)
    assert any(str(places[ill[0]]) in message for message in told), told
    for whole in {0, 1} - set(ill):
        assert not any(str(places[whole]) in message for message in told), told
    ckpt.copy(target, tmp_path / "back", 2)
    assert ckpt.verify(tmp_path / "back") == []
