"""Comparing what was packed with its source, once more: `PACKED.json` says what came from where."""

import json
import os
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ffrecord._base.destination import destination_path
from ffrecord._read.reader import Reader
from ffrecord._read.reader import open as open_records
from ffrecord._tables.arrow_schema import without_facts
from ffrecord._write.new_folder import MANIFEST
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._inputs import Cut, Input, Inputs
from ffrecord.pack._mapping import UserMap, mapping_of
from ffrecord.pack._plan import VERSION, Plan, schema_from_json
from ffrecord.pack._shuffling import ORIGIN
from ffrecord.pack._source import SourceOptions
from ffrecord.pack._table_schema import TableSchema
from ffrecord.pack._unit import NewWriter, Rules, Tally, UnitWriter
from ffrecord.pack._work import WriterOptions

_OURS = "ffrecord.pack.maps."
# The records that are made again take so many bytes of the disk at a time.
_FILE_BYTES = 64 << 20
_STEP = 1024
_SHOWN_MAX = 100


@dataclass
class SourceReport:
    """The findings of a comparison with the source."""

    record_count: int = 0
    """Records that were compared."""
    gone: tuple[str, ...] = ()
    """Inputs that are not there any more."""
    changed: tuple[str, ...] = ()
    """Inputs with another size, time or version than when they were packed."""
    difference_count: int = 0
    """Differences between what was packed and what the inputs make now, and parts that could not be
    compared."""
    differences: tuple[str, ...] = ()
    """The first hundred of them: input, sample and column."""

    @property
    def is_same(self) -> bool:
        """Whether all records are what their inputs make now."""
        return not self.gone and not self.difference_count


class _Packed:
    """A folder that was packed, as its list describes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / MANIFEST
        if not folder.is_dir() or not path.exists():
            raise ValueError(
                f"{folder} has no {MANIFEST}, which says what came from where: only folders that "
                "were packed from paths have it"
            )
        try:
            found = json.loads(path.read_text())
            if found["version"] != VERSION:
                raise ValueError(
                    f"{path} is of version {found['version']}: compare with the ffrecord that "
                    "packed it"
                )
            inputs = tuple(Input(*one) for one in found["inputs"])
            units = tuple(tuple(Cut(*cut) for cut in unit["cuts"]) for unit in found["units"])
            self.plan = Plan(inputs, units, found["asked"])
            self.units: list[dict[str, Any]] = found["units"]
            is_whole = self.plan.id == found["plan_id"]
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError):
            is_whole = False
        if not is_whole:
            raise CorruptionError(f"{path} is not as packing wrote it: pack the source again")

    @property
    def asked(self) -> Mapping[str, Any]:
        return self.plan.asked

    @property
    def schema(self) -> Any:  # noqa: ANN401 - a mapping, or a schema of pyarrow
        return schema_from_json(self.asked["schema"])

    @property
    def metadata(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(value) for name, value in self.asked["metadata"].items()}

    @property
    def options(self) -> SourceOptions:
        values = dict(self.asked["options"])
        values["cast"] = [tuple(pair) for pair in values["cast"]]
        plain: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
        }
        known = self.schema if isinstance(self.schema, TableSchema) else None
        return SourceOptions(**plain)._replace(known=None if self.asked["function"] else known)

    def files_of(self, unit: int) -> list[Path]:
        names = [str(file["name"]) for file in self.units[unit]["files"]]
        if any(os.path.basename(name) != name for name in names):
            raise CorruptionError(f"{self.folder / MANIFEST} names files outside of its folder")
        return [self.folder / name for name in names]


def verify_source(
    where: str | os.PathLike[str],
    *,
    map: Any = None,  # noqa: ANN401 - as `pack`
    progress: Callable[[int, int], None] | None = None,
) -> SourceReport:
    """Read the inputs of a packed folder again, and compare what they make with what is in it.

    Every record, key, column and count is compared, and record files that packing did not make are
    differences; `ffrecord.verify` checks the files themselves.
    Records are made again on the disk for temporary files, 64 MiB of them at a time.

    Args:
        where: a folder that `pack` made from paths.
        map: the function with which it was packed, if that took arguments; others are found by the
            name in the list.
        progress: called with the bytes of inputs that are behind, and of all.

    Raises:
        ValueError: it is no such folder, or `map` is another function than that of the packing.
        CorruptionError: the list of the folder is damaged.
        OSError: an input cannot be read.
    """
    return _Comparison(_Packed(destination_path(where)), map, progress).run()


class _Comparison:
    def __init__(self, packed: _Packed, map_: Any, progress: Any) -> None:  # noqa: ANN401
        self._packed = packed
        self._map = map_
        self._progress = progress or (lambda _done, _all: None)
        self._found: list[str] = []
        self._count = 0
        self._records = 0

    def run(self) -> SourceReport:
        plan = self._packed.plan
        if ORIGIN in self._packed.asked:
            raise ValueError(
                f"{self._packed.folder} was shuffled, and only packings in the order of their "
                "source are compared with it"
            )
        _places.forget()
        _places.remember(one.path for one in plan.inputs if _places.is_address(one.path))
        gone = [one.path for one in plan.inputs if not _places.exists(one.path)]
        changed: list[str] = []
        if plan.inputs[0].path in gone:
            self.tell("nothing was compared: the first input says what columns there are")
        else:
            self._inputs = Inputs([one.path for one in plan.inputs], self._packed.options)
            changed, unlike = self._changed(gone)
            function = self._function(changed)
            self._compare_all({*gone, *unlike}, function)
        self._name_others()
        return SourceReport(
            record_count=self._records,
            gone=tuple(gone),
            changed=tuple(changed),
            difference_count=self._count,
            differences=tuple(self._found),
        )

    def _name_others(self) -> None:
        """Tell of record files that readers find in the folder, and that no input made."""
        units = range(len(self._packed.units))
        listed = {path.name for unit in units for path in self._packed.files_of(unit)}
        for name in sorted(os.listdir(self._packed.folder)):
            if name.endswith(".ffr") and name not in listed:
                self.tell(f"{name} is in {self._packed.folder}, and {MANIFEST} does not name it")

    def tell(self, difference: str) -> None:
        self._count += 1
        if len(self._found) < _SHOWN_MAX:
            self._found.append(difference)

    def _changed(self, gone: list[str]) -> tuple[list[str], list[str]]:
        """Inputs that are not as they were; and those of them that are not of the same size."""
        changed, unlike = [], []
        for number, planned in enumerate(self._packed.plan.inputs):
            if planned.path in gone:
                continue
            try:
                now = self._inputs.as_now(number)
            except (ValueError, CorruptionError) as error:
                self.tell(f"{planned.path} cannot be opened any more: {error}")
                unlike.append(planned.path)
                changed.append(planned.path)
                continue
            if now != planned:
                changed.append(planned.path)
            if now.size_bytes != planned.size_bytes:
                size = f"it had {planned.size_bytes} bytes, and has {now.size_bytes}"
                self.tell(f"{planned.path} has changed since it was packed: {size}")
                unlike.append(planned.path)
        return changed, unlike

    def _function(self, changed: list[str]) -> UserMap | None:
        """The function of the packing.

        Raises:
            ValueError: it is not known, or is another one now.
        """
        name = self._packed.asked["function"]
        if name is None:
            if self._map is not None:
                raise ValueError(f"{self._packed.folder} was packed without a function (map)")
            return None
        if self._map is None and str(name).startswith(_OURS):
            raise ValueError(
                f"{self._packed.folder} was packed with {name}: give it again, with its arguments "
                "(--map)"
            )
        found = mapping_of(self._map if self._map is not None else name)
        assert found is not None
        self._inputs.give_values()
        if not (changed and hasattr(found.function, "looks")):
            found.look(self._inputs)
            if found.identity != self._packed.asked["function's code"]:
                raise ValueError(
                    f"{found.name} is not the function with which {self._packed.folder} was packed "
                    f"({name}), or its file has changed since: nothing else makes the same records"
                )
        return found

    def _compare_all(self, unlike: set[str], user_map: UserMap | None) -> None:
        plan = self._packed.plan
        total = sum(map(plan.size_bytes, range(len(plan.units))))
        behind = 0
        function = None if user_map is None else user_map.made()
        for unit, cuts in enumerate(plan.units):
            if not unlike & {plan.inputs[cut.input].path for cut in cuts}:
                self._compare(unit, function, behind, total)
            behind += plan.size_bytes(unit)
            self._progress(behind, total)

    def _note(self, behind: int, total: int, done: int) -> None:
        self._progress(behind + done, total)

    def _compare(self, unit: int, function: Any, behind: int, total: int) -> None:  # noqa: ANN401
        plan, packed = self._packed.plan, self._packed
        writing = WriterOptions(**packed.asked["writing"])
        schema, metadata = packed.schema, packed.metadata

        def begin(path: Path) -> Any:  # noqa: ANN401 - a Writer
            return writing.new_writer(path, schema, metadata)

        takes_keys = writing.key is True
        rules = Rules(function, sys.maxsize, _FILE_BYTES, takes_keys=takes_keys)
        place = ", ".join(dict.fromkeys(plan.inputs[cut.input].path for cut in plan.units[unit]))
        with tempfile.TemporaryDirectory(prefix="ffrecord-verify-") as folder:
            stored = _Stored(packed, unit)
            writer = _Comparing(Path(folder), begin, rules, stored, plan, self.tell)
            try:
                stored.check()
                for cut in plan.units[unit]:
                    samples = self._inputs.samples_of(cut, writer.tally.left_out)
                    path = plan.inputs[cut.input].path
                    progress = partial(self._note, behind, total)
                    writer.write_all(samples, path, progress, cut.first, cut.input)
                    behind += cut.size_bytes
                tally = writer.close()
            except _StoredDamagedError as error:
                self.tell(f"{packed.folder}: {error}")
                return
            except (ValueError, CorruptionError, TypeError) as error:
                self.tell(f"{place}: cannot be packed any more as it was: {error}")
                return
            finally:
                self._records += writer.compared
            self._compare_counts(unit, place, tally, stored, writer.compared)

    def _compare_counts(
        self, unit: int, place: str, tally: Tally, stored: "_Stored", compared: int
    ) -> None:
        if stored.count > compared:
            self.tell(
                f"{place}: makes {compared} records, and {stored.count} are in "
                f"{', '.join(stored.names)}"
            )
        said = self._packed.units[unit]
        for what in ("samples", "used", "skipped"):
            if said[what] != getattr(tally, what):
                self.tell(f"{place}: {what} were {said[what]}, and are {getattr(tally, what)}")
        if len(said["failures"]) != len(tally.failures):
            self.tell(
                f"{place}: {len(said['failures'])} samples failed in the function, and now "
                f"{len(tally.failures)} do"
            )


class _StoredDamagedError(Exception):
    """A packed record cannot be read."""


class _Stored:
    """The records of a unit, as they were packed."""

    def __init__(self, packed: _Packed, unit: int) -> None:
        paths = packed.files_of(unit)
        self.names = [path.name for path in paths]
        self.reader: Reader | None = None
        self.count = 0
        self._keys: dict[int, bytes] | None = None
        try:
            if paths:
                self.reader = open_records([str(path) for path in paths])
                self.count = len(self.reader)
        except (OSError, CorruptionError, ValueError) as error:
            self.failure: Exception | None = error
        else:
            self.failure = None

    def check(self) -> None:
        if self.failure is not None:
            raise _StoredDamagedError(str(self.failure)) from self.failure

    def keys(self) -> dict[int, bytes]:
        """Key by number of the record in the unit."""
        if self._keys is None:
            self._keys = {} if self.reader is None else dict(_keys_of(self.reader))
        return self._keys

    def read(self, begin: int, end: int) -> Any:  # noqa: ANN401 - a Batch
        assert self.reader is not None
        try:
            return self.reader.read(range(begin, end))
        except (OSError, CorruptionError) as error:
            raise _StoredDamagedError(str(error)) from error


def _keys_of(reader: Reader) -> Iterator[tuple[int, bytes]]:
    first = 0
    for number, file in enumerate(reader.files):
        yield from ((first + index, key) for index, key in reader._open().keys(number))
        first += file.record_count


class _Comparing(UnitWriter):
    """Makes the records of a unit again, and compares each file of them with what is stored."""

    def __init__(
        self,
        folder: Path,
        new_writer: NewWriter,
        rules: Rules,
        stored: _Stored,
        plan: Plan,
        tell: Callable[[str], None],
    ) -> None:
        self._folder = folder
        super().__init__(lambda number: folder / f"{number}.ffr", new_writer, rules)
        self.compared = 0
        self._origins: list[tuple[int, int, int, bool]] = []
        """For each run of records: the first, its input and sample, and whether each has its
        own."""
        self._made_count = 0
        self._stored, self._plan, self._tell = stored, plan, tell
        self._is_first = True

    def note_origin(self, place: tuple[int, int], record_count: int, *, has_each: bool) -> None:
        if record_count:
            self._origins.append((self._made_count, *place, has_each))
            self._made_count += record_count

    def _fail(self, sample: Any, where: str, number: int, error: Exception) -> None:  # noqa: ANN401
        if self._origins and self._origins[-1][2:] == (number, False):
            self._made_count = self._origins.pop()[0]  # Its rows were not written.
        super()._fail(sample, where, number, error)

    def _end_file(self) -> None:
        count = len(self.tally.files)
        super()._end_file()
        if len(self.tally.files) > count:
            path = self._folder / self.tally.files[-1]["name"]
            with open_records(path) as made:
                self._compare(made)
            path.unlink()

    def _compare(self, made: Reader) -> None:
        if self._is_first and self._stored.reader is not None:
            self._is_first = False
            self._compare_schemas(made, self._stored.reader)
        keys, base = dict(_keys_of(made)), self.compared
        kept = min(len(made), max(self._stored.count - base, 0))
        for begin in range(0, kept, _STEP):
            end = min(begin + _STEP, kept)
            ours, theirs = made.read(range(begin, end)), self._stored.read(base + begin, base + end)
            self._compare_batches(ours, theirs, base + begin)
            for record in range(begin, end):
                if keys.get(record) != self._stored.keys().get(base + record):
                    self._tell(f"{self._place(base + record)}: its key differs")
        for record in range(kept, len(made)):
            self._tell(f"{self._place(base + record)}: its record is not there any more")
        self.compared += len(made)

    def _compare_schemas(self, made: Reader, stored: Reader) -> None:
        ours, theirs = ([str(c) for c in each.columns] for each in (made, stored))
        if ours != theirs:
            self._tell(f"{', '.join(self._stored.names)}: columns are {theirs}, and now {ours}")
        if without_facts(made.metadata()) != without_facts(stored.metadata()):
            self._tell(f"{', '.join(self._stored.names)}: metadata differ")

    def _compare_batches(self, ours: Any, theirs: Any, first: int) -> None:  # noqa: ANN401
        is_same = np.array_equal(ours.offsets, theirs.offsets) and np.array_equal(
            ours.data, theirs.data
        )
        if is_same:
            return
        pairs = zip(ours.records(), theirs.records(), strict=True)
        for row, (one, other) in enumerate(pairs):
            if not np.array_equal(one, other):
                columns = _differing(ours.stored(), theirs.stored(), row)
                said = f": {', '.join(columns)} differ" if columns else " differs"
                self._tell(f"{self._place(first + row)}{said}")

    def _place(self, record: int) -> str:
        """Input and sample of a record of the unit."""
        at = bisect_right(self._origins, record, key=lambda origin: origin[0]) - 1
        if self._gathers or at < 0:
            return f"record {record} of {', '.join(self._stored.names)}"
        first, input_, sample, has_each = self._origins[at]
        number = sample + (record - first if has_each else 0)
        return f"{self._plan.inputs[input_].path}: sample {number}"


def _differing(ours: Any, theirs: Any, row: int) -> list[str]:  # noqa: ANN401 - of batches
    """The columns of a record whose values differ."""
    one, other = ours[row], theirs[row]
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return []
    names = dict.fromkeys((*one, *other))
    return [
        n for n in names if n not in one or n not in other or _plain(one[n]) != _plain(other[n])
    ]


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any column
    """A value that says of two whether they have the same bits."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, np.shape(value), value.tobytes()
    return value
