"""Text to tokens, by a tokenizer of Hugging Face's."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from ffrecord.pack._source import needed
from ffrecord.pack.maps._base import Map, Sample, column_in, value_of

_FILE = "tokenizer.json"
_COLUMNS = ("text", "content")


class tokenize(Map):
    """Makes a list of tokens of each text, or of all texts blocks of the same number of tokens.

    The column is `tokens`: u16 if all tokens of the tokenizer fit, else u32. The last block of each
    part of the result has what is left, and may be shorter. Texts are neither cut nor filled up,
    even if the file of the tokenizer says so.

    Args:
        tokenizer: a file `tokenizer.json`, or a folder with it, as `save_pretrained` leaves it.
        block: tokens in a record; 0 for a record for each text.
        column: with the text; by default the one called text or content.
        end: a token that is added behind each text, such as "<|endoftext|>".
        special: add the special tokens that the tokenizer adds by default.

    Raises:
        ValueError: the file is no tokenizer, or has no such token.
        ImportError: tokenizers is not installed.
    """

    def __init__(
        self,
        tokenizer: str,
        block: int = 0,
        column: str = "",
        end: str = "",
        special: bool = False,
    ) -> None:
        """Read the tokenizer, which other processes get with the function."""
        if block < 0:
            raise ValueError(f"tokenize: block is {block}, at least 0")
        path = os.path.join(tokenizer, _FILE) if os.path.isdir(tokenizer) else tokenizer
        with open(path, encoding="utf-8") as file:
            self.json = file.read()
        self.path = path
        self.block, self.column, self.end, self.special = block, column, end, special
        self.gathers = block > 0
        self.version = needed("tokenizers", "tokenize", "tokenizers").__version__
        made = self._made()
        self.end_token = made.token_to_id(end) if end else None
        if end and self.end_token is None:
            raise ValueError(f"tokenize: {path} has no token {end!r}")
        largest = max(made.get_vocab(with_added_tokens=True).values(), default=0)
        self.type = "u2" if largest < 1 << 16 else "u4"
        self.begin()

    def begin(self) -> None:
        """Forget what is gathered."""
        self._held: list[int] = []

    def columns(self, source: Any) -> Any:  # noqa: ANN401 - see `Map`
        """Return the list of tokens."""
        from ffrecord._tables.formats import pyarrow

        pa = pyarrow()
        if source is not None:
            self.column = column_in(source, self._names(), "tokenize", "column")
        item = pa.field("item", pa.from_numpy_dtype(np.dtype(self.type)), nullable=False)
        return pa.schema([pa.field("tokens", pa.list_(item), nullable=False)])

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401
        """Return tokens, or the blocks that are full."""
        column = self.column or column_in(sample, self._names(), "tokenize", "column")
        text = value_of(sample, column, "tokenize")
        if text is None:
            return None
        if not isinstance(text, str):
            raise ValueError(f"tokenize: '{column}' is {type(text).__name__}, not text")
        tokens = list(self._made().encode(text, add_special_tokens=self.special).ids)
        if self.end_token is not None:
            tokens.append(self.end_token)
        if not self.block:
            return self._row(tokens)
        self._held += tokens
        rows: list[Sample] = []
        while len(self._held) >= self.block * (len(rows) + 1):
            at = self.block * len(rows)
            rows.append(self._row(self._held[at : at + self.block]))
        del self._held[: self.block * len(rows)]
        return rows

    def rest(self) -> Iterable[Sample]:
        """Return the last block."""
        held = self._held
        self.begin()
        return [self._row(held)] if held else []

    def _row(self, tokens: list[int]) -> Sample:
        return {"tokens": np.array(tokens, self.type)}

    def _names(self) -> tuple[str, ...]:
        return (self.column,) if self.column else _COLUMNS

    def _made(self) -> Any:  # noqa: ANN401 - tokenizers has no types
        if "_tokenizer" not in vars(self):
            try:
                self._tokenizer = needed("tokenizers", "tokenize").Tokenizer.from_str(self.json)
            except Exception as error:  # The library has no type for it.
                raise ValueError(f"tokenize: {self.path} is no tokenizer: {error}") from None
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        return self._tokenizer
