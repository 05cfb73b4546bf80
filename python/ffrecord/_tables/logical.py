"""Columns of records as their users see them, and how each of them is stored."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from ffrecord._tables.arrow_schema import Facts, Types, check_together, joined_types
from ffrecord._tables.nested import Layout, joint, layout_of
from ffrecord._tables.schema import Column, Kind
from ffrecord.errors import CorruptionError


@dataclass(frozen=True)
class LogicalSchema:
    """The columns of a file, or of several: names, types, Arrow's types, and what stores them.

    Made once, when files are opened. Readers, views, batches, formats and commands have the names
    of columns from it; names of stored columns are in it alone.
    """

    stored: tuple[Column, ...] = ()
    """The stored columns, in the order of a record."""
    holding: frozenset[str] | None = None
    """The columns that hold nulls, as `layout_of` takes it; None if that is not known."""
    arrow: tuple[bytes, ...] = ()
    """The schemas of Arrow that the files were written with, each once; empty if one has none."""
    trouble: str | None = None
    """Why the schemas of Arrow are not known, if they are damaged."""
    is_raw: bool = False
    """Whether the stored columns are what is seen."""
    types: Types = ()
    """The types of columns of bytes, as far as the files say it."""

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.stored, self.holding, self.arrow, self.trouble, self.is_raw, self.types
        return LogicalSchema, parts  # Computed values are not sent.

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns that users see."""
        layout = self._layout
        if layout is None:
            return self.stored
        by_name = {column.name: column for column in self.stored}
        return tuple(
            Column(name, layout.nested[name].spelling, (), layout.nested[name])
            if name in layout.nested
            else by_name[name]
            for name in layout.names
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def is_flat(self) -> bool:
        """Whether each column is one stored column, none of whose values may be missing."""
        return all(column.nested is None for column in self.columns)

    @cached_property
    def full(self) -> frozenset[str]:
        """Columns that are stored as nullable, and hold no null."""
        return frozenset() if self._layout is None else frozenset(self._layout.full)

    @cached_property
    def raw(self) -> "LogicalSchema":
        """The stored columns as columns."""
        return replace(self, is_raw=True)

    @cached_property
    def _layout(self) -> Layout | None:
        return None if self.is_raw else layout_of(self.stored, self.holding)

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {column.name: number for number, column in enumerate(self.stored)}

    @property
    def schema(self) -> dict[str, str]:
        """Type by column."""
        return {column.name: column.spelling for column in self.columns}

    def only(self, names: Iterable[str]) -> "LogicalSchema":
        """These columns, and what stores them; KeyError as `column`."""
        wanted = tuple(dict.fromkeys(names))
        for name in wanted:
            self.column(name)
        if wanted == self.names:
            return self
        by_name = {column.name: (column,) for column in self.stored}
        parts = by_name if self._layout is None else by_name | dict(self._layout.parts)
        return replace(
            self,
            stored=tuple(each for name in wanted for each in parts[name]),
            types=tuple(pair for pair in self.types if pair[0] in wanted),
        )

    def find(self, name: str) -> Column | None:
        """The column of that name, if there is one."""
        return self._by_name.get(name)

    def column(self, name: str) -> Column:
        """The column of that name.

        Raises:
            KeyError: there is none; names those that there are.
        """
        found = self._by_name.get(name)
        if found is None:
            known = ", ".join(self.names) or "none, records are plain bytes"
            raise KeyError(f"no column '{name}'; columns: {known}")
        return found

    def kind(self, name: str) -> Kind:
        """The type of a column; KeyError as `column`."""
        return self.column(name).kind

    def nested(self, name: str) -> Kind | None:
        """The type of a nullable, ragged or nested column; None for others."""
        found = self._by_name.get(name)
        return None if found is None else found.nested

    def number(self, name: str) -> int:
        """Which stored column that is; KeyError if there is none."""
        if name not in self._numbers:
            self.column(name)
        return self._numbers[name]

    def arrow_schemas(self) -> tuple[bytes, ...]:
        """The schemas of Arrow, if they are whole.

        Raises:
            CorruptionError: the metadata of a file is damaged.
        """
        if self.trouble is not None:
            raise CorruptionError(self.trouble)
        return self.arrow

    @staticmethod
    def of_files(
        stored: tuple[Column, ...], name_of: Callable[[int], str], facts: Iterable[Facts]
    ) -> "LogicalSchema":
        """That of files with the same stored columns.

        Args:
            stored: the columns.
            name_of: the name of a file.
            facts: what the metadata of each say.

        Raises:
            ValueError: the types of Arrow differ in more than how values are stored; names the
                files, the column and its types.
        """
        each = [
            LogicalSchema(stored, one.holding, one.schemas, one.trouble, types=one.types)
            for one in facts
        ]
        return LogicalSchema.of_all(each, name_of)

    @staticmethod
    def of_all(parts: "Sequence[LogicalSchema]", describe: Callable[[int], str]) -> "LogicalSchema":
        """That of several sequences as one.

        Args:
            parts: of each sequence, at least one.
            describe: which sequence that is, for errors.

        Raises:
            ValueError: their columns differ, or their types of Arrow do.
        """
        first = parts[0]
        for number, other in enumerate(parts):
            if other.stored != first.stored or other.is_raw != first.is_raw:
                raise ValueError(_differ(first, other, describe(0), describe(number)))
        known: dict[tuple[bytes, ...], int] = {}
        for number, part in enumerate(parts):
            if part.trouble is None:
                known.setdefault(part.arrow, number)
        for (one, place), (two, where) in pairwise(known.items()):
            check_together(one, two, describe(place), describe(where))
        holding = [part.holding for part in parts]
        whole = [one for one in holding if one is not None]
        schemas = dict.fromkeys(schema for part in known for schema in part)
        return LogicalSchema(
            first.stored,
            frozenset().union(*whole) if len(whole) == len(holding) else None,
            () if () in known else tuple(schemas),
            next((part.trouble for part in parts if part.trouble is not None), None),
            first.is_raw,
            joined_types([part.types for part in parts], describe),
        )

    @staticmethod
    def of_any(parts: "Sequence[LogicalSchema]", describe: Callable[[int], str]) -> "LogicalSchema":
        """As `of_all`, if some sequences have no room for the nulls of others.

        Batches of those get it by `Batch.under`, which copies them.
        """
        if len({part.stored for part in parts}) == 1:
            return LogicalSchema.of_all(parts, describe)
        try:
            stored = joint(part.stored for part in parts)
        except ValueError:
            return LogicalSchema.of_all(parts, describe)  # Which says where they differ.
        return LogicalSchema.of_all([part._widened(stored) for part in parts], describe)

    def _widened(self, stored: tuple[Column, ...]) -> "LogicalSchema":
        """The same columns with room for nulls in all that are `stored`."""
        layout = layout_of(self.stored)
        kinds = () if layout is None else layout.nested.values()
        holding = self.holding if any(map(_may_lack, kinds)) else frozenset[str]()
        return replace(self, stored=stored, holding=holding)


def _may_lack(kind: Kind) -> bool:
    """Whether a value, or one in it, may be missing."""
    return kind.nullable or any(_may_lack(each) for _, each in kind.fields)


def _differ(first: LogicalSchema, other: LogicalSchema, one: str, two: str) -> str:
    """Why sequences cannot be one: in the words of their columns, if these differ."""
    texts = []
    for part in (first, other):
        shown = part if first.columns != other.columns else part.raw
        texts.append(", ".join(f"{c.name}: {c.spelling}" for c in shown.columns) or "none")
    how = "columns" if first.columns != other.columns else "columns stored otherwise"
    remedy = "" if first.columns != other.columns else "; write them again with this version"
    return (
        f"{two} has the {how} {texts[1]}, and {one} has {texts[0]}: they cannot be one sequence"
        f"{remedy}"
    )
