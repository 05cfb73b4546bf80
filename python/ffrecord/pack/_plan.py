"""The plan of a packing: inputs, cut into units of work, and all that decides the bytes.

A plan depends on the inputs and the options, never on the number of workers. A unit becomes the
same files in every process.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ffrecord._ffrecord import __version__
from ffrecord._tables.arrow_writing import is_arrow_schema
from ffrecord.pack._inputs import Cut, Input, Inputs
from ffrecord.pack._mapping import UserMap
from ffrecord.pack._source import SourceOptions
from ffrecord.pack._table_schema import TableSchema

VERSION = 2


@dataclass(frozen=True)
class Plan:
    """Inputs, units and options."""

    inputs: tuple[Input, ...]
    units: tuple[tuple[Cut, ...], ...]
    """Input that becomes one file, or several if it is large; in the order of the result."""
    asked: Mapping[str, Any]
    """Options, the function, the columns; values that JSON has."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "version": VERSION,
            "inputs": [list(one) for one in self.inputs],
            "units": [[list(cut) for cut in unit] for unit in self.units],
            "asked": dict(self.asked),
        }

    @property
    def id(self) -> str:
        """Identifies what comes of it."""
        return id_of(self.as_json())

    def size_bytes(self, unit: int) -> int:
        """Bytes of a unit's input."""
        return sum(cut.size_bytes for cut in self.units[unit])

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Say in which inputs and options `other`, a plan as plain values, differs from this."""
        here = json.loads(json.dumps(self.as_json()))
        found = []
        before = {path: rest for path, *rest in other.get("inputs", ())}
        now = {path: rest for path, *rest in here["inputs"]}
        found += [f"{path} is new" for path in now if path not in before]
        found += [f"{path} is missing" for path in before if path not in now]
        found += [
            f"{path} has changed" for path in now if path in before and now[path] != before[path]
        ]
        asked, was = here["asked"], other.get("asked", {})
        found += [
            f"{name} is {_short(asked.get(name))}, not {_short(was.get(name))}"
            for name in sorted({*asked, *was})
            if asked.get(name) != was.get(name)
        ]
        if not found and here != dict(other):
            found = ["the inputs are cut or ordered otherwise, or another version began it"]
        return found


def id_of(plan: Mapping[str, Any]) -> str:
    """The id of a plan as plain values."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def _short(value: Any) -> str:  # noqa: ANN401 - of any option
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def units_of(cuts: Iterable[Cut], size_bytes: int) -> tuple[tuple[Cut, ...], ...]:
    """Group cuts, in their order, until a group has this size."""
    units: list[tuple[Cut, ...]] = []
    group: list[Cut] = []
    total = 0
    for cut in cuts:
        group.append(cut)
        total += cut.size_bytes
        if total >= size_bytes:
            units.append(tuple(group))
            group, total = [], 0
    return tuple([*units, tuple(group)] if group else units)


def options_as_json(options: SourceOptions) -> dict[str, Any]:
    """Return the options of a source as plain values, without what is not the user's."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options._asdict().items()
        if name not in ("like", "known", "together")
    }


def is_begun_alike(plan: Mapping[str, Any], inputs: Inputs, user_map: UserMap) -> bool:
    """Whether a plan, as plain values, calls the same function on the same inputs."""
    asked = {
        "version": __version__,
        "options": options_as_json(inputs.options),
        "function": user_map.name,
        "function's code": user_map.identity,
    }
    here = json.loads(json.dumps([asked, [list(one) for one in inputs.list_all()]]))
    there = {name: plan["asked"].get(name) for name in asked}
    return bool(plan["version"] == VERSION and here == [there, plan["inputs"]])


def schema_as_json(schema: Any) -> Any:  # noqa: ANN401 - a mapping, or a schema of pyarrow
    """Return a schema as plain values."""
    if isinstance(schema, TableSchema):
        return {"table": schema.as_json()}
    if is_arrow_schema(schema):
        return {"arrow": base64.b64encode(schema.serialize().to_pybytes()).decode()}
    return {"columns": [list(one) for one in schema.items()]}


def schema_from_json(value: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    """Return the schema that `schema_as_json` was given."""
    if "table" in value:
        return TableSchema.from_json(value["table"])
    if "arrow" not in value:
        return {name: kind for name, kind in value["columns"]}
    from ffrecord._tables.formats import pyarrow

    pa = pyarrow()
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["arrow"])))
