"""Every command that shows the records of a file, by name; each against the truth."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from files_commands import Command, check_json, done, lines_of, run
from files_paths import Kept, demand
from table_values import Kind

LOOKING: dict[str, Command] = {}


def looking(function: Command) -> Command:
    """Name a command after its function."""
    LOOKING[function.__name__.replace("_", " ")] = function
    return function


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
