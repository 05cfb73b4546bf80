"""The model of files that are read in place: the rows of sources of other kinds are the truth.

Goal: an index over a source gives the rows that were there when it was made, on every path, or an
error that names the file. Method: a state machine makes sources of each kind, indexes them, adds
shards, and changes, damages, moves and removes sources, indexes and what describes them.

    tests/models/campaign in_place --minutes 60
"""

import itertools
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

import ffrecord
import files_places
from ffrecord.pack import SourceOptions, open_source, pack
from files_commands import run
from files_damage import check_reading
from files_looking import LOOKING
from files_paths import LOADING, READINGS, check_rows, demand
from files_rewriting import EXPORTING, REWRITING
from files_writing import in_child, named
from in_place_packing import check_apart, check_verified
from in_place_sources import KINDS_IN_PLACE, Shard, Source
from table_values import Differs

_MEMORY = Path("/dev/shm")
# Errors that ffrecord raises for files that it does not read.
ERRORS = (ValueError, OSError, TypeError, ffrecord.CorruptionError, ffrecord.ConflictError)
# These read the source itself, and not by its index.
BY_THEMSELVES = ("pack again", "pack a column", "repair")


def some_of(ways: dict[str, Any]) -> st.SearchStrategy[list[str]]:
    """Some of their names."""
    return st.lists(st.sampled_from(sorted(ways)), min_size=1, max_size=4, unique=True)


@contextmanager
def as_before(*paths: Path) -> Iterator[None]:
    """Give files back what they have now, their times included."""
    kept = [(path, path.read_bytes(), path.stat()) for path in paths]
    try:
        yield
    finally:
        for path, data, state in kept:
            path.write_bytes(data)
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def rewrite(path: Path, data: bytes, same_time: bool) -> None:
    """Give a file other bytes."""
    before = path.stat()
    path.write_bytes(data)
    time_ns = before.st_mtime_ns + (0 if same_time else 1_000_000_000)
    os.utime(path, ns=(before.st_atime_ns, time_ns))


def flipped(data: bytes, at: int) -> bytes:
    """With one bit changed."""
    made = bytearray(data)
    if made:
        made[at * 7919 % len(made)] ^= 1 << at % 8
    return bytes(made)


def another(data: bytes, at: int) -> bytes:
    """Other bytes, as many: those of another shard, or the same in another order."""
    half = len(data) // 2
    ways = (random.Random(at).randbytes(len(data)), data[half:] + data[:half], bytes(len(data)))
    return ways[at % 3]


counts = st.sampled_from([1, 2, 5, 30, 300])
small = st.integers(0, 3)
number = st.integers(0, 60)
which = st.integers(0, 5)


class InPlace(RuleBasedStateMachine):
    """Files of other kinds of one user."""

    sources = Bundle("sources")

    def __init__(self) -> None:
        """Begin in an empty folder."""
        super().__init__()
        warnings.simplefilter("ignore")
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="model-in-place-", dir=memory))
        self.names = itertools.count()

    def teardown(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # Sources, and shards that are added.

    @rule(
        target=sources,
        kind=st.sampled_from(sorted(KINDS_IN_PLACE)),
        columns=small,
        shards=st.lists(counts, min_size=1, max_size=3),
        seed=small,
        elsewhere=st.booleans(),
        command=st.booleans(),
    )
    def make(
        self,
        kind: str,
        columns: int,
        shards: list[int],
        seed: int,
        elsewhere: bool,
        command: bool,
    ) -> Source:
        """Make a folder of shards, and index it."""
        choices = KINDS_IN_PLACE[kind].columns
        folder = self._folder()
        made = Source(kind, folder, choices[columns % len(choices)])
        made.index_dir = self._folder() if elsewhere else None
        for count in shards:
            made.add(count, seed)
        if seed == 0:
            (folder / "README.md").write_text("what is here")
            (folder / ".hidden").write_text("not this")
        if command:
            words = ("--index-dir", made.index_dir) if elsewhere else ()
            code, _, err = run("ffrecord", "index", *words, folder)
            demand(code == 0, f"ffrecord index of {made}: exit code {code}: {err[-300:]}")
        else:
            self._indexed(made, made.shards)
        return made

    @rule(of=sources, count=counts, seed=small, fails_first=st.booleans())
    def add_shard(self, of: Source, count: int, seed: int, fails_first: bool) -> None:
        """A new shard is indexed alone; until then the folder is not read by half."""
        before, rows = ffrecord.open(of.address), of.kept().rows
        demand(len(before) == len(rows), f"{of} has {len(before)} records, not {len(rows)}")
        shard = of.add(count, seed)
        if fails_first and of.index_dir is None:
            self._refused(of, (shard, *of.shards), "a shard was added, and is not indexed")
        self._indexed(of, [shard])
        check_rows(of.columns, before, rows, "a reader that was open when a shard was added")
        self._check(of, "after a shard was added")

    def _indexed(self, of: Source, new: Sequence[Shard]) -> None:
        """Index the folder: just those files need it."""
        made = ffrecord.index(of.folder, index_dir=of.index_dir)
        wanted = {str(shard.path) for shard in new}
        demand(set(made.indexed) == wanted, f"indexed {made.indexed}, and not {sorted(wanted)}")
        count = sum(len(shard.rows) for shard in of.shards)
        demand(made.record_count == count, f"index counts {made.record_count}, not {count}")

    # What there is, read on every path.

    @rule(of=sources, paths=some_of({**READINGS, **LOADING}))
    def read(self, of: Source, paths: list[str]) -> None:
        """Read through the library, tensors and loaders included."""
        kept = of.kept()
        ways = {**READINGS, **LOADING}
        with ffrecord.open(of.address) as reader:
            for path in paths:
                named(f"{path}, {of.kind} in place", ways[path], kept, reader)

    @rule(of=sources, commands=some_of(LOOKING))
    def look(self, of: Source, commands: list[str]) -> None:
        """Show it with commands."""
        for command in commands:
            where = f"{command}, {of.kind} in place"
            named(where, LOOKING[command], of.kept(), of.address, self._folder())

    @rule(of=sources, command=st.sampled_from(sorted({*REWRITING, *EXPORTING})))
    def rewrite(self, of: Source, command: str) -> None:
        """Make record files, or files of other kinds, of it."""
        if command not in BY_THEMSELVES:
            check = {**REWRITING, **EXPORTING}[command]
            named(f"{command}, {of.kind} in place", check, of.kept(), of.address, self._folder())

    @rule(of=sources, at=which)
    def read_one_shard(self, of: Source, at: int) -> None:
        """Each file can be read alone, by its own name or that of its index."""
        shard = of.shards[at % len(of.shards)]
        names = [of.index_of(shard)] if of.index_dir else [of.index_of(shard), shard.path]
        for name in names:
            with ffrecord.open(name) as reader:
                check_rows(of.columns, reader, shard.rows, f"open of {name.name}")

    @rule(of=sources, other=sources)
    def read_together(self, of: Source, other: Source) -> None:
        """Files of two folders with the same columns are one dataset, also with a record file."""
        if of.columns != other.columns:
            return
        names: list[Any] = [each.index_of(shard) for each in (of, other) for shard in each.shards]
        rows = [*of.kept().rows, *other.kept().rows]
        code, _, err = run("ffrecord", "merge", of.address, packed := self._folder() / "o.ffr")
        demand(code == 0, f"merge of {of}: exit code {code}: {err.strip()[-300:]}")
        for more, truth in (([], rows), ([packed], [*rows, *of.kept().rows])):
            with ffrecord.open([*names, *more]) as reader:
                check_rows(of.columns, reader, truth, "files of two folders")
                order = np.random.default_rng(len(truth)).permutation(len(truth))
                shuffled = [truth[i] for i in order]
                check_rows(of.columns, reader.read(order), shuffled, "a random order of them")

    @rule(of=sources)
    def read_in_a_child(self, of: Source) -> None:
        """A reader that was used before a fork reads in the child."""
        kept = of.kept()
        with ffrecord.open(of.address) as reader:
            seen = len(reader.read(range(len(kept.rows))))

            def child(say: Callable[[], None]) -> None:
                if seen == len(kept.rows):
                    READINGS["columns of a read"](kept, reader)
                    say()

            demand(in_child(child) == 1, "a child of a fork does not read what its parent reads")

    @rule(of=sources)
    def move(self, of: Source) -> None:
        """The folder may be moved, if the indexes are in it."""
        if of.index_dir is None:
            moved = self.folder / f"moved-{next(self.names)}"
            of.folder.rename(moved)
            for shard in of.shards:
                shard.path = moved / shard.path.name
            of.folder = moved
            self._check(of, "after the folder was moved")

    # Operations that refuse sources in place.

    @rule(of=sources, how=st.sampled_from(["publish", "append", "repair", "store"]))
    def refuse(self, of: Source, how: str) -> None:
        """What would need a record file is refused by name, and changes nothing."""
        path = of.shards[0].path
        held = {each: each.read_bytes() for each in of.folder.iterdir()}
        try:
            self._do_what_is_refused(of, path, how)
        except ERRORS as error:
            demand(path.name in str(error), f"{how} of {path.name}: {error}")
        now = {each: each.read_bytes() for each in of.folder.iterdir()}
        demand(now == held, f"{how} of a source in place changed its folder")

    def _do_what_is_refused(self, of: Source, path: Path, how: str) -> None:
        if how == "publish":
            if (address := files_places.daemon()) is None:
                return
            ffrecord.publish(of.address, f"{address}/{next(self.names)}-{os.getpid()}")
        elif how == "append":
            ffrecord.Writer(path, append=True)
        elif how == "repair":
            ffrecord.repair(path, self._folder() / "o.ffr")
        else:
            if (client := files_places.store()) is None:
                return
            for each in (path, of.index_of(of.shards[0])):
                client.upload_file(str(each), "model", f"{of.folder.name}/{each.name}")
            ffrecord.open(f"s3://model/{of.folder.name}/{path.name}").read([0])
        raise Differs(f"{how} of {path.name} is taken")

    # Changes of a source.

    @rule(
        of=sources,
        at=which,
        how=st.sampled_from(["a bit", "others", "the front", "the end"]),
        bit=number,
        opened_before=st.booleans(),
    )
    def change_unseen(self, of: Source, at: int, how: str, bit: int, opened_before: bool) -> None:
        """Other bytes of the same size and time: the rows that they touch are errors."""
        shard = of.shards[at % len(of.shards)]
        reader = ffrecord.open(of.address, max_corrupt=1.0) if opened_before else None
        if reader is not None and bit % 2:
            reader.read(range(len(of.kept().rows)))
        data = shard.path.read_bytes()
        size = min(len(data), 1 + bit * 50)
        ways = {
            "a bit": flipped(data, bit),
            "others": another(data, bit),
            "the front": bytes(size) + data[size:],
            "the end": data[: len(data) - size] + bytes(size),
        }
        with as_before(shard.path):
            rewrite(shard.path, ways[how], same_time=True)
            named(f"{how} of {of.kind}", self._check_changed, of, shard, data, reader)
            self._check_index_stays(of, shard)
        if reader is None:
            self._check(of, "after the bytes were given back")

    @rule(of=sources, at=which, number=number)
    def take_a_sample_apart(self, of: Source, at: int, number: int) -> None:
        """Nobody reads a tar with the files of a sample in two places."""
        check_apart(of, of.shards[at % len(of.shards)], number, self._folder())

    @rule(of=sources, at=which, number=number)
    def compare_with_source(self, of: Source, at: int, number: int) -> None:
        """A packed folder is equal to its source, until records are gone."""
        shard = of.shards[at % len(of.shards)]
        named(f"verify --source, {of.kind}", check_verified, of, shard, number, self._folder())

    def _check_index_stays(self, of: Source, shard: Shard) -> None:
        """Indexed again, bytes that changed unseen do not become what was written."""
        path = of.index_of(shard)
        before = path.read_bytes()
        try:
            made = ffrecord.index(of.folder, index_dir=of.index_dir)
            demand(not made.indexed, f"indexed {made.indexed}, whose size and time are as before")
        except ERRORS as error:
            demand(shard.path.name in str(error), f"index does not name it: {error!r:.300}")
        demand(path.read_bytes() == before, f"{path.name} is another one")

    def _check_changed(
        self, of: Source, shard: Shard, before: bytes, reader: ffrecord.Reader | None
    ) -> None:
        after = shard.path.read_bytes()
        kept, first = of.kept(), 0
        whole = set(range(len(kept.rows)))
        for each in of.shards:
            if each is shard:
                for number, (begin, end) in enumerate(each.places):
                    if before[begin:end] != after[begin:end]:
                        whole.discard(first + number)
            first += len(each.rows)
        if reader is None:
            seen = check_reading(kept, Path(of.address), whole, has_all=True)
            demand(seen == whole, f"rows whose bytes have changed are read: {sorted(seen - whole)}")
            return
        batch = reader.read(range(len(kept.rows)), on_corrupt="keep")
        good = {row for row, status in enumerate(batch.status.tolist()) if not status}
        demand(good == whole, f"an open reader reads {sorted(good ^ whole)[:9]} otherwise")
        rows = [kept.rows[row] for row in sorted(good)]
        check_rows(of.columns, batch.select(sorted(good)), rows, "an open reader")

    @rule(
        of=sources,
        at=which,
        how=st.sampled_from(["touched", "cut", "longer", "another", "removed", "renamed"]),
        same_time=st.booleans(),
        by=number,
    )
    def change(self, of: Source, at: int, how: str, same_time: bool, by: int) -> None:
        """A source with another size or time, or none, is refused by name on every path."""
        shard = of.shards[at % len(of.shards)]
        data = shard.path.read_bytes()
        with as_before(shard.path):
            if how == "touched":
                rewrite(shard.path, data, same_time=False)
            elif how == "another":
                rewrite(shard.path, another(data, by), same_time=False)
            elif how == "longer":
                rewrite(shard.path, data + bytes(1 + by * 100), same_time)
            elif how == "cut" and data:
                rewrite(shard.path, data[: max(0, len(data) - 1 - by * 100)], same_time)
            elif how == "removed":
                shard.path.unlink()
            elif how == "renamed":
                shard.path.rename(self._folder() / shard.path.name)
            else:
                return
            self._refused(of, (shard,), f"a source was {how}")
        self._check(of, "after the source was given back")

    @rule(of=sources, at=which, name=st.sampled_from(["o.ffr", "o"]), before=st.booleans())
    def pack_while_it_changes(self, of: Source, at: int, name: str, before: bool) -> None:
        """A source that changes before its last sample is packed is refused by name."""
        path, made = of.shards[at % len(of.shards)].path, self._folder() / name
        whole = of.folder if of.kind == "mds" else path
        with as_before(path):

            def change(done: int = 0) -> None:
                rewrite(path, path.read_bytes(), same_time=False)

            opened = open_source(whole, SourceOptions(raw=of.kind in ("jsonl", "tfrecord")))
            if before:
                change()
            try:
                pack(opened, made, progress=change)
            except ERRORS as error:
                demand(str(whole) in str(error), f"{of} is not named: {error!r:.300}")
            else:
                raise Differs(f"{path.name} changed while it was packed into {name}")
        demand(not made.exists(), f"{of} changed, and was published")

    @rule(of=sources, at=which)
    def touch_and_index(self, of: Source, at: int) -> None:
        """A source with another time is indexed again, alone."""
        shard = of.shards[at % len(of.shards)]
        rewrite(shard.path, shard.path.read_bytes(), same_time=False)
        self._indexed(of, [shard])
        self._check(of, "after a source was touched and indexed")

    @rule(of=sources, at=which, how=st.sampled_from(["touched", "changed", "other", "removed"]))
    def change_description(self, of: Source, at: int, how: str) -> None:
        """What describes a source has changed: refused by name; indexed again, it is as it was."""
        shard = of.shards[at % len(of.shards)]
        path = of.description_of(shard)
        if path is None:
            return
        data = path.read_bytes()
        with as_before(path):
            if how == "removed":
                path.unlink()
                self._check(of, "after what describes it was removed")
                return
            changed = {
                "touched": data,
                # More documents; spaces.
                "changed": data + (bytes(8) if of.kind == "megatron" else b"  "),
                "other": data[:-20] + bytes(20),
            }
            rewrite(path, changed[how], same_time=False)
            self._refused(of, of.shards, f"the {path.name} of a source was {how}", path.name)
            if how == "other":
                return
            concerned = [shard] if (of.kind, how) == ("megatron", "changed") else []
            self._indexed(of, concerned)
            self._check(of, f"after its {path.name} was {how}, and it was indexed")
        self._refused(of, of.shards, f"{path.name} is as it was at first", path.name)
        self._indexed(of, concerned)

    def _refused(
        self, of: Source, shards: Sequence[Shard], what: str, also: str = "no other"
    ) -> None:
        """No path reads the source, and the error names one of the shards."""
        names = [*(shard.path.name for shard in shards), also]
        ways: dict[str, Callable[[], Any]] = {
            "open": lambda: ffrecord.open(of.address).read([0]),
            "len": lambda: len(ffrecord.open(of.address)),
            "read_table": lambda: ffrecord.read_table(of.address),
        }
        for name, way in ways.items():
            try:
                way()
            except ERRORS as error:
                is_named = any(each in str(error) for each in names)
                demand(is_named, f"{what}: {name} does not name it: {error!r:.300}")
                continue
            raise Differs(f"{what}: {name} reads {of}")
        for words in (("head", of.address), ("stats", of.address), ("verify", of.address)):
            code, out, err = run("ffrecord", *words)
            demand(code != 0, f"{what}: ffrecord {words[0]} of {of}: exit code 0: {out[:200]!r}")
            said = err + out.decode()
            is_named = any(each in said for each in names)
            demand(is_named, f"{what}: ffrecord {words[0]} does not name it: {said[-300:]}")

    # Indexes.

    @rule(
        of=sources,
        at=which,
        how=st.sampled_from(["a bit", "cut", "zeros", "a page", "longer", "swapped", "removed"]),
        bit=number,
    )
    def damage_index(self, of: Source, at: int, how: str, bit: int) -> None:
        """A damaged index gives right rows or errors; made again, it is whole."""
        shard = of.shards[at % len(of.shards)]
        path, other = of.index_of(shard), of.index_of(of.shards[(at + 1) % len(of.shards)])
        data = path.read_bytes()
        page = bit % max(1, len(data) // 4096) * 4096
        ways = {
            "a bit": flipped(data, bit),
            "cut": data[: bit * len(data) // 61],
            "zeros": bytes(len(data)),
            "a page": data[:page] + bytes(len(data[page : page + 4096])) + data[page + 4096 :],
            "longer": data + data[:bit],
            "swapped": other.read_bytes(),
        }
        if how == "removed":
            path.unlink()
            if len(of.shards) > 1 and of.index_dir is None:
                self._refused(of, (shard,), "an index was removed")
        elif ways[how] == data:
            return
        else:
            path.write_bytes(ways[how])
            named(f"{how} of an index of {of.kind}", self._check_index, of, shard)
        made = ffrecord.index(of.folder, index_dir=of.index_dir)
        demand(set(made.indexed) <= {str(shard.path)}, f"indexed {made.indexed}")
        self._check(of, f"after an index was damaged ({how}) and made again")

    def _check_index(self, of: Source, shard: Shard) -> None:
        """Rows are right or errors, and an error of opening names the index or its source."""
        kept = of.kept()
        try:
            reader = ffrecord.open(of.address, max_corrupt=1.0)
            batch = reader.read(range(len(reader)), on_corrupt="keep")
        except ERRORS as error:
            names = (shard.path.name, of.index_of(shard).name)
            demand(any(name in str(error) for name in names), f"not named: {error!r:.300}")
            return
        demand(len(batch) == len(kept.rows), f"{len(batch)} rows, not {len(kept.rows)}")
        good = [row for row, status in enumerate(batch.status.tolist()) if not status]
        rows = [kept.rows[row] for row in good]
        check_rows(of.columns, batch.select(good), rows, "by a damaged index")

    @rule(of=sources, after=st.integers(0, 3))
    def index_and_be_killed(self, of: Source, after: int) -> None:
        """An indexing that is killed leaves whole indexes, and the next one makes the others."""
        for shard in of.shards:
            of.index_of(shard).unlink()

        def child(say: Callable[[], None]) -> None:
            left = itertools.count()

            def killed(done: int, total: int) -> None:
                say()
                if next(left) == after:
                    os._exit(0)

            ffrecord.index(of.folder, index_dir=of.index_dir, progress=killed)

        done = in_child(child)
        self._indexed(of, of.shards[done:])
        self._check(of, "after an indexing was killed")

    def _check(self, of: Source, what: str) -> None:
        """All rows, one after the other and out of order."""
        kept = of.kept()
        try:
            with ffrecord.open(of.address) as reader:
                READINGS["columns of a read"](kept, reader)
                READINGS["find"](kept, reader)
        except Differs as error:
            raise Differs(f"{what}: {error}") from None
        except ERRORS as error:
            raise Differs(f"{what}: {of} cannot be read: {error!r:.300}") from None

    def _folder(self) -> Path:
        made = self.folder / f"work-{next(self.names)}"
        made.mkdir()
        return made


MODEL = InPlace
