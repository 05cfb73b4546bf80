"""Every command that shows or rewrites a record file, by name; each against the truth.

Commands run in this process, through the function that the installed programs call: the exit code
and what they print are compared.
"""

import io
import json
import math
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import reject

import ffrecord
from files_paths import (
    Kept,
    as_bytes,
    check_row,
    check_rows,
    check_table,
    check_value,
    demand,
    find,
    names_of_columns,
)
from table_values import Differs, Kind, same_json

Command = Callable[[Kept, str, Path], None]
LOOKING: dict[str, Command] = {}
"""Given a file, where it is (an address, or its path), and an empty folder."""
REWRITING: dict[str, Command] = {}


def looking(function: Command) -> Command:
    """Name a command that shows records after its function."""
    LOOKING[function.__name__.replace("_", " ")] = function
    return function


def rewriting(function: Command) -> Command:
    """Name a command that makes another file after its function."""
    REWRITING[function.__name__.replace("_", " ")] = function
    return function


def run(*words: object) -> tuple[int, bytes, str]:
    """Run `ffrecord`, or `ffrecord-pack`; return exit code, standard output and error."""
    from ffrecord._cli.console import run as run_command
    from ffrecord._cli.main import cli
    from ffrecord._cli.pack import command as pack

    program, *arguments = map(str, words)
    kept = sys.argv, sys.stdout, sys.stderr
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    sys.argv = [program, *arguments]
    sys.stdout, sys.stderr = streams
    try:
        code = run_command(pack if program == "ffrecord-pack" else cli)
    finally:
        sys.argv, sys.stdout, sys.stderr = kept
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue() for stream in streams)  # type: ignore[attr-defined]
    return code, out, err.decode("utf-8", "replace")


def done(*words: object) -> bytes:
    """What a command prints that has no reason to fail."""
    code, out, err = run(*words)
    demand(code == 0, f"{' '.join(map(str, words))}: exit code {code}: {err.strip()[-300:]}")
    return out


def lines_of(out: bytes) -> list[Any]:
    """JSON lines."""
    return [json.loads(line) for line in out.decode().splitlines()]


def check_json(file: Kept, seen: Any, truth: Any, names: Sequence[str], where: str) -> None:  # noqa: ANN401
    """A record in JSON against a row."""
    if not file.columns.spelled:
        demand(same_json(pa.binary(), seen, truth), f"{where}: {seen!r:.150}, not {truth!r:.150}")
        return
    demand(isinstance(seen, dict), f"{where}: {seen!r:.150} is no object")
    demand(list(seen) == list(names), f"{where}: the columns {list(seen)}, not {list(names)}")
    for name in names:
        kind = file.columns.kinds[name]
        try:
            holds = same_json(kind, seen[name], truth[name])
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise Differs(f"{where}, column {name}: {seen[name]!r:.150}: {error!r}") from None
        said = f"{seen[name]!r:.150}, not {truth[name]!r:.150} ({kind.arrow})"
        demand(holds, f"{where}, column {name}: {said}")


def _shown(file: Kept, out: bytes, wanted: Sequence[int], names: Sequence[str], what: str) -> None:
    lines = lines_of(out)
    found = [line["index"] for line in lines]
    demand(found == list(wanted), f"{what}: the records {found[:50]}, not {list(wanted)[:50]}")
    for line in lines:
        where = f"{what}, record {line['index']}"
        check_json(file, line.get("record"), file.rows[line["index"]], names, where)


@looking
def head(file: Kept, where: str, _: Path) -> None:
    out = done("ffrecord", "head", where, "--json", "--count", 9)
    _shown(file, out, range(min(9, len(file.rows))), file.columns.names, "head --json")
    text = done("ffrecord", "head", where, "--count", 1).decode()
    for name in file.columns.names if file.rows else ():
        demand(f" {name}=" in text, f"head shows no column {name}: {text!r:.200}")


@looking
def head_of_a_column(file: Kept, where: str, _: Path) -> None:
    for name in file.columns.names:
        out = done("ffrecord", "head", where, "--json", "--count", 9, "--column", name)
        _shown(file, out, range(min(9, len(file.rows))), [name], f"head --column {name}")


@looking
def cat(file: Kept, where: str, _: Path) -> None:
    out = done("ffrecord", "cat", where, "--json")
    _shown(file, out, range(len(file.rows)), file.columns.names, "cat --json")
    if not file.columns.spelled:
        demand(done("ffrecord", "cat", where) == b"".join(file.rows), "cat gives other bytes")
    for name, kind in file.columns.kinds.items():
        _, out, _ = run("ffrecord", "cat", where, "--index", 0, "--column", name)
        if file.rows and isinstance(truth := file.rows[0][name], bytes | str):
            data = truth if isinstance(truth, bytes) else truth.encode()
            demand(out == data, f"cat --column {name} gives {out!r:.90} of {kind.arrow}")


@looking
def sample(file: Kept, where: str, _: Path) -> None:
    out = done("ffrecord", "sample", where, "--json", "--count", 7, "--seed", 3)
    wanted = [line["index"] for line in lines_of(out)]
    demand(len(set(wanted)) == min(7, len(file.rows)), f"sample shows {wanted}")
    _shown(file, out, wanted, file.columns.names, "sample --json")


@looking
def find_keys(file: Kept, where: str, _: Path) -> None:
    for number, key in enumerate(file.keys or ()):
        unique = key and file.keys is not None and file.keys.count(key) == 1
        if unique and key and b"\0" not in key and not key.startswith(b"-"):
            code, out, err = run("ffrecord", "find", where, key.decode(), "--json")
            found = lines_of(out)
            demand(code == 0 and found[0]["index"] == number, f"find {key!r}: {out!r}, {err!r}")
        if number > 5:
            break


@looking
def find_by_value(file: Kept, where: str, _: Path) -> None:
    for name, kind in file.columns.kinds.items():
        texts = {_text(row[name]) for row in file.rows[:50]} - {None}
        for text in sorted({*texts, "0", "", "false"}, key=str):
            if text is not None and "\0" not in text and len(text) < 300:
                _find(file, where, name, kind, text)


def _text(value: Any) -> str | None:  # noqa: ANN401
    """A value as it is typed; None if it is not."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value) if isinstance(value, bool | int | str) else None


def _meant(kind: Kind, text: str) -> Any:  # noqa: ANN401
    """The value that a text stands for in a column; None if it stands for none."""
    if isinstance(kind.values[0], str | bytes):
        return text.encode("utf-8", "surrogateescape")
    if isinstance(kind.values[0], bool):
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    try:
        return int(text) if isinstance(kind.values[0], int) else None
    except ValueError:
        return None


def _find(file: Kept, where: str, name: str, kind: Kind, text: str) -> None:
    code, out, err = run(
        *("ffrecord", "find", where, "--where", f"{name}={text}"),
        *("--json", "--count", len(file.rows) + 1),
    )
    what = f"find --where {name}={text!r:.60} ({kind.arrow})"
    meant = _meant(kind, text)
    if code == 2:
        demand("no column" not in err, f"{what}: {err.strip()[-200:]}")
        can = meant is not None and any(meant == _typed(each) for each in kind.values)
        is_plain = not (pa.types.is_fixed_size_binary(kind.arrow) or _is_dictionary(kind))
        demand(not can or not is_plain, f"{what}: {err.strip()[-200:]}")
        return
    demand(code in (0, 1), f"{what}: exit code {code}: {err.strip()[-200:]}")
    found = [line["index"] for line in lines_of(out)]
    if meant is not None:
        right = [i for i, row in enumerate(file.rows) if _typed(row[name]) == meant]
        demand(found == right, f"{what}: the records {found[:30]}, not {right[:30]}")


def _is_dictionary(kind: Kind) -> bool:
    return bool(pa.types.is_dictionary(kind.arrow))


def _typed(value: Any) -> Any:  # noqa: ANN401
    """Text and bytes are told by their bytes."""
    return value.encode() if isinstance(value, str) else value


@looking
def stats(file: Kept, where: str, _: Path) -> None:
    facts = json.loads(done("ffrecord", "stats", where, "--json"))
    demand(facts["record_count"] == len(file.rows), f"stats counts {facts['record_count']} records")
    names = [column["name"] for column in facts["columns"]]
    demand(names == list(file.columns.names), f"stats has the columns {names}")
    for column in facts["columns"]:
        name = column["name"]
        kind, values = file.columns.kinds[name], [row[name] for row in file.rows]
        _check_statistics(kind, column, [each for each in values if each is not None], name)


def _check_statistics(kind: Kind, facts: dict[str, Any], values: list[Any], name: str) -> None:
    numbers = [each for each in values if isinstance(each, int | float)]
    if not numbers or isinstance(numbers[0], bool):
        return
    finite = [each for each in numbers if math.isfinite(each)]
    said = {each: facts.get(each) for each in ("count", "min", "max")}
    right = {
        "count": len(finite),
        "min": min(finite, default=None),
        "max": max(finite, default=None),
    }
    demand(said == right, f"stats of {name} ({kind.arrow}): {said}, not {right}")
    if finite and facts.get("mean") is not None:
        mean = math.fsum(each / len(finite) for each in finite)
        close = math.isclose(
            facts["mean"], mean, rel_tol=1e-6, abs_tol=1e-6 * max(map(abs, finite))
        )
        demand(close, f"stats of {name}: mean {facts['mean']}, not {mean}")
    if facts.get("values"):
        counts = {value: count for value, count in facts["values"] if value is not None}
        right = {value: finite.count(value) for value in finite}
        demand(counts == right, f"stats of {name}: values {counts}, not {right}")


@looking
def view(file: Kept, where: str, work: Path) -> None:
    done("ffrecord", "view", where, "--output", work / "page.html", "--count", 9)
    page = (work / "page.html").read_text(errors="replace")
    for name in file.columns.names:
        for stored in (f"{name}:valid", f"{name}[]", f"{name}{{"):
            demand(stored not in page, f"the page has the stored column {stored}")


@looking
def inspect(file: Kept, where: str, _: Path) -> None:
    text = done("ffrecord", "inspect", where).decode()
    demand(str(len(file.rows)) in text, f"inspect does not count {len(file.rows)}: {text!r:.200}")
    for name in file.columns.names:
        for stored in (f"{name}:valid", f"{name}[]", f"{name}{{"):
            demand(stored not in text, f"inspect shows the stored column {stored}")


@looking
def verify(file: Kept, where: str, _: Path) -> None:
    if not file.is_torn:
        done("ffrecord", "verify", where)


# Commands that make another file.


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


def _empty(file: Kept) -> None:
    """These commands refuse files without records, and files that end in an unfinished append."""
    if not file.rows or file.is_torn:
        reject()


@rewriting
def merge(file: Kept, where: str, work: Path) -> None:
    _empty(file)
    done("ffrecord", "merge", where, where, work / "o.ffr")
    twice = [*_all(file), *_all(file)]
    check_file(file, work / "o.ffr", twice, "merge")


@rewriting
def split(file: Kept, where: str, work: Path) -> None:
    _empty(file)
    done("ffrecord", "split", where, work / "parts", "--part-records", 2)
    check_file(file, work / "parts", _all(file), "split")
    done("ffrecord", "merge", work / "parts", work / "o.ffr")
    check_file(file, work / "o.ffr", _all(file), "split and merge")


@rewriting
def shuffle(file: Kept, where: str, work: Path) -> None:
    from ffrecord._ffrecord import Permutation

    _empty(file)
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
    _empty(file)
    if os.path.exists(where):
        done("ffrecord-pack", where, work / "o.ffr", "--compress")
        check_file(file, work / "o.ffr", _all(file), "ffrecord-pack")


@rewriting
def pack_a_column(file: Kept, where: str, work: Path) -> None:
    _empty(file)
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


@rewriting
def export_jsonl(file: Kept, where: str, work: Path) -> None:
    _empty(file)
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


@rewriting
def export_tar(file: Kept, where: str, work: Path) -> None:
    _empty(file)
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
        demand(not strange, f"{where_}: members of {sorted(strange)}")


def _check_member(
    file: Kept,
    name: str,
    members: dict[str, bytes],
    truth: Any,  # noqa: ANN401
    where: str,
) -> None:
    own = {ending: data for ending, data in members.items() if ending.partition(".")[0] == name}
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
    demand(ending.endswith("json"), f"{where}: {data!r:.150}, not {truth!r:.150}")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise Differs(f"{where}: {data!r:.150}: {error}") from None
    demand(same_json(kind, value, truth), f"{where}: {value!r:.150}, not {truth!r:.150}")


@rewriting
def export_folder(file: Kept, where: str, work: Path) -> None:
    _empty(file)
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


@rewriting
def export_parquet(file: Kept, where: str, work: Path) -> None:
    _empty(file)
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


@rewriting
def parquet_and_pack(file: Kept, where: str, work: Path) -> None:
    """Our own Parquet read back: exact, or refused by the name of the column."""
    _empty(file)
    done("ffrecord", "export", where, work / "o.parquet")
    code, _, err = run("ffrecord-pack", work / "o.parquet", work / "p.ffr")
    if code == 2:
        demand("column" in err, f"ffrecord-pack of Parquet: {err.strip()[-200:]}")
        return
    demand(code == 0, f"ffrecord-pack of Parquet: exit code {code}: {err.strip()[-200:]}")
    with ffrecord.open(work / "p.ffr") as reader:
        for number, sample in enumerate(reader):
            said = f"ffrecord-pack of Parquet, record {number}"
            if not file.columns.spelled:
                data = sample["record"]
                demand(as_bytes(data) == file.rows[number], f"{said}: {data!r:.90}")
                continue
            for name, kind in file.columns.kinds.items():
                value = _widths(kind, sample[name])
                check_value(kind, value, file.rows[number][name], f"{said}, column {name}")


def _widths(kind: Kind, value: Any) -> Any:  # noqa: ANN401
    """The numbers of a list that was packed as its bytes."""
    if not pa.types.is_list(kind.arrow) or not isinstance(value, np.ndarray):
        return value
    wanted = np.dtype(kind.arrow.value_type.to_pandas_dtype())
    return value.view(wanted) if value.dtype == np.uint8 and value.ndim == 1 else value


@rewriting
def an_export_read_by_pack(file: Kept, where: str, work: Path) -> None:
    """JSON lines and tars of ours are packed: each record is the line, or has the files."""
    _empty(file)
    done("ffrecord", "export", where, work / "o.jsonl")
    done("ffrecord-pack", work / "o.jsonl", work / "p.ffr")
    with ffrecord.open(work / "p.ffr") as reader:
        for number, one in enumerate(reader):
            seen = json.loads(bytes(one["payload"]))["record"]
            said = f"export to JSON lines and pack, record {number}"
            check_json(file, seen, file.rows[number], file.columns.names, said)


def check_together(one: Kept, other: Kept, work: Path) -> None:
    """Two files of one schema are one dataset, whatever nulls they hold."""
    both = Kept(work / "both", one.columns, [*one.rows, *other.rows])
    with ffrecord.open([one.path, other.path]) as reader:
        check_rows(one.columns, reader, both.rows, "open of two files")
        check_table(both, reader.read(range(len(both.rows))).to_arrow(), both.rows, "two files")
    with ffrecord.open(one.path) as first, ffrecord.open(other.path) as second:
        joined = ffrecord.concat([first, second])
        check_rows(one.columns, joined, both.rows, "concat of two files")
        views = ffrecord.concat([first.subset(slice(None)), second.subset(slice(None))])
        check_rows(one.columns, views, both.rows, "concat of two views")
        check_table(both, views.read(range(len(both.rows))).to_arrow(), both.rows, "two views")
    check_table(both, ffrecord.read_table([one.path, other.path]), both.rows, "read_table of two")
    alike = one.options.get("metadata") == other.options.get("metadata")
    alike = alike and (one.keys is None) == (other.keys is None)
    if alike and not one.is_torn and not other.is_torn:
        done("ffrecord", "merge", one.path, other.path, work / "o.ffr")
        check_file(both, work / "o.ffr", range(len(both.rows)), "merge of two files")


def check_apart(one: Kept, other: Kept, work: Path) -> None:
    """Two files of other types are refused together, by every path."""
    rows = [*one.rows, *other.rows]
    what = f"{one.columns.arrow()} and {other.columns.arrow()}".replace("\n", ", ")
    for name, made in _ways_together(one, other, work).items():
        try:
            batch = made()
        except (ValueError, TypeError):
            continue
        raise Differs(f"{name} of {len(rows)} records takes {what} together: {batch!r:.100}")


def _ways_together(one: Kept, other: Kept, work: Path) -> dict[str, Callable[[], Any]]:
    names = [str(one.path), str(other.path)]
    at = [0, len(one.rows)]

    def merged() -> None:
        code, _, err = run("ffrecord", "merge", *names, work / "o.ffr")
        if code:
            raise ValueError(err)

    def packed() -> None:
        code, _, err = run("ffrecord-pack", *names, work / "p.ffr")
        if code:
            raise ValueError(err)

    first, second = ffrecord.open(names[0]), ffrecord.open(names[1])
    return {
        "open": lambda: ffrecord.open(names).read(at),
        "concat": lambda: ffrecord.concat([first, second]).read(at),
        "concat of views": lambda: ffrecord.concat([first.subset([0]), second.subset([0])]).read(
            [0, 1]
        ),
        "mix": lambda: ffrecord.mix([first, second], [1, 1]).read([0, 1]),
        "read_table": lambda: ffrecord.read_table(names),
        "merge": merged,
        "ffrecord-pack": packed,
    }


def check_parquet_together(one: Any, other: Any, rows: list[Any], file: Kept, work: Path) -> None:  # noqa: ANN401
    """Two tables as Parquet, packed together: exact, or refused."""
    shutil.rmtree(work)
    work.mkdir()
    pq.write_table(one, work / "a.parquet")
    pq.write_table(other, work / "b.parquet")
    code, _, err = run("ffrecord-pack", work / "a.parquet", work / "b.parquet", work / "o.ffr")
    if code == 2:
        demand("column" in err, f"ffrecord-pack of two Parquet files: {err.strip()[-200:]}")
        return
    demand(code == 0, f"ffrecord-pack of two Parquet files: {code}: {err.strip()[-200:]}")
    with ffrecord.open(work / "o.ffr") as reader:
        for number, sample in enumerate(reader):
            seen = {n: _widths(k, sample[n]) for n, k in file.columns.kinds.items()}
            check_row(file.columns, seen, rows[number], f"Parquet files, record {number}")
