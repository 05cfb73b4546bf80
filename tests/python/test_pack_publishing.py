"""A packed folder appears whole, once, and of one plan, wherever its processes are cut short.

Method: steps of publishing are interrupted, or another process acts between two of them; clocks,
inputs and plans change meanwhile.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import packing_functions
from ffrecord.errors import ConflictError
from ffrecord.pack import _job, _resumable, open_source, pack
from packing import PART, contents, records, write_classes

pytestmark = pytest.mark.wrong_data


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("files"))


def test_two_that_publish_at_once_do_not_undo_each_other(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is about to publish; another has published meanwhile, and is about to clear up."""
    pack(files, tmp_path / "new", part_size_bytes=PART)
    pack(files, tmp_path / "x", part_size_bytes=2 * PART)
    publish, remove = _resumable.publish_folder, _job.Job.remove  # type: ignore[attr-defined]
    options: dict[str, Any] = {"part_size_bytes": PART, "replace": True}

    def publish_late(parts: Path, path: Path, replace: bool) -> None:
        def remove_late(job: _job.Job) -> None:
            with suppress(OSError):
                publish(parts, path, replace)
            monkeypatch.setattr(_job.Job, "remove", remove)
            remove(job)

        monkeypatch.setattr(_resumable, "publish_folder", publish)
        monkeypatch.setattr(_job.Job, "remove", remove_late)
        monkeypatch.setattr(_resumable, "_PATIENCE_LOOKS", 3)
        pack(files, tmp_path / "x", **options)
        publish(parts, path, replace)

    monkeypatch.setattr(_resumable, "publish_folder", publish_late)
    pack(files, tmp_path / "x", **options)

    assert contents(tmp_path / "x") == contents(tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["new", "x"]


@pytest.mark.parametrize("step", ["put_together", "write_manifest", "take_parts", "remove"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_publishing_that_is_cut_short_is_finished_by_the_next(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    after: bool,
    replace: bool,
) -> None:
    pack(files, tmp_path / "wanted", part_size_bytes=PART)
    if replace:
        pack(files, tmp_path / "x", part_size_bytes=2 * PART)
    do = getattr(_job.Job, step)
    options: dict[str, Any] = {"part_size_bytes": PART, "replace": replace}

    def cut_short(*arguments: Any) -> None:  # noqa: ANN401
        if after:
            do(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(_job.Job, step, cut_short)
        pack(files, tmp_path / "x", **options)
    for lease in (tmp_path / ".x.packing").glob("*/leases/*"):
        os.utime(lease, (0, 0))
    pack(files, tmp_path / "x", **options)

    assert contents(tmp_path / "x") == contents(tmp_path / "wanted")
    assert sorted(os.listdir(tmp_path)) == ["wanted", "x"]


def test_parts_that_were_put_together_are_numbered_anew_after_failed_samples(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples of the first part fail at first; the destination is in the way then."""
    monkeypatch.setenv("FFRECORD_TEST_MARKS", str(tmp_path))
    options: dict[str, Any] = {
        "map": packing_functions.fails_until_marked,
        "schema": {"name": "utf8"},
        "part_size_bytes": PART,
        "max_failures": 100,
    }
    put = _job.Job.write_manifest

    def appears(*arguments: Any) -> None:  # noqa: ANN401
        put(*arguments)
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "x" / "PART_00000.ffr").touch()

    with monkeypatch.context() as changed, pytest.raises(ConflictError):
        changed.setattr(_job.Job, "write_manifest", appears)
        pack(files, tmp_path / "x", **options)
    (tmp_path / "marked").touch()
    pack(files, tmp_path / "x", retry_failed=True, replace=True, **options)

    wanted = [f"{path.parent.name}/{path.name}" for path in sorted(files.glob("*/*"))]
    assert [row["name"] for row in records(tmp_path / "x")] == wanted


def test_a_process_of_another_plan_does_not_touch_what_has_replaced_its_own(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands begin at the same time, with other options; the first has no unit yet."""
    begin = _job.Job.begin
    options: dict[str, Any] = {"part_size_bytes": PART}
    pack(files, tmp_path / "wanted", compress=True, **options)
    seen: list[Path] = []
    take = _job.Job.take

    def begin_both(job: _job.Job, *, restart: bool) -> None:
        begin(job, restart=restart)
        monkeypatch.setattr(_job.Job, "begin", begin)
        monkeypatch.setattr(_job.Job, "take", first_in_between)
        pack(files, tmp_path / "x", compress=True, **options)

    def first_in_between(job: _job.Job) -> "_job.Lease | None":
        if not seen:
            seen.append(job.folder)
            with suppress(OSError):  # The other goes on with its own plan.
                other = _job.Job(tmp_path / "x", first_plan[0])
                while (lease := take(other)) is not None:
                    with lease:
                        other.commit(lease.unit, lease.work, {"plan": "another", "failures": []})
        return take(job)

    first_plan: list[Any] = []
    init = _job.Job.__init__

    def keep_plan(job: _job.Job, destination: Path, plan: Any) -> None:  # noqa: ANN401
        first_plan.append(plan)
        init(job, destination, plan)

    monkeypatch.setattr(_job.Job, "begin", begin_both)
    monkeypatch.setattr(_job.Job, "__init__", keep_plan)
    monkeypatch.setattr(_resumable, "_PATIENCE_LOOKS", 3)
    with pytest.raises(OSError, match="could not be published: other processes"):
        pack(files, tmp_path / "x", **options)

    assert contents(tmp_path / "x") == contents(tmp_path / "wanted")


def test_a_lease_of_a_clock_that_was_wrong_is_not_held_for_ever(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = _job.Job.take

    def die(job: _job.Job) -> None:
        lease = take(job)
        assert lease is not None
        for path in job.folder.rglob("leases/*"):
            os.utime(path, (1 << 33, 1 << 33))
        raise KeyboardInterrupt

    with monkeypatch.context() as changed, pytest.raises(KeyboardInterrupt):
        changed.setattr(_job.Job, "take", die)
        pack(files, tmp_path / "x", part_size_bytes=PART)
    pack(files, tmp_path / "x", part_size_bytes=PART)

    assert len(records(tmp_path / "x")) == 300


def test_a_file_that_changes_between_listing_and_reading_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(100):
        (tmp_path / "a" / f"{number:02}").write_bytes(b"before")
    samples = open_source(tmp_path).samples()
    next(samples)
    (tmp_path / "a" / "99").write_bytes(b"after!")

    with pytest.raises(ValueError, match="99 was changed after it was listed"):
        list(samples)
