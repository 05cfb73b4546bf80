"""Doing the units of a job, in this process: what every worker does until all are done."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffrecord._base import clock
from ffrecord._write.writer import Writer
from ffrecord.pack import _places
from ffrecord.pack._inputs import Inputs
from ffrecord.pack._job import Job, Lease
from ffrecord.pack._mapping import UserMap
from ffrecord.pack._plan import Plan, schema_from_json
from ffrecord.pack._seen import Seen
from ffrecord.pack._source import SourceOptions
from ffrecord.pack._table_schema import TableSchema
from ffrecord.pack._unit import Rules, UnitWriter

Progress = Callable[[int], None]

# Between two looks whether a unit that others hold has become free.
_LOOK_S = 0.2


@dataclass(frozen=True)
class WriterOptions:
    """Options of each file that is written, as plain values."""

    compress: bool = False
    dictionary_bytes: int = 0
    key: Any = None
    takes_empty_keys: bool = False

    def new_writer(
        self,
        path: Path,
        schema: Any,  # noqa: ANN401 - a mapping, or a schema of pyarrow
        metadata: Mapping[str, bytes],
        *,
        replace: bool = False,
        file_id: bytes = b"",
    ) -> Writer:
        """Begin a file."""
        if isinstance(schema, TableSchema):
            schema = schema.encoder()
        writer = Writer(
            path,
            schema,
            compress="zstd" if self.compress else None,
            replace=replace,
            dictionary=self.dictionary_bytes or None,
            key=self.key,
            metadata=metadata,
            file_id=file_id,
        )
        if self.takes_empty_keys:
            writer._allow_empty_keys()
        return writer


@dataclass(frozen=True)
class Task:
    """All that a worker must know; can be sent to another process."""

    destination: Path
    plan: Plan
    options: SourceOptions
    """As the inputs are opened."""
    user_map: UserMap | None
    writing: WriterOptions
    metadata: Mapping[str, bytes]
    file_size_bytes: int
    failures_max: int
    paths: tuple[str, ...]
    """The options of the inputs."""
    addresses: Mapping[str, str]
    """Facts about inputs that are not in their paths; see `addresses_of`."""
    seen: Seen
    """Results of the function for the first samples."""

    @property
    def job(self) -> Job:
        """The folder where the work is shared."""
        return Job(self.destination, self.plan)


class Worker:
    """Does units until there are none."""

    def __init__(
        self,
        task: Task,
        *,
        inputs: Inputs | None = None,
        leases: Callable[[Lease], None] | None = None,
    ) -> None:
        """Open the first input; `leases` is called with each lease that is taken."""
        self._task = task
        self._job = task.job
        self._schema = schema_from_json(task.plan.asked["schema"])
        self._inputs = inputs or self._opened()
        if task.user_map is None:
            self._inputs.give_files()
        else:
            self._inputs.give_values()
        self._function = None if task.user_map is None else task.user_map.made()
        self._tell = leases or (lambda _: None)

    def _opened(self) -> Inputs:
        """The inputs, without another look at the columns of all."""
        _places.forget()
        _places.learn(self._task.addresses)
        is_of_inputs = isinstance(self._schema, TableSchema) and self._task.user_map is None
        known = self._schema if is_of_inputs else None
        options = self._task.options._replace(known=known)
        names = [one.path for one in self._task.plan.inputs]
        return Inputs(self._task.paths, options, names, self._task.plan.inputs)

    def run(self, progress: Progress | None = None) -> None:
        """Do what others leave; return when every unit is done, here or elsewhere."""
        while self._job.pending():
            lease = self._job.take()
            if lease is None:
                clock.sleep(_LOOK_S)
                continue
            self._tell(lease)
            behind = self._job.done_bytes() if progress else 0

            def note(done: int, behind: int = behind) -> None:
                if progress is not None:
                    progress(behind + done)

            self._do(lease, note)

    def _do(self, lease: Lease, progress: Progress) -> None:
        with lease:
            if not lease.is_mine():
                return  # Another process took it from the same dead one, a moment later.
            try:
                record = self._written(lease, progress)
                self._job.commit(lease.unit, lease.work, record)
            except OSError:
                # Another process took this one for dead, and removed what it had.
                if not lease.is_mine() or self._job.is_done(lease.unit):
                    return
                raise

    def _written(self, lease: Lease, progress: Progress) -> dict[str, Any]:
        task = self._task
        unit = UnitWriter(
            lambda number: lease.work / f"{number}.ffr",
            self._new_writer(lease.unit),
            Rules(
                self._function,
                task.failures_max - self._failed(),
                task.file_size_bytes,
                task.seen,
                takes_keys=task.writing.key is True,
            ),
        )
        behind = 0
        cuts = task.plan.units[lease.unit]
        for cut in cuts:
            planned = task.plan.inputs[cut.input]

            def note(done_bytes: int, behind: int = behind) -> None:
                lease.done_bytes = behind + done_bytes
                progress(lease.done_bytes)

            samples = self._inputs.samples_of(cut, unit.tally.left_out)
            unit.write_all(samples, planned.path, note, cut.first, cut.input)
            behind += cut.size_bytes
        tally = unit.close()
        return {"plan": task.plan.id, "cuts": [list(cut) for cut in cuts], **tally.as_json()}

    def _new_writer(self, unit: int) -> Callable[[Path], Writer]:
        """Begin files whose bytes do not depend on who writes them, and when."""

        def begin(path: Path) -> Writer:
            text = f"{self._task.plan.id} {unit} {path.name}"
            file_id = hashlib.sha256(text.encode()).digest()[:16]
            task = self._task
            return task.writing.new_writer(path, self._schema, task.metadata, file_id=file_id)

        return begin

    def _failed(self) -> int:
        """Samples that failed in the units that are done."""
        if self._task.user_map is None:
            return 0
        failed = 0
        with suppress(OSError):
            failed = sum(len(self._job.record(unit)["failures"]) for unit in self._job.done())
        return failed
