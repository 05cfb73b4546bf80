"""The model of files and tables: rows with a schema of Arrow are the truth.

Goal: what was acknowledged is there, equal in value and in type, or an error names what is gone;
damage costs only what it touched; every path agrees with the truth. Method: a state machine writes,
appends, kills, replaces and damages files, and compares them with plain rows through every reader
(`files_paths`), command (`files_commands`) and place (`files_places`).

    tests/models/campaign files --minutes 60
"""

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

import ffrecord
import files_places
from files_damage import HOWS, PARTS, check_damaged, damaged
from files_layouts import LAYOUTS, check_layout
from files_looking import LOOKING
from files_packing import FORMS, check_mapped, check_packed
from files_paths import LOADING, READINGS, Kept, check_file_quickly, demand
from files_places import PLACES
from files_rewriting import EXPORTING, REWRITING
from files_together import check_apart, check_parquet_together, check_together
from files_writing import (
    REFUSALS,
    GivenUpError,
    can_be_key,
    fail_to_write,
    failing_table,
    give_each,
    ignored_bytes,
    in_child,
    keys_with,
    named,
    opened_to_append,
    write_each,
    write_much,
    write_rows_of_table,
)
from table_values import (
    KINDS,
    NATIVE,
    NULLS,
    ODDS,
    TABLE,
    Columns,
    Differs,
    are_laid_out_otherwise,
    relative,
)

_MEMORY = Path("/dev/shm")


def some_of(ways: dict[str, Any]) -> st.SearchStrategy[list[str]]:
    """Some of their names."""
    return st.lists(st.sampled_from(list(ways)), min_size=1, max_size=6, unique=True)


small = st.integers(0, 3)
counts = st.sampled_from([0, 1, 2, 5, 30, 400])
row_columns = st.lists(st.sampled_from(NATIVE), max_size=3)
table_columns = st.lists(
    st.sampled_from([spelling for name in TABLE for spelling in (f"{name}?", name)]),
    min_size=1,
    max_size=4,
)
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "compress": {"compress": "zstd"},
    "align": {"align": 512},
    "dictionary": {"compress": "zstd", "dictionary": 1024},
    "metadata": {"metadata": {"mine": b"\0\xff"}},
    "key column": {},
}
ROW_OPTIONS = {**OPTIONS, "no copies": {"copy_columns": []}, "keys": {"key": True}}
ODD_KEYS = (5, 0, True, 1.5, "", b"", "key", b"\xff", bytearray(b"b"), [1], 70000)
FAILURES = ("a null", "a stream that fails", "another schema")
TABLES = ("table", "batch", "stream", "chunks", "slice", "capsule")


class Files(RuleBasedStateMachine):
    """Files of one user."""

    rows = Bundle("rows")
    tables = Bundle("tables")
    either = st.one_of(rows, tables)

    def __init__(self) -> None:
        """Begin in an empty folder."""
        super().__init__()
        warnings.simplefilter("ignore")
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="model-files-", dir=memory))
        self.names = itertools.count()

    def teardown(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # New files.

    @rule(
        target=rows,
        columns=row_columns,
        count=counts,
        seed=small,
        option=st.sampled_from(list(ROW_OPTIONS)),
    )
    def write_rows(self, columns: list[str], count: int, seed: int, option: str) -> Kept:
        """Write dicts, or bytes if there are no columns, one by one."""
        return self._rows(Columns(tuple(columns), False), count, seed, option)

    @rule(
        target=tables,
        columns=table_columns,
        count=counts,
        seed=small,
        nulls=st.sampled_from(NULLS),
        how=st.sampled_from([*TABLES, "rows"]),
        option=st.sampled_from(list(OPTIONS)),
    )
    def write_table(
        self, columns: list[str], count: int, seed: int, nulls: str, how: str, option: str
    ) -> Kept:
        """Write a table in one of its forms, or its rows one by one."""
        return self._table(Columns(tuple(columns), True), count, seed, nulls, how, option)

    @rule(target=tables, of=tables, count=counts, seed=small, nulls=st.sampled_from(NULLS))
    def write_another(self, of: Kept, count: int, seed: int, nulls: str) -> Kept:
        """Write a second file of the same schema: both are one dataset, whatever nulls."""
        other = self._table(of.columns, count, seed, nulls, "table", "")
        self._together(of, other)
        return other

    @rule(of=tables, step=st.integers(1, 7))
    def write_another_type(self, of: Kept, step: int) -> None:
        """Write a second file whose last column is of another type: refused together."""
        own = of.columns.spelled[-1].rstrip("?")
        kind = relative(own, step)
        columns = Columns((*of.columns.spelled[:-1], f"{kind}?"), True)
        if of.rows and not of.is_torn and not are_laid_out_otherwise(own, kind):
            other = self._table(columns, 2, 0, "no", "table", "")
            named("two files", check_apart, of, other, self._folder())

    @rule(odd=st.sampled_from(list(ODDS)), is_table=st.booleans())
    def write_an_odd_value(self, odd: str, is_table: bool) -> None:
        """Write a value that does not fit its column: refused, or exact."""
        name, value = ODDS[odd]
        is_table = not KINDS[name].is_bf16 and (is_table or KINDS[name].native is None)
        columns = Columns((f"{name}?" if is_table else name,), is_table)
        file = self._kept(columns, [], "")
        first, second = columns.rows(2, 0)
        with ffrecord.Writer(
            file.path, columns.arrow() if is_table else columns.native()
        ) as writer:
            write_each(writer, file, [first])
            try:
                writer.write({"a": value.written})
            except REFUSALS:
                pass
            else:
                if value.read is ...:
                    raise Differs(f"{odd} is taken{self._read_back(writer, file)}")
                demand(is_table or value.read is not None, f"{odd} is taken, without nulls")
                file.rows.append({"a": value.read})
            write_each(writer, file, [second])
        check_file_quickly(file, odd)

    def _read_back(self, writer: ffrecord.Writer, file: Kept) -> str:
        writer.close()
        seen = ffrecord.read_table(file.path)["a"].to_pylist()[1]
        return f": it reads as {seen!r:.90}"

    @rule(
        key=st.sampled_from([5, 0, True, 1.5, "", b"", "key", b"\xff", bytearray(b"b"), [1], 70000])
    )
    def write_an_odd_key(self, key: Any) -> None:  # noqa: ANN401
        """Write a key of another type: refused, or found as it was written; 70000: its size."""
        file = self._kept(Columns((), False), [], "keys")
        wanted = bytes(key) if key == 70000 else key
        with ffrecord.Writer(file.path, key=True) as writer:
            write_each(writer, file, file.columns.rows(2, 0))
            try:
                writer.write(b"odd", key=wanted)
            except REFUSALS:
                pass
            else:
                is_key = isinstance(wanted, str | bytes | bytearray) and 0 < len(wanted) < 65536
                demand(is_key, f"the key {key!r} is taken")
                file.rows.append(b"odd")
                data = wanted.encode() if isinstance(wanted, str) else bytes(wanted)
                file.keys = [*(file.keys or []), data]
        check_file_quickly(file, f"a record with the key {key!r}")

    @rule(
        columns=table_columns,
        count=st.sampled_from([1, 5, 5000]),
        how=st.sampled_from(FAILURES),
    )
    def write_a_table_that_fails(self, columns: list[str], count: int, how: str) -> None:
        """A call that raises leaves nothing; the next one is whole."""
        made = Columns((*(each.rstrip("?") for each in columns), "i64"), True)
        file = self._kept(made, [], "")
        with ffrecord.Writer(file.path, made.arrow()) as writer:
            fail_to_write(writer, made, count, how)
            writer.write_table(made.table(made.rows(2, 1)))
        file.rows = made.rows(2, 1)
        check_file_quickly(file, f"a table was refused ({how}), the next was written")

    # Appends.

    @rule(
        of=either,
        count=counts,
        seed=small,
        nulls=st.sampled_from(NULLS),
        how=st.sampled_from(["rows", "rows without a schema", "table", "stream"]),
        says_key=st.booleans(),
        commits=st.booleans(),
    )
    def append(
        self,
        of: Kept,
        count: int,
        seed: int,
        nulls: str,
        how: str,
        says_key: bool,
        commits: bool,
    ) -> None:
        """Add rows; readers that are open keep their view."""
        rows = of.columns.rows(count, seed + 10, nulls)
        how = how if of.columns.is_table or how.startswith("rows") else "rows"
        before = ffrecord.open(of.path)
        old = len(before)
        held = of.path.read_bytes()
        try:
            with opened_to_append(of, how, says_key) as writer:
                self._add(writer, of, rows, how, commits)
        except REFUSALS as error:
            may_refuse = how == "rows without a schema" or (of.keys is not None and not says_key)
            demand(may_refuse, f"append ({how}): {type(error).__name__}: {error}")
            demand(of.path.read_bytes() == held, "an append was refused and changed the file")
            return
        of.is_torn = False
        after = Kept(of.path, of.columns, [*of.rows, *rows], keys_with(of, rows), of.key_column)
        check_file_quickly(after, f"append ({how})")
        demand(len(before) == old, "a reader that was open before an append has other records")
        of.rows, of.keys = after.rows, after.keys

    def _add(
        self, writer: ffrecord.Writer, of: Kept, rows: list[Any], how: str, commits: bool
    ) -> None:
        middle, of = len(rows) // 2 if commits else len(rows), of.copy()
        for piece in (rows[:middle], rows[middle:]):
            if how.startswith("rows"):
                write_each(writer, of, piece)
            elif how == "table":
                writer.write_table(of.columns.table(piece))
            else:
                writer.write_table(of.columns.table(piece).to_reader(max_chunksize=3))
            if commits:
                writer.commit()

    @rule(
        of=either,
        count=st.sampled_from([0, 1, 30]),
        megabytes=st.sampled_from([0, 0, 0, 9, 70]),
        how=st.sampled_from(["raise", "discard"]),
    )
    def append_and_give_up(self, of: Kept, count: int, megabytes: int, how: str) -> None:
        """Give up an append: the file is as of its last commit."""
        if of.is_torn:
            return
        rows = of.columns.rows(count, 20)
        held = of.path.read_bytes()
        try:
            with opened_to_append(of, "rows", True) as writer:
                give_each(writer, of, rows)
                write_much(writer, of, min(megabytes, 60))
                if how == "discard":
                    writer.discard()
                raise GivenUpError
        except GivenUpError:
            pass
        demand(of.path.read_bytes() == held, f"an append was given up ({how}), and left bytes")

    @rule(
        columns=table_columns,
        how=st.sampled_from(FAILURES),
        big=st.sampled_from([False, False, True]),
    )
    def append_a_table_that_fails(self, columns: list[str], how: str, big: bool) -> None:
        """write_table(append=True) that raises leaves the file as it was."""
        made = Columns((*columns[: 0 if big else None], "bytes", "i64"), True)
        file = self._table(made, 2, 0, "no", "table", "")
        held = file.path.read_bytes()
        try:
            table = failing_table(made, 300 if big else 5, how, big)
            ffrecord.write_table(table, file.path, append=True)
        except (*REFUSALS, pa.ArrowException, GivenUpError, OSError):
            pass
        else:
            raise Differs(f"an append of a table that fails ({how}) is taken")
        same = file.path.read_bytes() == held
        demand(same, f"an append that raised ({how}, big: {big}) changed the file")

    @rule(
        of=either,
        count=st.sampled_from([1, 30]),
        megabytes=st.sampled_from([0, 0, 5]),
        commits=st.integers(0, 2),
        cut=st.integers(0, 4),
    )
    def append_and_be_killed(
        self, of: Kept, count: int, megabytes: int, commits: int, cut: int
    ) -> None:
        """A process that appends dies; what it had committed is there, and no more."""
        pieces = [of.columns.rows(count, 30 + number) for number in range(commits + 1)]

        def child(say: Callable[[], None]) -> None:
            writer, file = opened_to_append(of, "rows", True), of.copy()
            for number, piece in enumerate(pieces):
                write_each(writer, file, piece)
                if number < commits:
                    writer.commit()
                    say()
            write_much(writer, of, megabytes)
            os._exit(0)

        done = in_child(child)
        demand(done == commits, f"{done} of {commits} commits were acknowledged")
        added = [row for piece in pieces[:done] for row in piece]
        of.keys = keys_with(of, added)
        of.rows = [*of.rows, *added]
        self._cut(of, cut)
        check_file_quickly(of, "after an append was killed")

    def _cut(self, of: Kept, cut: int) -> None:
        """A kill at any write: a part of the bytes that no commit has."""
        ignored = ignored_bytes(of)
        size = of.path.stat().st_size
        of.is_torn = ignored > 0 and cut > 0
        os.truncate(of.path, size - ignored + ignored * cut // 4)

    @rule(of=either, how=st.sampled_from(["replaced", "deleted"]), commits=st.booleans())
    def append_while_it_is(self, of: Kept, how: str, commits: bool) -> None:
        """The name of the file gets another meaning meanwhile: no append says committed."""
        path = self._path()
        shutil.copyfile(of.path, path)
        copy = Kept(path, of.columns, of.rows, of.keys, of.key_column)
        try:
            with opened_to_append(copy, "rows", True) as writer:
                give_each(writer, copy, of.columns.rows(1, 5))
                if how == "deleted":
                    path.unlink()
                else:
                    other = self._path()
                    shutil.copyfile(of.path, other)
                    other.replace(path)
                if commits:
                    writer.commit()
        except (*REFUSALS, OSError):
            return
        raise Differs(f"an append to a file that was {how} says committed")

    # What there is, read on every path.

    @rule(of=either, paths=some_of(READINGS))
    def read(self, of: Kept, paths: list[str]) -> None:
        """Read through the library."""
        self._read(of, paths, "file")

    @rule(of=either, paths=some_of(LOADING))
    def load(self, of: Kept, paths: list[str]) -> None:
        """Read tensors: decoded, and through loaders."""
        self._read(of, paths, "file")

    @rule(of=either, paths=some_of({**READINGS, **LOADING}), place=st.sampled_from(PLACES))
    def read_at(self, of: Kept, paths: list[str], place: str) -> None:
        """Read it where it was published, or at a store."""
        self._read(of, paths, place)

    @rule(of=either, commands=some_of(LOOKING))
    def look(self, of: Kept, commands: list[str]) -> None:
        """Show it with commands."""
        self._look(of, commands, "file")

    @rule(of=either, commands=some_of(LOOKING), place=st.sampled_from(PLACES))
    def look_at(self, of: Kept, commands: list[str], place: str) -> None:
        """Show it where it was published, or at a store."""
        self._look(of, commands, place)

    @rule(of=either, command=st.sampled_from(list(REWRITING)))
    def rewrite(self, of: Kept, command: str) -> None:
        """Make other files of it, and read them."""
        if of.rows and not of.is_torn:
            named(command, REWRITING[command], of, str(of.path), self._folder())

    @rule(of=either, command=st.sampled_from(list(EXPORTING)))
    def export(self, of: Kept, command: str) -> None:
        """Make files of other kinds of it, and read them."""
        if of.rows and not of.is_torn:
            named(command, EXPORTING[command], of, str(of.path), self._folder())

    def _read(self, of: Kept, paths: list[str], place: str) -> None:
        if (address := self._at(of, place)) is None:
            return
        at = Kept(address, of.columns, of.rows, of.keys, of.key_column)
        ways = {**READINGS, **LOADING}
        with ffrecord.open(address) as reader:
            for path in paths:
                named(f"{path}, {place}", ways[path], at, reader)

    def _look(self, of: Kept, commands: list[str], place: str) -> None:
        if (address := self._at(of, place)) is not None:
            for command in commands:
                named(f"{command}, {place}", LOOKING[command], of, address, self._folder())

    def _at(self, of: Kept, place: str) -> str | None:
        """Where a copy is; a daemon takes no file that is not whole."""
        if of.is_torn and place == "daemon":
            return None
        return files_places.at(place, Path(of.path), self._name())

    @rule(one=either, other=either)
    def take_together(self, one: Kept, other: Kept) -> None:
        """Two files of one schema are one dataset."""
        self._together(one, other)

    def _together(self, one: Kept, other: Kept) -> None:
        if one.columns == other.columns and one.rows and other.rows:
            named("two files", check_together, one, other, self._folder())

    @rule(kind=st.sampled_from(TABLE), step=st.integers(1, 7), count=st.sampled_from([1, 5]))
    def pack_parquet_of(self, kind: str, step: int, count: int) -> None:
        """Parquet files whose columns differ, packed together: exact, or refused."""
        other = relative(kind, step)
        one, two = Columns((kind,), True), Columns((other,), True)
        tables = one.table(one.rows(count, 1)), two.table(two.rows(count, 2))
        named("pack", check_parquet_together, *tables, self._folder())

    @rule(of=tables, form=st.sampled_from(sorted(FORMS)))
    def pack_as(self, of: Kept, form: str) -> None:
        """The table in another form, packed, once and joined to itself."""
        named(f"pack of {form}", check_packed, of, form, self._folder())

    @rule(layout=st.sampled_from(sorted(LAYOUTS)), seed=st.integers(0, 999))
    def pack_a_layout(self, layout: str, seed: int) -> None:
        """A folder with files of a split, and other things beside them."""
        named(f"pack of {layout}", check_layout, layout, seed, self._folder())

    @rule(of=tables)
    def pack_through_a_function(self, of: Kept) -> None:
        """A function that changes nothing changes nothing."""
        if not of.is_torn:
            named("pack with map", check_mapped, of, self._folder())

    @rule(of=either)
    def read_in_a_child(self, of: Kept) -> None:
        """A reader that was used before a fork reads in the child."""
        with ffrecord.open(of.path) as reader:
            seen = len(reader.read(range(len(of.rows))))

            def child(say: Callable[[], None]) -> None:
                if seen == len(of.rows):
                    READINGS["columns of a read"](of, reader)
                    say()

            demand(in_child(child) == 1, "a child of a fork does not read what its parent reads")

    @rule(of=either, seed=small)
    def replace(self, of: Kept, seed: int) -> None:
        """Write the file anew; a reader that was opened before keeps its view."""
        before = ffrecord.open(of.path)
        old = list(of.rows)
        READINGS["iterating"](of, before)
        rows = of.columns.rows(3, seed + 40)
        of.rows, of.keys, of.is_torn = [], None if of.keys is None else [], False
        options = {**of.options, "replace": True}
        if of.columns.is_table:
            of.rows, of.keys = rows, keys_with(of, rows)
            write_rows_of_table(of, "table", **options)
        else:
            with ffrecord.Writer(of.path, of.columns.native(), **options) as writer:
                write_each(writer, of, rows)
        check_file_quickly(of, "a file that was replaced")
        READINGS["iterating"](Kept(of.path, of.columns, old), before)

    # Damage.

    @rule(
        of=either,
        part=st.sampled_from(PARTS),
        how=st.sampled_from(HOWS),
        at=st.integers(0, 40),
        appends=st.sampled_from([0, 2, 30]),
    )
    def damage(self, of: Kept, part: str, how: str, at: int, appends: int) -> None:
        """Damage a copy, appended to: it costs what was touched, by name; repair keeps the rest."""
        if of.is_torn:
            return
        copy, path = of.copy(), self._path()
        copy.path = self._path()
        shutil.copyfile(of.path, copy.path)
        if appends:
            with opened_to_append(copy, "rows", True) as writer:
                write_each(writer, copy, of.columns.rows(appends, 50))
        before = copy.path.read_bytes()
        path.write_bytes(damaged(before, len(copy.rows), part, how, at))
        named("damage", check_damaged, copy, path, before, self._folder())

    def _rows(self, columns: Columns, count: int, seed: int, option: str) -> Kept:
        file = self._kept(columns, [], option)
        with ffrecord.Writer(file.path, file.columns.native(), **file.options) as writer:
            write_each(writer, file, file.columns.rows(count, seed))
        return file

    def _table(
        self, columns: Columns, count: int, seed: int, nulls: str, how: str, option: str
    ) -> Kept:
        file = self._kept(columns, [], option)
        file.rows = file.columns.rows(count, seed, nulls)
        file.keys = keys_with(file, file.rows)
        write_rows_of_table(file, how, **file.options)
        return file

    def _kept(self, columns: Columns, rows: list[Any], option: str) -> Kept:
        """A file to be; the key column is one of text or bytes, added if there is none."""
        options = dict(ROW_OPTIONS[option])
        file = Kept(self._path(), columns, rows, options=options)
        if option == "keys":
            file.keys = []
        if option == "key column":
            if not any(map(can_be_key, columns.kinds.values())):
                file.columns = Columns((*columns.spelled, "utf8"), columns.is_table)
            kinds = file.columns.kinds.items()
            options["key"] = file.key_column = next(n for n, k in kinds if can_be_key(k))
            file.columns = file.columns._replace(key=file.key_column)
            file.keys = []
        return file

    def _name(self) -> str:
        return f"{next(self.names)}-{os.getpid()}"

    def _path(self) -> Path:
        return self.folder / f"{next(self.names)}.ffr"

    def _folder(self) -> Path:
        made = self.folder / f"work-{next(self.names)}"
        made.mkdir()
        return made


MODEL = Files
