"""Sources of other kinds, packed: the folder is compared with its source, whatever it has lost."""

from pathlib import Path

import ffrecord
from ffrecord.pack import SourceOptions, open_source, pack, verify_source
from files_commands import run
from files_paths import demand
from in_place_sources import Shard, Source, write_apart


def check_apart(of: Source, shard: Shard, number: int, folder: Path) -> None:
    """A tar with the files of a sample in two places is packed and indexed by nobody."""
    path, made = folder / shard.path.name, folder / "made"
    if of.kind != "samples" or not write_apart(shard.path, path, number):
        return
    for words in (
        ("ffrecord", "index", path),
        ("ffrecord-pack", path, made.with_suffix(".ffr")),
        ("ffrecord-pack", path, made, "--part-size", "2000B"),
    ):
        code, _, err = run(*words)
        said = f"{words[0]}: a sample in two places: exit code {code}: {err[-300:]}"
        demand(code == 2 and "not adjacent" in err, said)


def check_verified(of: Source, shard: Shard, number: int, folder: Path) -> None:
    """A packed folder is as its source; a part that lacks its last records is not."""
    whole, made = of.folder if of.kind == "mds" else shard.path, folder / "made"
    options = SourceOptions(raw=of.kind in ("jsonl", "tfrecord"))
    pack(open_source(whole, options), made, part_size_bytes=(1, 500, 1 << 20)[number % 3])
    report = verify_source(made)
    demand(report.is_same, f"{of} packed: {report.differences[:3]}")

    parts = sorted(made.glob("*.ffr"))
    part = parts[number % len(parts)]
    with ffrecord.open(part) as reader:
        count, schema, metadata = len(reader), reader.logical.raw.schema, reader.metadata()
        rows = list(reader.read(range(count)).stored())
    kept = max(count - 1 - number % 3, 0)
    with ffrecord.Writer(part, schema, metadata=metadata, replace=True) as writer:
        for row in rows[:kept]:
            writer.write(row)
    report = verify_source(made)
    gone, found = count - kept, report.difference_count  # Records behind them may be others now.
    demand(found >= gone, f"{gone} records of {part.name} are gone: {found} differences")
