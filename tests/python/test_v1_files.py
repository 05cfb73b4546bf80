"""Goal: every version 1 file of tests/data, good and damaged, is read or refused as it must be.

Method: its manifest says for each case what a reader must do.
"""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import ffrecord

pytestmark = pytest.mark.wrong_data

FOLDER = Path(__file__).resolve().parents[1] / "data" / "ffrecord-v1"
CASES: dict[str, dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())


def read_digests(reader: ffrecord.Reader) -> dict[int, tuple[int, str]]:
    """Size and SHA-256 of each good record, by index."""
    batch = reader.read(range(len(reader)), on_corrupt="keep")
    return {
        i: (len(record), hashlib.sha256(record).hexdigest())
        for i, record in enumerate(batch.records())
        if batch.status[i] == 0
    }


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_file_is_read_or_refused_as_its_manifest_says(name: str, salvage: bool) -> None:
    case = CASES[name]
    files = [FOLDER / file for file in case["files"]]
    wanted = {i: (s["size"], s["sha256"]) for i, s in enumerate(case["samples"])}
    reader = ffrecord.open(files, salvage=salvage)
    expected, _, spoilt = case["expect"].partition(":")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = read_digests(reader)
        except ffrecord.CorruptionError as error:
            assert expected in ("error", "error_or_corrupt")
            assert name in str(error)
            return

    if expected == "ok":
        assert found == wanted
    elif expected == "error":
        # Salvaged, or a trailer that plain reads do not look at: records may be missing, not wrong.
        assert salvage or name == "packed_evil"
        assert all(wanted.get(i) == digest for i, digest in found.items()) or not wanted
    else:
        assert expected in ("corrupt", "error_or_corrupt")
        assert found == {i: d for i, d in wanted.items() if i != int(spoilt)}


def test_a_folder_is_its_parts_in_code_point_order() -> None:
    parts = ffrecord.open([FOLDER / file for file in CASES["folder"]["files"]])

    folder = ffrecord.open(FOLDER / "folder")

    assert read_digests(folder) == read_digests(parts)
    assert [Path(file.name).name for file in folder.files] == ["10.ffr", "9.ffr", "B.ffr", "a.ffr"]


def test_an_old_file_warns_once() -> None:
    reader = ffrecord.open(FOLDER / "old.ffr")

    with pytest.warns(UserWarning, match=r"old\.ffr"):
        reader[2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader[3]


def test_a_spoilt_record_names_itself_and_spares_the_others() -> None:
    reader = ffrecord.open(FOLDER / "bad_sample.ffr")

    with pytest.raises(ffrecord.CorruptionError, match=r"bad_sample\.ffr.*11"):
        reader[11]
    assert len(reader.read(range(30), on_corrupt="skip")) == 29


def test_nothing_runs_when_a_hostile_trailer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("file content was unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)

    assert len(list(ffrecord.open(FOLDER / "packed_evil.ffr"))) > 0
