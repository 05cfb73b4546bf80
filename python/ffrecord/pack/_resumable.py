"""A folder of parts that several processes pack, and that goes on where it was interrupted."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ffrecord._base import clock
from ffrecord._write.new_folder import MANIFEST, check_vacant, part_name, publish_folder
from ffrecord.pack._inputs import Inputs
from ffrecord.pack._job import Job
from ffrecord.pack._plan import Plan
from ffrecord.pack._summary import PackSummary
from ffrecord.pack._unit import FailedSamplesError
from ffrecord.pack._work import Progress, Task, Worker

# How often one looks whether another process has published; then this one does it. Looks are
# counted, not time: what this process does in between may take as long as it takes.
_PATIENCE_LOOKS = 50
_LOOK_S = 0.1


def pack_resumably(
    task: Task,
    inputs: Inputs,
    *,
    workers: int | None,
    on_ray: bool,
    replace: bool,
    retry_failed: bool,
    restart: bool,
    progress: Progress | None,
) -> PackSummary:
    """Do a task, with other processes that do the same; see `pack`.

    With `on_ray` the workers are tasks of the Ray cluster that this process is connected to.
    """
    found = _published(task.destination, task.plan)
    # A result that is to be made anew is not taken for its own result.
    old = None if found is None else _stamp_of(task.destination)
    if found is not None and not restart:
        task.job.remove_if_published()
        failures = _failures_in(found["units"])
        if not (failures and retry_failed):
            check_failures(failures, task.failures_max)
            return _summary(found["units"])
    check_vacant(task.destination, replace)
    job = task.job
    job.begin(restart=restart)
    if retry_failed:
        records = dict(_records(job))
        job.take_apart(_named(list(records.values())))
        job.forget([unit for unit, record in records.items() if record["failures"]])
    try:
        if on_ray:
            from ffrecord.pack._ray_workers import run_on_ray  # Brings Ray.

            run_on_ray(task, workers, progress)
        elif workers is None or workers == 1:
            Worker(task, inputs=inputs).run(progress)
        else:
            from ffrecord.pack._worker_processes import run_workers  # Brings multiprocessing.

            run_workers(task, workers, progress)
        return _summary(_publish(task, job, replace, old))
    except BaseException as error:
        if not job.remove_if_empty():
            error.add_note(f"what is done is kept in {job.folder}: repeat the command to continue")
        raise


def _records(job: Job) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((unit, job.record(unit)) for unit in job.done())


def _publish(
    task: Task, job: Job, replace: bool, old: tuple[int, int] | None
) -> list[dict[str, Any]]:
    """Make the result appear, once all units are done; return what was recorded of them.

    `old` is the stamp of a result that is to be replaced.
    """
    looks = 0
    while True:
        found = _published(task.destination, task.plan)
        if found is not None and _stamp_of(task.destination) != old:
            job.remove()
            return list(found["units"])
        try:
            if job.are_parts_taken():
                if looks > _PATIENCE_LOOKS:
                    job.recover_parts()
            elif _try_to_publish(task, job, replace):
                continue
        except FileNotFoundError:
            pass  # Another process publishes it, or has done so.
        if looks > 2 * _PATIENCE_LOOKS:
            raise OSError(
                f"{task.destination} could not be published: other processes change it, or do "
                "parts of it again; repeat the command"
            )
        looks += 1
        clock.sleep(_LOOK_S)


def _try_to_publish(task: Task, job: Job, replace: bool) -> bool:
    """Publish the result if it is whole; FileNotFoundError if another process was faster."""
    records = [record for _, record in _records(job)]
    if len(records) != len(task.plan.units):
        return False
    _check(task, records)
    job.put_together(_named(records))
    job.write_manifest(MANIFEST, _manifest(task.plan, records))
    # Two that swap the same folders would undo each other: only one has them.
    taken = job.take_parts()
    try:
        if is_whole := _published(taken, task.plan) is not None:
            publish_folder(taken, task.destination, replace)
    except BaseException:
        job.recover_parts()
        raise
    if not is_whole:
        job.recover_parts()
    return is_whole


def _check(task: Task, records: list[dict[str, Any]]) -> None:
    """Check that every sample of every input is accounted for.

    Raises:
        FailedSamplesError: too many failed.
        ValueError: no sample became a record.
    """
    for unit, record in enumerate(records):
        assert record["plan"] == task.plan.id
        assert [tuple(cut) for cut in record["cuts"]] == list(task.plan.units[unit])
        accounted = record["used"] + record["skipped"] + len(record["failures"])
        assert record["samples"] == accounted
    check_failures(_failures_in(records), task.failures_max)
    check_some(records)


def _failures_in(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [failure for record in records for failure in record["failures"]]


def check_failures(failures: Sequence[Mapping[str, Any]], failures_max: int) -> None:
    """Raise a FailedSamplesError if these are too many."""
    if len(failures) > failures_max:
        raise FailedSamplesError(
            f"{len(failures)} samples failed in the function given as map, and --max-failures is "
            f"{failures_max}; the first: {failures[0]}. --retry-failed does the parts "
            "with such samples again"
        )


def check_some(records: Sequence[Mapping[str, Any]]) -> None:
    """Raise a ValueError if nothing was packed."""
    if not any(record["files"] for record in records):
        raise ValueError(
            "the source has no samples: there is nothing to pack"
            if not any(record["samples"] for record in records)
            else "the function returned nothing for every sample: there is nothing to pack"
        )


def _named(records: list[dict[str, Any]]) -> Iterator[tuple[int, str, str]]:
    """Unit and name of each file, and the name of the part that it becomes."""
    files = [(unit, file["name"]) for unit, one in enumerate(records) for file in one["files"]]
    for number, (unit, name) in enumerate(files):
        yield unit, name, part_name(number, len(files))


def _manifest(plan: Plan, records: list[dict[str, Any]]) -> dict[str, Any]:
    names = iter([new for _, _, new in _named(records)])
    units = [
        {
            **{name: value for name, value in record.items() if name != "plan"},
            "files": [{**file, "name": next(names)} for file in record["files"]],
        }
        for record in records
    ]
    return {"plan_id": plan.id, **plan.as_json(), "units": units}


def _published(path: Path, plan: Plan) -> dict[str, Any] | None:
    """The manifest of the destination, if it is the whole result of this plan."""
    try:
        found = json.loads((path / MANIFEST).read_text())
        if found["plan_id"] != plan.id:
            return None
        for unit in found["units"]:
            for file in unit["files"]:
                if os.stat(path / file["name"]).st_size != file["file_size_bytes"]:
                    return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(found)


def _stamp_of(path: Path) -> tuple[int, int] | None:
    """Distinguishes a result from one that replaces it; None if there is none."""
    with suppress(OSError):
        found = os.stat(path / MANIFEST)
        return found.st_ino, found.st_mtime_ns
    return None


def _summary(units: list[dict[str, Any]]) -> PackSummary:
    summary = PackSummary()
    for unit in units:
        summary.add(unit)
    return summary
