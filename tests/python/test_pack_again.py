"""Goal: a packing that is repeated makes what it was asked for, not what an earlier one was.

Method: folders are packed, damaged or with samples that fail, and packed again with other rules.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import packing_functions
from ffrecord.errors import ConflictError
from ffrecord.pack import FailedSamplesError, _destination, pack
from packing import PART, contents, records, write_classes

pytestmark = pytest.mark.wrong_data


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("files"))


@pytest.fixture
def marks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where functions leave marks, and look for them."""
    folder = tmp_path_factory.mktemp("marks")
    monkeypatch.setenv("FFRECORD_TEST_MARKS", str(folder))
    return folder


def ends(*_: object) -> None:
    """In place of the second half of a shuffle."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("shuffle", [None, 3])
def test_restart_with_overwrite_makes_a_damaged_result_anew(
    files: Path, tmp_path: Path, shuffle: int | None
) -> None:
    """Of the same plan: the old one is not taken for the result of the new run."""
    options: dict[str, Any] = {"part_size_bytes": PART, "shuffle": shuffle}
    pack(files, tmp_path / "x", **options)
    whole = contents(tmp_path / "x")
    damaged = tmp_path / "x" / "PART_00000.ffr"
    damaged.write_bytes(bytes(len(damaged.read_bytes())))

    pack(files, tmp_path / "x", restart=True, replace=True, **options)

    assert contents(tmp_path / "x") == whole
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("shuffle", [None, 3])
def test_samples_that_failed_in_an_earlier_run_count_in_a_stricter_one(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: int | None
) -> None:
    """A shuffle is interrupted when the result of its first half is there."""
    options: dict[str, Any] = {"map": packing_functions.fails_at_5, "part_size_bytes": PART}
    options["shuffle"] = shuffle
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(_destination, "shuffled", ends)
        pack(files, tmp_path / "x", max_failures=30, **options)

    with pytest.raises(FailedSamplesError, match="30 samples failed"):
        pack(files, tmp_path / "x", max_failures=29, **options)
    summary = pack(files, tmp_path / "x", max_failures=30, **options)

    assert len(summary.failures) == 30
    assert len(records(tmp_path / "x")) == 270


@pytest.mark.parametrize("shuffle", [None, 3])
def test_samples_that_failed_in_an_earlier_run_are_tried_again_on_request(
    files: Path, tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch, shuffle: int | None
) -> None:
    options: dict[str, Any] = {"map": packing_functions.fails_once, "part_size_bytes": PART}
    options |= {"max_failures": 300, "shuffle": shuffle}
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(_destination, "shuffled", ends)
        pack(files, tmp_path / "x", **options)
    if shuffle is None:
        with pytest.raises(ConflictError, match="--overwrite"):
            pack(files, tmp_path / "x", retry_failed=True, **options)

    is_there = shuffle is None
    summary = pack(files, tmp_path / "x", retry_failed=True, replace=is_there, **options)

    assert not summary.failures
    assert len(records(tmp_path / "x")) == 300


def test_samples_that_failed_before_a_shuffle_are_known_of_its_result(
    files: Path, tmp_path: Path, marks: Path
) -> None:
    """The result is of records: what became of samples is known of its first half alone."""
    options: dict[str, Any] = {"map": packing_functions.fails_while_marked, "shuffle": 3}
    options["part_size_bytes"] = PART
    (marks / "fails").touch()
    failed = pack(files, tmp_path / "x", max_failures=300, **options).failures
    assert len(failed) == 30
    assert pack(files, tmp_path / "x", max_failures=300, **options).failures == failed
    with pytest.raises(FailedSamplesError, match="30 samples failed"):
        pack(files, tmp_path / "x", max_failures=29, **options)
    with pytest.raises(ConflictError, match="--overwrite"):
        pack(files, tmp_path / "x", retry_failed=True, **options)

    (marks / "fails").unlink()
    summary = pack(files, tmp_path / "x", retry_failed=True, replace=True, **options)

    assert not summary.failures
    assert len(records(tmp_path / "x")) == 300
    assert os.listdir(tmp_path) == ["x"]
