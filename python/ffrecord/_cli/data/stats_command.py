"""ffrecord stats: what the records of a file are like."""

from collections.abc import Iterator
from typing import Any

import click

from ffrecord import Reader
from ffrecord._cli.console import EXIT_DAMAGE, Progress, progress_bar
from ffrecord._cli.data.looking import count_option, files, seed_option, timeout
from ffrecord._cli.data.records import batches, in_order, opened, shuffled
from ffrecord._cli.data.statistics import Statistics
from ffrecord._cli.data.values import dumps
from ffrecord._cli.text import shown
from ffrecord._cli.units import show_size
from ffrecord._order.epoch_order import Indices

_BAR_WIDTH = 40
_VALUES_SHOWN = 20


@click.command()
@files
@count_option(None, "Only so many random records; all by default.")
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@timeout
def stats(
    where: tuple[str, ...], count: int | None, seed: int, as_json: bool, timeout_s: float
) -> None:
    """Show sizes, compression, and the values of each column of FILE.

    Reads all records, or --count of them. Columns of integers with at most a thousand different
    values, such as labels, get a table. Exits with status 3 if a record that was read is damaged.
    """
    with opened(where, timeout_s) as reader:
        with progress_bar("reading") as show:
            found = examined(reader, count, seed, show)
        facts = found.facts()
    click.echo(dumps(facts) if as_json else "\n".join(_lines(found, facts)))
    if found.damaged_count:
        raise click.exceptions.Exit(EXIT_DAMAGE)


def examined(reader: Reader, count: int | None, seed: int, progress: Progress | None) -> Statistics:
    """Read all records in order, or `count` random ones; progress is in bytes of records."""
    found = Statistics(reader)
    for batch in batches(reader, _pieces(reader, count, seed), keep=True):
        found.add(batch)
        if progress is not None:
            total = len(reader) if count is None else min(count, len(reader))
            progress(_share(reader, found.seen), _share(reader, total))
    return found


def _share(reader: Reader, records: int) -> int:
    return reader.size_bytes * records // max(1, len(reader))


def _pieces(reader: Reader, count: int | None, seed: int) -> Iterator[Indices]:
    if count is None or count >= len(reader):
        return in_order(0, len(reader))
    return shuffled(len(reader), seed, count)


def _lines(found: Statistics, facts: dict[str, Any]) -> Iterator[str]:
    yield f"records      {facts['record_count']} in {facts['file_count']} files"
    if facts["seen_count"] != facts["record_count"]:
        yield f"read         {facts['seen_count']} random ones, which the rest is about"
    yield f"damaged      {facts['damaged_count']}"
    yield f"file size    {show_size(facts['file_size_bytes'])}"
    if facts["compression"] is not None:
        raw = show_size(facts["raw_size_bytes"])
        yield f"compression  {raw} of records, {facts['compression']:.2f} times the files"
    yield f"record size  {_spread(facts['size_bytes'], show_size)}"
    bars = found.size_histogram()
    most = max((count for _, _, count in bars), default=1)
    for low, high, count in bars:
        yield f"{show_size(low):>10} to {show_size(high):>10}{count:>12}  {_bar(count, most)}"
    for column in facts["columns"]:
        yield from _column_lines(column)
    for damage in facts["damaged"]:
        yield f"damaged      {shown(damage['problem'])}"
    if facts["damaged_count"] > len(facts["damaged"]):
        yield f"damaged      and {facts['damaged_count'] - len(facts['damaged'])} more"


def _column_lines(column: dict[str, Any]) -> Iterator[str]:
    title = f"{shown(column['name'])}: {column['type']}"
    if "size_bytes" in column:
        yield f"{title}: sizes {_spread(column['size_bytes'], show_size)}"
    elif "length" in column:
        yield f"{title}: lengths {_spread(column['length'], _number)}"
    else:
        yield f"{title}: {_spread(column, _number)}" if "count" in column else title
    if column.get("null_count"):
        yield f"{'':<4}{column['null_count']} null"
    for name in ("nan_count", "infinite_count"):
        if column.get(name):
            yield f"{'':<4}{column[name]} {name.removesuffix('_count')}"
    if not column.get("values"):
        return
    by_count = sorted(column["values"], key=lambda pair: -pair[1])
    for value, count in by_count[:_VALUES_SHOWN]:
        yield f"{value:>24}{count:>12}  {_bar(count, by_count[0][1])}"
    if len(by_count) > _VALUES_SHOWN:
        yield f"{'':<4}and {len(by_count) - _VALUES_SHOWN} other values; --json lists them"


def _spread(facts: dict[str, Any], show: Any) -> str:  # noqa: ANN401 - a function of a number
    if not facts["count"]:
        return "none"
    texts = [
        f"{name} {'beyond float64' if facts[name] is None else show(facts[name])}"
        for name in ("min", "mean", "max", "std")
    ]
    return ", ".join(texts)


def _number(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _bar(count: int, most: int) -> str:
    return "#" * max(1 if count else 0, _BAR_WIDTH * count // max(1, most))
