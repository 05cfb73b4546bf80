"""Functions of samples for `pack(source, map=...)` and `--map`, for what most datasets need.

Each is made with its arguments, such as `maps.resize(256)`. Results do not depend on the number of
processes, nor on which of them were killed.
"""

from ffrecord.pack.maps._bins import bins
from ffrecord.pack.maps._chain import chain
from ffrecord.pack.maps._duplicates import deduplicate
from ffrecord.pack.maps._duration import duration
from ffrecord.pack.maps._expression import keep
from ffrecord.pack.maps._images import resize
from ffrecord.pack.maps._tokenize import tokenize

__all__ = ["bins", "chain", "deduplicate", "duration", "keep", "resize", "tokenize"]
