"""`tf.train.SequenceExample`: features of the whole, and lists with a feature for each step.

Fields and numbers are those of tensorflow/core/example/example.proto.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ffrecord._tables.formats import pyarrow
from ffrecord.pack._example import Sequence, has_field, parse_sequence
from ffrecord.pack._source import WHOLE, Part, picked
from ffrecord.pack._tfrecord import Batch, Feature, TFRecordTable, batches_of, payloads_of, some

_LOOK_RECORDS = 10


def is_sequence(path: str) -> bool:
    """Whether one of the first records has lists of features, which an Example has not."""
    payloads = (payload for payload, _ in payloads_of(path, Part(0, WHOLE, 0)))
    return any(has_field(payload, 2) for payload in islice(payloads, _LOOK_RECORDS))


class SequenceTable(TFRecordTable):
    """Columns of the context as those of an Example; a list for each list of features.

    An item of such a list is what a column of an Example would be: bytes, a number, or a list of
    numbers. Names of the context and of lists differ.
    """

    what = "TFRecord file of SequenceExample"

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The types of the first records."""
        if (found := self.read_before()) is not None:
            return found
        context: dict[str, Feature] = {}
        lists: dict[str, Feature] = {}
        payloads = self.payloads(Part(0, WHOLE, 0))
        records = (self._sequence(number, one[0]) for number, one in enumerate(payloads))
        for number, parsed in enumerate(some(records, _size_bytes)):
            for name in parsed.context.keys() - context.keys():
                context[name] = Feature(is_late=number > 0)
            for name, feature in context.items():
                feature.note(parsed.context.get(name, []))
            for name, steps in parsed.lists.items():
                feature = lists.setdefault(name, Feature(is_late=False))
                for step in steps:
                    feature.note(step)
        if both := context.keys() & lists.keys():
            raise ValueError(
                f"{self.path}: '{min(both)}' is a feature of the context and a list: keep whole "
                "records with --raw"
            )
        names = dict.fromkeys((*context, *lists), "")
        for asked in (self.options.ragged, self.options.columns, self.options.drop):
            picked(names, asked, self.path)
        fields = [self.field(name, context[name]) for name in sorted(context)]
        fields += [self._list(name, lists[name]) for name in sorted(lists)]
        return pyarrow().schema(fields)

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield some records at a time."""
        wanted = pyarrow().schema([self.found.field(name) for name in names])
        for batch in batches_of(self.payloads(part), part):
            arrays = self._columns(batch, wanted)
            yield pyarrow().Table.from_arrays(arrays, schema=wanted), batch.done_bytes

    def _list(self, name: str, feature: Feature) -> Any:  # noqa: ANN401 - pyarrow has no types
        pa = pyarrow()
        if not self.is_wanted(name):
            return self.field(name, feature)
        feature.counts = feature.counts or {1}
        item = self.field(name, feature).with_name("item")
        return pa.field(name, pa.list_(item), nullable=False)

    def _columns(self, batch: Batch, wanted: Any) -> list[Any]:  # noqa: ANN401
        rows = []
        picks = bool(self.options.columns or self.options.drop)
        for number, payload in enumerate(batch.payloads, batch.first):
            parsed = self._sequence(number, payload)
            names = parsed.context.keys() | parsed.lists.keys()
            if not picks and (new := names - set(wanted.names)):
                raise self.differs(number, min(new), "is new")
            rows.append([self._of(number, field, parsed) for field in wanted])
        return [
            pyarrow().array([row[i] for row in rows], field.type) for i, field in enumerate(wanted)
        ]

    def _of(self, number: int, field: Any, parsed: Sequence) -> Any:  # noqa: ANN401
        types = pyarrow().types
        if (steps := parsed.lists.get(field.name)) is not None:
            if not types.is_list(field.type):
                raise self.differs(number, field.name, "is a list")
            item = field.type.value_field.with_name(field.name)
            return [self.value(number, item, step) for step in steps]
        values = parsed.context.get(field.name, [])
        if types.is_list(field.type) and not len(values):
            return []
        if types.is_list(field.type) and types.is_nested(field.type.value_type):
            raise self.differs(number, field.name, "is no list")
        return self.value(number, field, values)

    def _sequence(self, number: int, payload: bytes) -> Sequence:
        try:
            return parse_sequence(payload)
        except ValueError as error:
            raise ValueError(
                f"{self.path}: record {number} is {error}; --raw keeps records as they are"
            ) from None


def _size_bytes(parsed: Sequence) -> int:
    values = [
        *parsed.context.values(),
        *(step for steps in parsed.lists.values() for step in steps),
    ]
    return sum(each.nbytes if hasattr(each, "nbytes") else sum(map(len, each)) for each in values)
