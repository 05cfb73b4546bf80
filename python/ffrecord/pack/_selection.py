"""Which columns of a table are packed, and as what: --column, --drop, --cast."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ffrecord._tables.arrow_types import mark_of, shown_type
from ffrecord._tables.formats import pyarrow
from ffrecord._tables.schema import columns_of, parse
from ffrecord.pack._cast import check_kept, shown_field
from ffrecord.pack._source import SourceOptions
from ffrecord.pack._table_schema import TableSchema

_FILE_FIELDS = ["bytes", "path"]


class Selection:
    """Columns of tables of one schema, by name."""

    def __init__(self, arrow: Any, options: SourceOptions, where: str) -> None:  # noqa: ANN401
        """Choose from a schema of pyarrow.

        Raises:
            ValueError: there is no such column, or records cannot hold one; names it and what
                helps.
        """
        if twice := [name for name, count in Counter(arrow.names).items() if count > 1]:
            raise ValueError(f"{where} has several columns called '{twice[0]}': rename them")
        self._where = where
        self._files = files_in(arrow)
        fields = {field.name: field for field in self._spread(arrow)}
        casts = dict(options.cast)
        for name in (*options.columns, *options.drop, *casts):
            if name not in fields:
                raise ValueError(f"{where} has no column '{name}'; columns: {', '.join(fields)}")
        names = [n for n in dict.fromkeys(options.columns or fields) if n not in options.drop]
        if not names:
            raise ValueError(f"{where} has no columns left: there is nothing to pack")
        self._wanted = {name: _cast_of(fields[name], casts.get(name), where) for name in names}
        metadata = {k: v for k, v in (arrow.metadata or {}).items() if k != b"pandas"}
        made = pyarrow().schema(list(self._wanted.values()), metadata=metadata or None)
        self.schema = self._checked(made)

    @property
    def inputs(self) -> list[str]:
        """The columns of the file that are needed."""
        return list(dict.fromkeys(self._source_of(name) for name in self._wanted))

    def apply(self, table: Any, first: int, known: Any = None) -> Any:  # noqa: ANN401
        """The wanted columns of a table or batch, whose first row has that number.

        Args:
            table: of pyarrow.
            first: for errors.
            known: the schema to have, whose types mean the same; by default its own.

        Raises:
            ValueError: a value does not fit the type that --cast gives.
        """
        pa = pyarrow()
        wanted = self.schema.arrow if known is None else known
        arrays = []
        for field in wanted:
            array = self._column(table, field.name)
            if not array.type.equals(field.type):
                array = self._converted(array, field, first)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=wanted)

    def _checked(self, made: Any) -> TableSchema:  # noqa: ANN401
        try:
            return TableSchema(made)
        except ValueError as error:
            raise ValueError(
                f"{self._where}: {error}; --drop leaves a column out, --cast NAME=TYPE stores it "
                "as another type, --column names those to keep"
            ) from None

    def _spread(self, arrow: Any) -> list[Any]:  # noqa: ANN401
        """The fields, with two for each picture or sound: its bytes, and the path that it had."""
        pa = pyarrow()
        fields = []
        for field in arrow:
            if field.name in self._files:
                for part, name in zip(_FILE_FIELDS, self._files[field.name], strict=True):
                    fields.append(pa.field(name, field.type.field(part).type))
            else:
                fields.append(field)
        return fields

    def _source_of(self, name: str) -> str:
        for source, parts in self._files.items():
            if name in parts:
                return source
        return name

    def _column(self, table: Any, name: str) -> Any:  # noqa: ANN401
        source = self._source_of(name)
        array = table.column(source)
        if source not in self._files:
            return array
        part = _FILE_FIELDS[self._files[source].index(name)]
        chunks = array.chunks if hasattr(array, "chunks") else [array]
        number = array.type.get_field_index(part)
        found = [chunk.flatten()[number] for chunk in chunks]  # Null where the struct is null.
        return pyarrow().chunked_array(found, array.type.field(part).type)

    def _converted(self, array: Any, wanted: Any, first: int) -> Any:  # noqa: ANN401
        pa = pyarrow()
        try:
            made = array.cast(wanted.type)
            check_kept(array, made, wanted)
        except (pa.ArrowException, NotImplementedError) as error:
            said = str(error).partition("\n")[0]
            raise ValueError(
                f"{self._where}: the column '{wanted.name}' is {array.type}, and cannot be "
                f"{shown_field(wanted)} in one of the rows from {first} to "
                f"{first + len(array) - 1}: {said}"
            ) from None
        return made


def files_in(arrow: Any) -> dict[str, tuple[str, str]]:  # noqa: ANN401
    """The names for bytes and path of each column of pictures or sounds of `datasets`."""
    pa = pyarrow()
    found = {}
    for name, feature in features_in(arrow.metadata or {}).items():
        if not isinstance(feature, dict) or feature.get("_type") not in ("Image", "Audio"):
            continue
        number = arrow.get_field_index(name)
        kind = arrow.field(number).type if number >= 0 else None
        if kind is None or not pa.types.is_struct(kind):
            continue
        path = f"{name}.path"
        if sorted(field.name for field in kind) == _FILE_FIELDS and path not in arrow.names:
            found[name] = (name, path)
    return found


def features_in(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The features of a file's columns by `datasets`; empty if there are none."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def classes_in(metadata: Mapping[bytes, bytes], names: list[str]) -> tuple[str, ...]:
    """The names of labels that `datasets` stores, if there is one column of labels."""
    found = [
        tuple(map(str, feature["names"]))
        for name, feature in features_in(metadata).items()
        if name in names
        and isinstance(feature, dict)
        and feature.get("_type") == "ClassLabel"
        and isinstance(feature.get("names"), list)
    ]
    return found[0] if len(found) == 1 else ()


def _cast_of(field: Any, spelling: str | None, where: str) -> Any:  # noqa: ANN401
    """The field with the type that the user wants."""
    if spelling is None:
        return field
    pa = pyarrow()
    mark = None
    try:
        wanted = columns_of(parse({field.name: spelling}))[0].kind
        kind, mark = shown_type(wanted), mark_of(wanted)
    except ValueError:
        try:
            kind = pa.type_for_alias(spelling)
        except ValueError:
            raise ValueError(
                f"{where}: --cast {field.name}={spelling}: there is no such type; types are i64, "
                "f32, utf8 and so on, and those that Arrow names, such as timestamp[us]"
            ) from None
    return pa.field(field.name, kind, field.nullable, mark)
