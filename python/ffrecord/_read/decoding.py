"""How a batch goes through several decoders."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ffrecord._order.epoch_order import IndexBatch, Indices, SeededIndices
from ffrecord._read.batch import Batch
from ffrecord._tables.schema import Values
from ffrecord.decode._decoder import Decode, Decoder, Field, Timed


class Origin(NamedTuple):
    """Seed, epoch and positions for randomness about the rows of one read."""

    seed: int
    epoch: int
    places: Indices | None
    """The place of each row in its order; None if the indices tell the draws apart."""

    @staticmethod
    def of(indices: object) -> "Origin":
        """The origin of these indices."""
        if isinstance(indices, IndexBatch):
            return Origin(indices.seed, indices.epoch, indices.positions)
        if isinstance(indices, SeededIndices):
            return Origin(indices.seed, indices.epoch, indices.places)
        return Origin(0, 0, None)


def decoded(batch: Batch, decode: Decode | Timed, origin: Origin, rows: Indices | None) -> Batch:
    """The batch with decoded values; a value that is missing is None.

    Args:
        batch: as it was read.
        decode: decoders by column, or one decoder.
        origin: of the read.
        rows: which rows of the read the batch has; None if all.

    Raises:
        KeyError: there is no such column, or it has no bytes of its own.
        TypeError: columns are named but there are none, or the other way round.
    """
    if isinstance(decode, Timed):
        with decode.stages.timed("decode"):
            seen = _in_sight(decode.inner, decode.columns)
            return decoded(batch, seen, origin, rows)
    batch = batch.apart()  # Values may be views of the block.
    values: dict[str | None, Values] = {}
    reasons: dict[int, str] = {}
    if origin.places is None:
        positions = batch.indices
    else:
        positions = origin.places if rows is None else origin.places[rows]
    for name, decoder in _by_column(batch, decode).items():
        missing = None if name is None else batch.missing(name)
        status = batch.status
        if missing is not None:  # There is nothing to decode, and nothing is damaged.
            status = np.where(missing, 1, status).astype(np.uint8)
        field = Field(*batch.field(name), status, origin.seed, origin.epoch, positions)
        made, wrong = decoder.decode(field)
        if missing is not None:
            pairs = zip(made, missing.tolist(), strict=True)
            made = [None if is_missing else value for value, is_missing in pairs]
        values[name] = made
        what = "" if name is None else f"column '{name}': "
        for row, reason in wrong.items():
            reasons.setdefault(row, what + reason)
    return batch.with_decoded(values, reasons)


def _in_sight(decode: Decode, columns: Iterable[str] | None) -> Decode:
    if columns is None or not isinstance(decode, Mapping):
        return decode
    return {name: decode[name] for name in columns if name in decode}


def _by_column(batch: Batch, decode: Decode) -> Mapping[str, Decoder] | Mapping[None, Decoder]:
    names = ", ".join(column.name for column in batch.column_types)
    if isinstance(decode, Decoder):
        if names:
            raise TypeError(
                f"decode= is one decoder, but the records have the columns {names}; name one: "
                "decode={'column': decoder}"
            )
        return {None: decode}
    if decode and not names:
        raise TypeError(
            "decode= names columns, but records are plain bytes: set decode= to the decoder itself"
        )
    return decode
