"""Packing samples to one file, or to a folder of parts, all or nothing."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_of
from pathlib import Path
from typing import Any, NamedTuple, cast

from ffrecord._base.destination import destination_path
from ffrecord._ffrecord import __version__
from ffrecord._tables.arrow_schema import of_columns, types_in
from ffrecord._write.new_folder import check_vacant, new_folder, part_name, widen_part_names
from ffrecord.pack import _places
from ffrecord.pack._inference import check_names
from ffrecord.pack._inputs import Inputs
from ffrecord.pack._looking import columns_before, columns_of
from ffrecord.pack._mapping import UserMap, mapping_of
from ffrecord.pack._plan import Plan, options_as_json, schema_as_json, units_of
from ffrecord.pack._recognise import open_source
from ffrecord.pack._resumable import check_failures, check_some, pack_resumably
from ffrecord.pack._rows import Rows, RowsSource
from ffrecord.pack._seen import Seen
from ffrecord.pack._shuffling import (
    ORIGIN,
    check_seed,
    halves,
    origin_of,
    remove_unshuffled,
    shuffled,
    shuffled_before,
    unshuffled_path,
    with_fates,
)
from ffrecord.pack._source import CLASSES, Facts, Progressed, Source
from ffrecord.pack._summary import PackSummary
from ffrecord.pack._table import TableSource
from ffrecord.pack._table_schema import kinds_of
from ffrecord.pack._unit import Rules, UnitWriter
from ffrecord.pack._work import Progress, Task, WriterOptions

# Size of a dictionary, the least and the most (format.md).
DICTIONARY_BYTES = (1024, 16 << 20)
# Size of parts, if nothing else is asked for; parts of smaller inputs are smaller, so many at
# least.
PART_BYTES, _PART_BYTES_MIN, _PARTS = 1 << 30, 64 << 20, 64
_SEVERAL = (
    "several workers pack from paths into a folder: give paths, and a destination whose name does "
    "not end in .ffr"
)


def pack(
    source: Source | str | os.PathLike[str] | Sequence[str] | Rows,
    destination: str | os.PathLike[str],
    *,
    map: Any = None,  # noqa: ANN401 - as such functions are called everywhere
    schema: Any = None,  # noqa: ANN401 - a mapping, or a schema of pyarrow
    workers: int | None = None,
    ray: str | None = None,
    max_failures: int = 0,
    retry_failed: bool = False,
    restart: bool = False,
    compress: bool = False,
    dictionary_bytes: int = 0,
    part_size_bytes: int | None = None,
    shuffle: int | None = None,
    replace: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Write all samples of `source`; the result appears only when it is complete and durable.

    A folder that is packed from paths is planned first, from the inputs alone, and written part by
    part in `.NAME.packing` beside it. Any number of processes may do that: `workers`, and others
    that call this with the same arguments, also on other hosts that share the folder. After a kill
    or an error the same call continues; the bytes of the result are always the same. Everything
    else is written in one go, by this process.

    Args:
        source: paths, or what `open_source` returned, or any object with the attributes of
            `Source`; or a table of Arrow; or an iterable of rows (dicts, or bytes for records
            without columns), or a function without arguments that returns one.
        destination: `*.ffr` is one file; another name is a folder of `PART_00000.ffr` and so on,
            with a list of what came from where (`PACKED.json`) if it was packed from paths.
        map: a function of one sample, or its name `module:function`, or a class whose objects are
            called, one made in each process; or one of `ffrecord.pack.maps`, or its name and
            arguments, such as `"resize(256)"`; or a list of them, called one after the other. It
            gets a dict (bytes for records without columns), and returns None to leave the sample
            out, a dict, or an iterable of dicts.
        schema: the columns that `map` returns, or without `map` those of an iterable of rows; by
            default the attribute `schema` of `map`, else what the first rows have.
        workers: processes to use; other than 1 for a folder that is packed from paths only. By
            default 1, or with `ray` one for each CPU of the cluster.
        ray: the address of a Ray cluster, as `ray.init` takes it, such as "auto": the workers are
            tasks of it, and this process waits for them. All its nodes see `destination`, and the
            paths of the source, under the same names, and have the same ffrecord. A program that is
            connected to a cluster uses that one.
        max_failures: how many samples may fail in `map`; they are listed in the summary.
        retry_failed: of an interrupted packing, do the parts again in which samples failed.
        restart: forget an interrupted packing instead of continuing it; with `replace`, also make a
            result anew that is there.
        compress: compress each record with zstd.
        dictionary_bytes: size of a dictionary to train for each file, for small, similar records;
            0 for none. Implies compression.
        part_size_bytes: the size of inputs, or the raw size of records, that make a part. By
            default 1 GiB; of inputs that are packed from paths into a folder a 64th, but at least
            64 MiB, so that each of several workers has parts.
        shuffle: a seed: all records are put in an order that it gives, which is the same for the
            same seed and samples. They are packed to `.NAME.unshuffled` first, so that needs the
            room of the result twice, and little memory.
        replace: replace an existing file, or a folder with nothing in it but what packing made.
        key: the column, utf8 or bytes, by which samples are found (`Reader.find`); without it the
            source decides: names of files, and the keys that records of record files had.
        progress: called with the number of source bytes that were processed.

    Raises:
        ConflictError: the destination exists and may not be replaced, or an interrupted packing to
            it had other inputs, options or another function.
        ValueError: there is nothing to pack, the source is invalid, or too many samples failed.
        TypeError: `source` has no schema, no samples, or yields something else than pairs.
        WorkerDiedError: several processes were killed by the same input.
        CorruptionError: the source is damaged.
        ImportError: Ray is not installed, and `ray` names a cluster.
        OSError: the source cannot be read, or the destination cannot be written; or there is no
            such cluster, or one of its nodes does not see the destination.
    """
    if part_size_bytes is not None:
        check_least(part_size_bytes, 1, "a part has at least one byte")
    check_least(max_failures, 0, "max_failures is at least 0")
    if workers is not None:
        check_least(workers, 1, "there is at least one worker")
    run = _Run(
        workers=workers,
        on_ray=ray is not None,
        max_failures=max_failures,
        retry_failed=retry_failed,
        restart=restart,
        part_size_bytes=part_size_bytes,
    )
    with _cluster(ray):
        if shuffle is not None:
            return _pack_shuffled(
                source,
                destination,
                check_seed(shuffle),
                run,
                _Stored(compress, dictionary_bytes, replace),
                map=map,
                schema=schema,
                key=key,
                progress=progress,
            )
        asked = Conversion(
            source,
            destination,
            map=map,
            schema=schema,
            are_several=run.are_several,
            compress=compress,
            dictionary_bytes=dictionary_bytes,
            key=key,
            restart=restart,
        )
        return run.pack(asked, replace=replace, progress=progress)


def _cluster(address: str | None) -> AbstractContextManager[None]:
    """The connection to a Ray cluster, if there is an address: before all that takes its time."""
    if address is None:
        return nullcontext()
    from ffrecord.pack._ray_workers import connected  # Brings multiprocessing.

    return connected(address)


class _Stored(NamedTuple):
    """How the result is stored."""

    compress: bool
    dictionary_bytes: int
    replace: bool


@dataclass(frozen=True)
class _Run:
    """How a packing is done; see `pack`."""

    workers: int | None
    on_ray: bool
    max_failures: int
    retry_failed: bool
    restart: bool
    part_size_bytes: int | None

    @property
    def are_several(self) -> bool:
        """Whether the workers are others than this process."""
        return self.on_ray or (self.workers or 1) > 1

    def pack(
        self,
        asked: "Conversion",
        *,
        replace: bool,
        progress: Progress | None,
        origin: Mapping[str, Any] | None = None,
    ) -> PackSummary:
        """Do it; `origin` says in the plan what was shuffled."""
        if asked.inputs is None:
            single = _Single(asked, self.max_failures, progress)
            return single.pack(replace, self.part_size_bytes or PART_BYTES)
        summary = pack_resumably(
            self.task(asked, origin),
            asked.inputs,
            workers=self.workers,
            on_ray=self.on_ray,
            replace=replace,
            retry_failed=self.retry_failed,
            restart=self.restart,
            progress=progress,
        )
        summary.classes = asked.opened.classes
        return summary

    def task(self, asked: "Conversion", origin: Mapping[str, Any] | None = None) -> Task:
        """The work of workers, which know it from this alone."""
        assert asked.inputs is not None
        if asked.user_map is not None:
            asked.user_map.look(asked.inputs)
        return Task(
            destination=asked.path,
            plan=_plan(
                asked.inputs,
                asked.writing,
                asked.metadata,
                asked.columns,
                asked.user_map,
                self.part_size_bytes or _input_of_a_part(asked.inputs.size_bytes),
                origin,
            ),
            options=asked.inputs.options,
            user_map=asked.user_map,
            writing=asked.writing,
            metadata=asked.metadata,
            file_size_bytes=self.part_size_bytes or PART_BYTES,
            failures_max=self.max_failures,
            paths=asked.inputs.paths,
            addresses=_places.addresses_of(asked.inputs.paths),
            seen=asked.seen,
        )


def _pack_shuffled(
    source: Any,  # noqa: ANN401 - see `pack`
    destination: str | os.PathLike[str],
    seed: int,
    run: _Run,
    stored: _Stored,
    *,
    map: Any,  # noqa: ANN401
    schema: Any,  # noqa: ANN401
    key: str | None,
    progress: Progress | None,
) -> PackSummary:
    """Pack the samples as they come, and then their records in the order of a seed."""
    path, unshuffled = destination_path(destination), unshuffled_path(destination)
    if run.are_several and path.suffix == ".ffr":
        raise ValueError(_SEVERAL)
    first = Conversion(
        source,
        unshuffled,
        map=map,
        schema=schema,
        are_several=run.are_several,
        compress=False,
        dictionary_bytes=0,
        key=key,
        restart=run.restart,
    )
    task = None if first.inputs is None else run.task(first)
    origin = {} if task is None else origin_of(task.plan)
    form = (stored.compress or stored.dictionary_bytes > 0, stored.dictionary_bytes)
    found = None if task is None else shuffled_before(path, origin, form, seed)
    is_asked_again = found is not None and bool(found.failures) and run.retry_failed
    if found is not None and not (run.restart or is_asked_again):
        check_failures(found.failures, run.max_failures)
        remove_unshuffled(destination)
        found.classes = first.opened.classes
        return found
    check_vacant(path, stored.replace)
    first_half, second_half = halves(progress, first.opened.size_bytes)
    before = run.pack(first, replace=True, progress=first_half)
    try:
        records = shuffled(unshuffled, seed, f"unshuffled {origin.get('plan_id', '')[:16]}")
        second = Conversion(
            records,
            destination,
            map=None,
            schema=None,
            are_several=run.are_several,
            compress=stored.compress,
            dictionary_bytes=stored.dictionary_bytes,
            key=None,
        )
        summary = replace_of(run, retry_failed=False).pack(
            second,
            replace=stored.replace,
            progress=lambda done: second_half(done, second.opened.size_bytes),
            origin=with_fates(origin, before),
        )
    except FileNotFoundError:  # Another process has done it, and removed what was shuffled.
        found = None if task is None else shuffled_before(path, origin, form, seed)
        if found is None:
            raise
        summary = found
    remove_unshuffled(destination)
    summary.skipped, summary.failures = before.skipped, before.failures
    summary.classes = first.opened.classes
    return summary


def _input_of_a_part(total_bytes: int) -> int:
    """How much of the inputs makes a part, if nobody says it: it depends on nothing but them."""
    return min(max(total_bytes // _PARTS, _PART_BYTES_MIN), PART_BYTES)


class Conversion:
    """A source, a destination and the columns between them, from the arguments of `pack`."""

    inputs: Inputs | None
    """The inputs of a folder that is packed from paths; else None."""

    def __init__(
        self,
        source: Any,  # noqa: ANN401 - see `pack`, for all arguments
        destination: str | os.PathLike[str],
        *,
        map: Any,  # noqa: ANN401
        schema: Any,  # noqa: ANN401
        are_several: bool,
        compress: bool,
        dictionary_bytes: int,
        key: str | None,
        restart: bool = False,
    ) -> None:
        """Open the source, and find the columns; see `pack` for errors.

        With `are_several` other processes are the workers, so it must be a folder from paths.
        """
        least, most = DICTIONARY_BYTES
        if dictionary_bytes and not least <= dictionary_bytes <= most:
            raise ValueError(f"a dictionary has {least} to {most} bytes, not {dictionary_bytes}")
        self.user_map = user_map = mapping_of(map)
        is_known = hasattr(source, "samples") or is_paths(source) or is_table(source)
        if schema is not None and user_map is None and is_known:
            raise ValueError("schema says what map returns; without map, columns are the source's")
        self.opened = opened = Facts(_opened(source, None if user_map else schema))
        self.path = destination_path(destination)
        self.inputs = None if self.path.suffix == ".ffr" else opened._inputs
        if are_several and self.inputs is None:
            raise ValueError(_SEVERAL)
        self._skipped: Counter[str] = Counter()
        self._read = opened if opened._inputs is None else opened._inputs
        if user_map is not None and self._read.give_values is not None:
            self._read.give_values()  # Values of a user's columns, not as they are stored.
        samples = (
            opened.samples() if self._read is opened else self._read.all_samples(self._skipped)
        )
        self.columns: Any = opened.schema
        self.seen = Seen()
        own = opened.metadata
        before = None
        if user_map is not None and self.inputs is not None and schema is None and not restart:
            before = columns_before(self.path, self.inputs, user_map)
        if before is not None:
            self.columns, own = before
        elif user_map is not None:
            looked = columns_of(user_map, schema, samples, opened)
            self.columns, samples, passed, self.seen = looked
            own = of_columns(own, passed)
        if isinstance(self.columns, Mapping) and (user_map or not opened._names_are_stored):
            check_names(self.columns, user_map.name if user_map else opened.name)
        self.samples: Iterator[Progressed] = samples
        """All of them; single use."""
        own_key = opened.key if user_map is None else _kept(opened.key, self.columns)
        self.metadata = {**types_in({} if user_map else opened.types), **own}
        if opened.classes and CLASSES not in self.metadata:
            self.metadata[CLASSES] = json.dumps(opened.classes).encode()
        self.writing = WriterOptions(
            compress=compress or dictionary_bytes > 0,
            dictionary_bytes=dictionary_bytes,
            key=key or own_key,
            takes_empty_keys=opened.takes_empty_keys and key is None,
        )

    @property
    def left_out(self) -> Counter[str]:
        """The count of what the source has left out so far, by reason."""
        own = self.opened.skipped if self._read is self.opened else self._skipped
        return Counter() if own is None else own

    def give_files(self) -> None:
        """Let the writer read files, where the source has values in files; see `InFiles`."""
        if self._read.give_files is not None:
            self._read.give_files()

    def unit(
        self,
        path_of: Callable[[int], Path],
        size_bytes: int,
        max_failures: int,
        *,
        replace: bool = False,
    ) -> UnitWriter:
        """The writer of samples in one go, to files of that size."""
        function = None if self.user_map is None else self.user_map.made()
        return UnitWriter(
            path_of,
            lambda path: self.writing.new_writer(
                path, self.columns, self.metadata, replace=replace
            ),
            Rules(
                function,
                max_failures,
                size_bytes,
                takes_keys=self.writing.key is True,
            ),
        )


def _opened(source: Any, schema: Any) -> Source:  # noqa: ANN401 - see `pack`
    """The source, of whatever `pack` is given."""
    if is_paths(source):
        return open_source(source)
    if is_table(source):
        return TableSource(source)
    if hasattr(source, "samples") or hasattr(source, "schema"):
        return cast(Source, source)
    is_iterable = callable(source) or hasattr(source, "__iter__") or hasattr(source, "__getitem__")
    return RowsSource(source, schema) if is_iterable else cast(Source, source)


def is_paths(source: Any) -> bool:  # noqa: ANN401
    """Whether it is a path, or a list of paths, which may be empty."""
    if isinstance(source, str | os.PathLike):
        return True
    is_list = isinstance(source, Sequence) and not isinstance(source, bytes | bytearray)
    return is_list and (not source or isinstance(source[0], str | os.PathLike))


def is_table(source: Any) -> bool:  # noqa: ANN401
    """Whether it shows its data as Arrow does."""
    return hasattr(source, "__arrow_c_stream__") and not hasattr(source, "samples")


def check_least(value: int, least: int, rule: str) -> None:
    """Raise a ValueError, which gives the rule, for a value below."""
    if value < least:
        raise ValueError(f"{rule}, not {value}")


def _kept(key: Any, columns: Any) -> Any:  # noqa: ANN401 - see `Source.key`
    """The key of a source, if a function has kept its column."""
    if key is True:
        return key  # Not one of the columns: it stays with the record.
    if not isinstance(key, str):
        return None
    if isinstance(columns, Mapping):
        return key if columns.get(key) in ("utf8", "bytes") else None
    kind = kinds_of(columns).get(key)
    return key if kind is not None and kind.is_text else None


def _plan(
    inputs: Inputs,
    writing: WriterOptions,
    metadata: dict[str, bytes],
    columns: Any,  # noqa: ANN401 - a mapping, or a schema of pyarrow
    user_map: UserMap | None,
    part_size_bytes: int,
    origin: Mapping[str, Any] | None,
) -> Plan:
    asked = {
        "version": __version__,
        "options": options_as_json(inputs.options),
        "writing": asdict(writing),
        "metadata": {name: value.hex() for name, value in metadata.items()},
        "schema": schema_as_json(columns),
        "function": None if user_map is None else user_map.name,
        "function's code": None if user_map is None else user_map.identity,
        "part_size_bytes": part_size_bytes,
        **({} if origin is None else {ORIGIN: dict(origin)}),
    }
    units = units_of(inputs.cuts(part_size_bytes), part_size_bytes)
    return Plan(tuple(inputs.list_all()), units, asked)


class _Single:
    """Packs samples that can be read once, in one go."""

    def __init__(self, asked: Conversion, failures_max: int, progress: Progress | None) -> None:
        self._asked = asked
        self._failures_max = failures_max
        self._progress = progress or (lambda _: None)

    def pack(self, replace: bool, part_size_bytes: int) -> PackSummary:
        path = self._asked.path
        check_vacant(path, replace)
        if path.suffix == ".ffr":
            return self._written(lambda _: path, sys.maxsize, replace)
        with new_folder(path, replace) as folder:
            summary = self._written(
                lambda number: folder / part_name(number), part_size_bytes, False
            )
            widen_part_names(folder, summary.file_count)
        return summary

    def _written(
        self, path_of: Callable[[int], Path], size_bytes: int, replace: bool
    ) -> PackSummary:
        asked, opened = self._asked, self._asked.opened
        unit = asked.unit(path_of, size_bytes, self._failures_max, replace=replace)
        if asked.user_map is None:
            asked.give_files()
        unit.write_all(asked.samples, opened.name, self._progress)
        unit.tally.left_out.update(asked.left_out)
        tally = unit.close()
        check_some([tally.as_json()])
        summary = PackSummary(classes=opened.classes)
        summary.add(tally.as_json())
        return summary
