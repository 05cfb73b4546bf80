"""Text of columns that are bytes, or of whole records."""

from dataclasses import dataclass

from ffrecord.decode._decoder import Decoder, Field


@dataclass(frozen=True)
class Text(Decoder):
    """UTF-8 as `str`. A column of the type utf8 is `str` without this decoder, and raises if it is
    not UTF-8; with this decoder, a record that is not UTF-8 counts as corrupt.
    """  # noqa: D205 - one sentence each

    def decode(self, field: Field) -> tuple[list[str], dict[int, str]]:
        """See `Decoder`."""
        texts, wrong = [], {}
        block = field.slab.data
        spans = zip(field.starts.tolist(), field.sizes.tolist(), strict=True)
        for row, (start, size) in enumerate(spans):
            try:
                texts.append(str(block[start : start + size], "utf-8"))
            except UnicodeDecodeError as error:
                texts.append("")
                wrong[row] = f"not UTF-8: {error.reason} at byte {error.start}"
        return texts, wrong
