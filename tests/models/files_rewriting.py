"""Every command that makes another file of one, by name; what it made against the truth."""

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ffrecord
from files_commands import Command, check_json, done, lines_of, run
from files_paths import (
    Kept,
    check_rows,
    check_table,
    check_value,
    demand,
    find,
    names_of_columns,
)
from table_values import Differs, Kind, same_json

REWRITING: dict[str, Command] = {}
"""To other record files. These commands refuse files without records."""
EXPORTING: dict[str, Command] = {}
"""To files of other kinds, or of these."""


def rewriting(function: Command) -> Command:
    """Name a command after its function."""
    REWRITING[function.__name__.replace("_", " ")] = function
    return function


def exporting(function: Command) -> Command:
    """Name a command after its function."""
    EXPORTING[function.__name__.replace("_", " ")] = function
    return function


def check_file(file: Kept, path: Path, rows: Sequence[int], what: str) -> None:
    """A file that was made of these rows: their types, values and keys."""
    truth = [file.rows[i] for i in rows]
    keys = None if file.keys is None else [file.keys[i] for i in rows]
    made = Kept(path, file.columns, truth, keys, file.key_column)
    try:
        check_table(made, ffrecord.read_table(str(path)), truth, what)
        with ffrecord.open(path) as reader:
            check_rows(file.columns, reader, truth, what)
            names_of_columns(made, reader)
            if path.is_file():
                find(made, reader)
    except Differs as error:
        raise Differs(f"{what}: {error}") from None


def _all(file: Kept) -> range:
    return range(len(file.rows))


@rewriting
def merge(file: Kept, where: str, work: Path) -> None:
    done("ffrecord", "merge", where, where, work / "o.ffr")
    twice = [*_all(file), *_all(file)]
    check_file(file, work / "o.ffr", twice, "merge")


@rewriting
def split(file: Kept, where: str, work: Path) -> None:
    done("ffrecord", "split", where, work / "parts", "--part-records", 2)
    check_file(file, work / "parts", _all(file), "split")
    done("ffrecord", "merge", work / "parts", work / "o.ffr")
    check_file(file, work / "o.ffr", _all(file), "split and merge")


@rewriting
def shuffle(file: Kept, where: str, work: Path) -> None:
    from ffrecord._ffrecord import Permutation

    done("ffrecord", "shuffle", where, work / "o.ffr", "--seed", 5)
    count = len(file.rows)
    order = Permutation(seed=5, epoch=0, count=count).range(0, count).tolist()
    check_file(file, work / "o.ffr", order, "shuffle")


@rewriting
def repair(file: Kept, where: str, work: Path) -> None:
    if not os.path.isfile(where):
        return
    report = ffrecord.repair(where, work / "o.ffr")
    demand(report.kept_count == len(file.rows), f"repair kept {report.kept_count}")
    demand(report.lost_count == 0, f"repair says that {report.lost_count} records are lost")
    check_file(file, work / "o.ffr", _all(file), "repair")


@rewriting
def pack_again(file: Kept, where: str, work: Path) -> None:
    if os.path.exists(where):
        done("ffrecord-pack", where, work / "o.ffr", "--compress")
        check_file(file, work / "o.ffr", _all(file), "ffrecord-pack")


@rewriting
def pack_a_column(file: Kept, where: str, work: Path) -> None:
    if os.path.exists(where) and file.columns.spelled:
        name = file.columns.names[-1]
        done("ffrecord-pack", where, work / "o.ffr", "--column", name)
        table = ffrecord.read_table(work / "o.ffr")
        demand(table.column_names == [name], f"ffrecord-pack --column {name}: {table.column_names}")
        _check_values(file, table, name, "ffrecord-pack --column")


def _check_values(file: Kept, table: Any, name: str, what: str) -> None:  # noqa: ANN401
    kind = file.columns.kinds[name]
    if not kind.is_bf16:
        for number, value in enumerate(table[name].to_pylist()):
            check_value(kind, value, file.rows[number][name], f"{what}, {name}[{number}]")


@exporting
def export_jsonl(file: Kept, where: str, work: Path) -> None:
    done("ffrecord", "export", where, work / "o.jsonl")
    _check_lines(file, work / "o.jsonl", file.columns.names, "export to JSON lines")
    for name in file.columns.names[:1]:
        done("ffrecord", "export", where, work / "o.jsonl", "--overwrite", "--column", name)
        _check_lines(file, work / "o.jsonl", [name], f"export --column {name} to JSON lines")


def _check_lines(file: Kept, path: Path, names: Sequence[str], what: str) -> None:
    lines = lines_of(path.read_bytes())
    demand(len(lines) == len(file.rows), f"{what}: {len(lines)} lines, not {len(file.rows)}")
    for number, line in enumerate(lines):
        check_json(file, line["record"], file.rows[number], names, f"{what}, line {number}")
        if file.keys is not None and (key := file.keys[number]):
            said = f"{what}, line {number}: key {line.get('key')!r}"
            demand(same_json(pa.binary(), line.get("key"), key), said)


@exporting
def export_tar(file: Kept, where: str, work: Path) -> None:
    done("ffrecord", "export", where, work / "o.tar")
    with tarfile.open(work / "o.tar") as tar:
        found: dict[int, dict[str, bytes]] = {}
        for member in tar:
            stem, _, ending = member.name.partition(".")
            taken = tar.extractfile(member)
            assert taken is not None
            found.setdefault(int(stem), {})[ending] = taken.read()
    for number, row in enumerate(file.rows):
        members = found.get(number, {})
        where_ = f"export to tar, record {number}"
        if not file.columns.spelled:
            demand(row in members.values(), f"{where_}: {members!r:.200}")
            continue
        for name in file.columns.names:
            _check_member(file, name, members, row[name], where_)
        strange = {each.partition(".")[0] for each in members} - {*file.columns.names, "key"}
        if "label" in file.columns.names:
            strange.discard("cls")  # WebDataset's name of an integer.
        demand(not strange, f"{where_}: members of {sorted(strange)}")


def _check_member(
    file: Kept,
    name: str,
    members: dict[str, bytes],
    truth: Any,  # noqa: ANN401
    where: str,
) -> None:
    first = (
        "cls" if name == "label" and pa.types.is_integer(file.columns.kinds[name].arrow) else name
    )
    own = {ending: data for ending, data in members.items() if ending.partition(".")[0] == first}
    if truth is None:
        demand(all(data == b"null" for data in own.values()), f"{where}: a null is {own!r:.150}")
        return
    demand(len(own) == 1, f"{where}: column {name} has the members {list(own)} of {list(members)}")
    ((ending, data),) = own.items()
    _check_file_of_value(file.columns.kinds[name], ending, data, truth, f"{where}, {ending}")


def _check_file_of_value(kind: Kind, ending: str, data: bytes, truth: Any, where: str) -> None:  # noqa: ANN401
    if isinstance(truth, bytes | str):
        as_it_is = truth if isinstance(truth, bytes) else truth.encode()
        if data == as_it_is:
            return
    demand(ending.endswith(("json", "cls")), f"{where}: {data!r:.150}, not {truth!r:.150}")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise Differs(f"{where}: {data!r:.150}: {error}") from None
    demand(same_json(kind, value, truth), f"{where}: {value!r:.150}, not {truth!r:.150}")


@exporting
def export_folder(file: Kept, where: str, work: Path) -> None:
    done("ffrecord", "export", where, work / "folder")
    lines = lines_of((work / "folder" / "records.jsonl").read_bytes())
    demand(len(lines) == len(file.rows), f"export to a folder: {len(lines)} records")
    for number, (line, row) in enumerate(zip(lines, file.rows, strict=True)):
        files, values = line["record"]["files"], line["record"]["values"]
        said = f"export to a folder, record {number}"
        if not file.columns.spelled:
            demand((work / "folder" / files["record"]).read_bytes() == row, f"{said}: other bytes")
            continue
        for name, kind in file.columns.kinds.items():
            if files.get(name) is not None:
                demand(row[name] is not None, f"{said}, {name}: a file for a null")
                data = (work / "folder" / files[name]).read_bytes()
                _check_file_of_value(kind, files[name], data, row[name], f"{said}, {name}")
            else:
                is_same = same_json(kind, values.get(name), row[name])
                demand(
                    is_same, f"{said}, {name}: {values.get(name)!r:.150}, not {row[name]!r:.150}"
                )
        strange = {*files, *values} - set(file.columns.names)
        demand(not strange, f"{said}: the columns {sorted(strange)}")


@exporting
def export_parquet(file: Kept, where: str, work: Path) -> None:
    done("ffrecord", "export", where, work / "o.parquet")
    table = pq.read_table(work / "o.parquet")
    _check_parquet(file, table, file.columns.names, "export to Parquet")
    for name in file.columns.names[:1]:
        done("ffrecord", "export", where, work / "o.parquet", "--overwrite", "--column", name)
        table = pq.read_table(work / "o.parquet")
        _check_parquet(file, table, [name], f"export --column {name} to Parquet")


def _check_parquet(file: Kept, table: Any, names: Sequence[str], what: str) -> None:  # noqa: ANN401
    found = [name for name in table.column_names if name != "__key__"]
    demand(found == list(names or ["record"]), f"{what}: the columns {found}, not {list(names)}")
    demand(len(table) == len(file.rows), f"{what}: {len(table)} rows, not {len(file.rows)}")
    if not names:
        check_rows(file.columns, table["record"].to_pylist(), file.rows, what)
        return
    for name in names:
        kind = file.columns.kinds[name]
        for number, value in enumerate(table[name].to_pylist()):
            truth = file.rows[number][name]
            if kind.is_bf16:
                value = None if value is None else np.float32(value)
            check_value(kind, value, truth, f"{what}, {name}[{number}]")
        if file.columns.is_table:
            wanted = _through_parquet(kind.arrow)
            demand(
                table.schema.field(name).type.equals(wanted),
                f"{what}, column {name}: {table.schema.field(name).type}, not {wanted}",
            )


def _through_parquet(kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The type that Parquet, which has fewer, makes of it."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([], kind)}), sink)
    return pq.read_table(sink).schema.field("x").type


@exporting
def parquet_and_pack(file: Kept, where: str, work: Path) -> None:
    """Our own Parquet read back: exact, or refused by the name of the column."""
    done("ffrecord", "export", where, work / "o.parquet")
    code, _, err = run("ffrecord-pack", work / "o.parquet", work / "p.ffr")
    if code == 2:
        demand("column" in err, f"ffrecord-pack of Parquet: {err.strip()[-200:]}")
        return
    demand(code == 0, f"ffrecord-pack of Parquet: exit code {code}: {err.strip()[-200:]}")
    table = ffrecord.read_table(work / "p.ffr")
    _check_parquet(file, table, file.columns.names, "ffrecord-pack of Parquet")


@exporting
def an_export_read_by_pack(file: Kept, where: str, work: Path) -> None:
    """JSON lines and tars of ours are packed: each record is the line, or has the files."""
    done("ffrecord", "export", where, work / "o.jsonl")
    done("ffrecord-pack", "--raw", work / "o.jsonl", work / "p.ffr")
    with ffrecord.open(work / "p.ffr") as reader:
        for number, one in enumerate(reader):
            seen = json.loads(bytes(one["payload"]))["record"]
            said = f"export to JSON lines and pack, record {number}"
            check_json(file, seen, file.rows[number], file.columns.names, said)


@exporting
def plain_lines_read_by_pack(file: Kept, where: str, work: Path) -> None:
    """Plain lines, packed and exported again, are the same lines; or a line or column is named."""
    if not file.columns.spelled:
        return
    code, _, err = run("ffrecord", "export", "--plain", where, work / "o.jsonl")
    if code == 2 and file.keys is not None:
        demand("keys" in err, f"export --plain: {err.strip()[-200:]}")
        return
    demand(code == 0, f"export --plain: exit code {code}: {err.strip()[-200:]}")
    code, _, err = run("ffrecord-pack", work / "o.jsonl", work / "p.ffr")
    if code == 2:
        said = f"ffrecord-pack of plain lines: {err.strip()[-200:]}"
        demand("column" in err or "line " in err, said)
        return
    demand(code == 0, f"ffrecord-pack of plain lines: exit code {code}: {err.strip()[-200:]}")
    done("ffrecord", "export", "--plain", work / "p.ffr", work / "q.jsonl")
    lines = [(work / name).read_text().splitlines() for name in ("o.jsonl", "q.jsonl")]
    demand(len(lines[1]) == len(file.rows), f"plain lines: {len(lines[1])} of {len(file.rows)}")
    for number, (one, other) in enumerate(zip(*lines, strict=True)):
        demand(one == other, f"plain lines packed, line {number}: {other!r:.150}, not {one!r:.150}")
