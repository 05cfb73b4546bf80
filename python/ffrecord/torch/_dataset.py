"""Record files as map-style datasets."""

import copy
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
from torch.utils import data
from typing_extensions import TypeVar

from ffrecord import _ffrecord
from ffrecord._base.stage_times import Stages
from ffrecord._order.epoch_order import IndexBatch, Indices, SeededIndices, mixture_of
from ffrecord._order.mixture import Mixture
from ffrecord._read.batch import Batch
from ffrecord._read.locations import Where
from ffrecord._read.reader import Reader
from ffrecord._read.reader import open as open_records
from ffrecord._read.records import OnCorrupt as Policy
from ffrecord._read.records import Records, number_of_records
from ffrecord._tables.logical import LogicalSchema
from ffrecord._tables.schema import names_of
from ffrecord.compat._fileio import FileReader, owned
from ffrecord.decode._decoder import Decode, Timed
from ffrecord.torch._assembly import Piece
from ffrecord.torch._samples import Samples

if TYPE_CHECKING:
    from ffrecord.torch._subsets import ConcatDataset

OnCorrupt = Literal["raise", "skip", "replace"]
_guarded_pid = 0  # The id of the last worker process in which the handler was installed.

Keys = slice | Sequence[int] | npt.NDArray[np.integer[Any]]
Key = SupportsIndex | Keys
# A loader's error for a `Sampler` where it wants a sampler of indices.
BATCHES_AS_INDICES = (
    "sampler= wants single indices, but ffrecord.torch.Sampler gives whole batches of them: write"
    " DataLoader(dataset, batch_sampler=sampler), without batch_size"
)

# Views of torch's that pass plain indices on, which do not tell what belongs to the view.
_OF_TORCHS_VIEWS = {
    method.__code__
    for method in (
        data.Subset.__getitem__,
        data.Subset.__getitems__,
        data.ConcatDataset.__getitem__,
    )
}

# Any, if nothing says more, so that `Dataset` alone means what it did before it had a parameter.
T = TypeVar("T", covariant=True, default=Any)


class ReaderRegistry:
    """Finds the readers that an object holds, in attributes and in other registries."""

    def ffreaders(self) -> list[FileReader]:
        """Each `FileReader`, in the order in which the attributes were set."""
        readers: list[FileReader] = []
        for value in vars(self).values():
            if isinstance(value, FileReader):
                readers.append(value)
            elif isinstance(value, ReaderRegistry):
                readers += value.ffreaders()
        return readers


class Asked(NamedTuple):
    """The request to a view of torch's, which asks a dataset."""

    view: "Dataset[Any]"
    """The same view of ours."""
    key: Any
    """Its indices: of one sample, or of several."""
    is_one: bool
    made: tuple[Any, ...] = ()
    """The sample, if it was made with the others of its batch."""

    def samples(self) -> Any:  # noqa: ANN401 - as process makes it
        """The sample, or the samples."""
        if self.made:
            return self.made[0]
        if self.is_one:
            return self.view._batch(self.key, single=True)[0]
        return self.view[self.key]


class Views(NamedTuple):
    """The work of views of datasets, which are datasets themselves, for `Dataset`."""

    concat: "Callable[[Iterable[data.Dataset[Any]]], ConcatDataset[Any]]"
    asked_through_torch: "Callable[[Dataset[Any], FrameType], Asked | None]"


class Dataset(data.Dataset[T], ReaderRegistry):
    """Map-style dataset of records, for torch's own DataLoader and for `ffrecord.torch.DataLoader`.

    `Dataset[T]` has samples of type `T`, for type checkers: what `transform` returns, or what the
    program says, `train: Dataset[dict[str, Tensor]] = Dataset("train.ffr")`.

    A loader that knows `__getitems__` (torch's does) reads each batch in one submission. Files are
    opened at the first use; a pickle holds only the arguments, so workers start at once under any
    start method.

    `process` makes samples from the records of a batch: here it applies `transform`; code written
    for HFAiLab/ffrecord overrides it.
    """

    _views: ClassVar[Views]
    """Set by `_subsets`, which imports this module."""

    @overload
    def __init__(
        self: "Dataset[Any]",
        fnames: Where | Records,
        check_data: bool = True,
        *,
        transform: None = None,
        pass_generator: bool | None = None,
        columns: Iterable[str] | None = None,
        decode: Decode | None = None,
        on_corrupt: OnCorrupt = "raise",
        max_corrupt: float = 0.001,
    ) -> None: ...
    @overload
    def __init__(
        self,
        fnames: Where | Records,
        check_data: bool = True,
        *,
        transform: Callable[[Any], T] | Callable[[Any, np.random.Generator], T],
        pass_generator: bool | None = None,
        columns: Iterable[str] | None = None,
        decode: Decode | None = None,
        on_corrupt: OnCorrupt = "raise",
        max_corrupt: float = 0.001,
    ) -> None: ...
    def __init__(
        self,
        fnames: Where | Records,
        check_data: bool = True,
        *,
        transform: Callable[..., Any] | None = None,
        pass_generator: bool | None = None,
        columns: Iterable[str] | None = None,
        decode: Decode | None = None,
        on_corrupt: OnCorrupt = "raise",
        max_corrupt: float = 0.001,
    ) -> None:
        """Store the arguments; files stay open from the first use on.

        A missing location raises now, as by `ffrecord.open`.

        Args:
            fnames: as for `ffrecord.open`; or a reader or a view, which keeps its options.
            check_data: verify the checksum of each record on every read.
            transform: applied to each sample, in the worker.
            pass_generator: whether `transform` gets a NumPy generator as its second argument,
                seeded by (seed, epoch, index): augmentation is then the same at any world size and
                after a resume. Where an epoch may have a record several times (a `mix`, draws by
                weight, a subset of listed indices), the place in the order stands for the index:
                each draw is augmented anew. By default it does if it has a second parameter without
                a default.
            columns: the columns to return; all by default.
            decode: decoders by column, such as `{"image": decode.Image(224)}`, or one decoder for
                records that are plain bytes; see `ffrecord.decode`. Runs before `transform`.
            on_corrupt: what to do with a record that cannot be read: "raise"; "skip" shortens the
                batch, but if a batch has no good record, one place gets the next good record of the
                order, so that no step is empty; "replace" gives every place to the next good
                record. `stats` counts both.
            max_corrupt: share of all records that may be damaged before any policy raises.
        """
        if on_corrupt not in ("raise", "skip", "replace"):
            raise ValueError(f"on_corrupt is {on_corrupt!r}; it can be raise, skip, replace")
        self.fnames = fnames
        self.transform = transform
        self.pass_generator = pass_generator
        self.columns = names_of(columns)
        self.decode = decode
        if decode is not None and type(self).process is not Dataset.process:
            raise ValueError(
                f"{type(self).__name__} overrides process, which takes bytes: it cannot have "
                "decode= too"
            )
        self.on_corrupt: OnCorrupt = on_corrupt
        self._source = (
            fnames
            if isinstance(fnames, Records)
            else open_records(fnames, check_data=check_data, max_corrupt=max_corrupt)
        )

    @cached_property
    def reader(self) -> FileReader:
        """The files, for code written for HFAiLab/ffrecord; a subclass may set its own instead."""
        source = self.source
        if not isinstance(source, Reader):
            raise AttributeError(f"{source!r} is a view: there is no reader of only its files")
        return FileReader.over(source)

    @property
    def source(self) -> Records:
        """The records to read."""
        own = vars(self).get("_source", vars(self).get("reader"))
        if own is None:  # Not by its truth: a reader of no records is one.
            raise AttributeError(
                f"{type(self).__name__} has nothing to read: call super().__init__(fnames), or set "
                "self.reader to an ffrecord.FileReader"
            )
        return own.source if isinstance(own, FileReader) else own

    @property
    def fingerprint(self) -> str:
        """Changes if any record, or the order of records, changes."""
        return self.source.fingerprint

    @property
    def versions(self) -> tuple[str, ...]:
        """The named versions that it reads, such as `train@1.2`; see `Reader.versions`."""
        return self.source.versions

    @property
    def mixture(self) -> Mixture | None:
        """The proportions of a `mix`, for a `Sampler`."""
        return mixture_of(self.source)

    @cached_property
    def stages(self) -> Stages:
        """Where the time of this process went: `read`, and `decode` for what `process` does."""
        return Stages()

    def stats(self) -> dict[str, Any]:
        """Statistics of the reads in this process; see `Reader.stats`.

        Adds `decode_s`, the time in `process`, and `damaged_records`, the number of damaged
        records.
        """
        found = self.source.stats()
        decode_s = self.stages.sums().get("decode", 0.0)
        return {
            **found,
            "decode_s": decode_s,
            "damaged_records": number_of_records(found["damaged"]),
        }

    def note_damaged(self, found: Mapping[int, str]) -> None:
        """Count the damaged records in a worker's `stats`; see `Records.note_damaged`."""
        self.source.note_damaged(found)

    def with_format(self, format: str) -> Self:
        """The same samples in another format; see `Records.with_format`.

        Transforms get them so, and loaders keep it: the batches of `collate` have lists of `bytes`
        with "bytes", and are a `pyarrow.Table` with "arrow"; else tensors.

        Raises:
            ValueError: there is no such format, or a subclass makes its samples itself.
        """
        if type(self).process is not Dataset.process:
            raise ValueError(f"{type(self).__name__} overrides process, which takes arrays")
        made = copy.copy(self)
        made._source = self.source.with_format(format)
        for name in ("reader", "stages"):
            vars(made).pop(name, None)
        return made

    def process(self, indices: Sequence[int], data: Sequence[Any]) -> Any:  # noqa: ANN401
        """Make the samples of one batch.

        A subclass that overrides it gets a list of uint8 arrays, writable and with their own
        memory, and returns a list of as many samples. This one applies `transform`.

        Args:
            indices: index of each record.
            data: the records.
        """
        if self.transform is None:
            return data
        transforms: Iterable[Callable[[Any], Any]] = repeat(self.transform)
        takes: bool | None = vars(self).get("pass_generator")
        if _takes_generator(self.transform) if takes is None else takes:
            transforms = (_with_generator(self.transform, one) for one in _generators(indices))
        if isinstance(data, Batch):
            return Samples(data, transforms)
        return [transform(sample) for sample, transform in zip(data, transforms, strict=False)]

    @property
    def is_unchanged(self) -> bool:
        """Whether samples are records as they stand in the files."""
        if type(self) is not Dataset:  # A subclass may not have called `__init__`.
            return False
        return self.transform is None and vars(self).get("decode") is None and self._is_numpys

    @property
    def _is_numpys(self) -> bool:
        return self.source.format == "numpy"

    @property
    def is_plain(self) -> bool:
        """Whether a large batch can be cut into small ones: nothing is changed or left out."""
        return self.is_unchanged and self.on_corrupt == "raise"

    def __len__(self) -> int:
        return len(self.source)

    @overload
    def __getitem__(self, key: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, key: Keys) -> Any: ...  # noqa: ANN401 - as process makes it
    def __getitem__(self, key: Key) -> Any:
        """One sample for an integer; a batch of samples for a list, an array or a slice."""
        if (asked := self._asked_through_torch(sys._getframe(1))) is not None:
            return asked.samples()
        if isinstance(key, IndexBatch):
            return self._batch(key)
        if isinstance(key, slice):
            return self._batch(range(*key.indices(len(self))))
        try:
            index = operator.index(key)  # type: ignore[arg-type]
        except TypeError:
            if isinstance(key, list) and any(isinstance(each, IndexBatch) for each in key[:1]):
                raise ValueError(BATCHES_AS_INDICES) from None
            return self._batch(key)  # type: ignore[arg-type]
        return self._batch(SeededIndices.like([index], key), single=True)[0]

    def __getitems__(self, indices: Sequence[int]) -> Any:  # noqa: ANN401 - as process makes it
        """The samples of one batch; a subclass may define `__getitem__` of a list instead."""
        asked = self._asked_through_torch(sys._getframe(1))
        return self[indices] if asked is None else asked.samples()

    def _asked_through_torch(self, frame: FrameType) -> Asked | None:
        if frame.f_code not in _OF_TORCHS_VIEWS:
            return None
        return self._views.asked_through_torch(self, frame)

    def __iter__(self) -> Iterator[T]:
        batches = self.source.batches(on_corrupt=self.on_corrupt, decode=self._timed_decode())
        for batch in batches:
            yield from self._made(batch.indices.tolist(), batch)

    def __add__(self, other: data.Dataset[Any]) -> "ConcatDataset":  # type: ignore[override]
        return self._views.concat([self, other])

    def ffreaders(self) -> list[FileReader]:
        """Each `FileReader`; see `ReaderRegistry`."""
        if isinstance(vars(self).get("_source"), Reader):
            _ = self.reader  # Made on demand.
        return super().ffreaders()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if "_source" in state:
            state.pop("reader", None)  # Made on demand.
        return state

    def __repr__(self) -> str:
        return f"<ffrecord.torch.{type(self).__name__} over {self.source!r}>"

    @property
    def _max_corrupt(self) -> float:
        return self.source._max_corrupt

    def _batch(self, indices: Sequence[int], *, single: bool = False) -> Any:  # noqa: ANN401
        """The samples of `indices`; a `single` one cannot be skipped, so "skip" raises."""
        on_corrupt = "raise" if single and self.on_corrupt == "skip" else self.on_corrupt
        batch = self._read(indices, on_corrupt)
        if not len(batch) and len(indices):  # Training would end at a step without a sample.
            indices = _first(indices)
            batch = self._read(indices, "replace")
        if on_corrupt != "raise":  # The batch may have other records, or fewer.
            rows = _rows_left(indices, batch.indices)
            indices = SeededIndices.like(batch.indices.tolist(), indices, rows)
        return self._made(indices, batch)

    def _read(self, indices: Sequence[int], on_corrupt: Policy) -> Batch:
        _guard_in_worker()
        with self.stages.timed("read"):
            decode = self._timed_decode()
            # A program changes samples, and what loaders make of them, in place.
            return self.source.read(indices, on_corrupt=on_corrupt, decode=decode).apart()

    def _pieces(self, indices: Sequence[int]) -> list[Piece]:
        """The records of a view's batch, which applies `on_corrupt` to them."""
        found = self._read(indices, "raise" if self.on_corrupt == "raise" else "keep")
        return [Piece(np.arange(len(found)), self, indices, found)]

    @property
    def _joint(self) -> LogicalSchema | None:
        """The columns of its records, if samples are made of batches."""
        return self.source.logical if type(self).process is Dataset.process else None

    @property
    def _shown(self) -> tuple[object, ...]:
        """The columns of samples, and how they come."""
        decode: Decode | None = vars(self).get("decode")
        decoded = frozenset(decode) if isinstance(decode, Mapping) else decode is not None
        return self.source.format, self.columns, decoded

    def _note_from_view(self, found: Mapping[int, str]) -> None:
        """Count damaged records that a view has found, which has a limit of its own."""
        self.source.note_damaged(found, elsewhere=True)

    def _timed_decode(self) -> Timed | None:
        decode: Decode | None = vars(self).get("decode")
        return None if decode is None else Timed(decode, self.stages, self.columns)

    def _made(self, indices: Sequence[int], batch: Batch) -> Any:  # noqa: ANN401
        try:
            return self._processed(indices, batch)
        except StopIteration as error:  # A loader would take it for the end of the epoch.
            raise RuntimeError(
                f"transform or process raised StopIteration for a batch of {len(indices)} records, "
                "as next() of an empty iterator does"
            ) from error

    def _processed(self, indices: Sequence[int], batch: Batch) -> Any:  # noqa: ANN401
        with self.stages.timed("decode"):
            if type(self).process is not Dataset.process:
                return self.process(indices, owned(batch.records()))
            seen = batch if self.columns is None else batch.only(self.columns)
            return self.process(indices, seen)


def _guard_in_worker() -> None:
    """In torch's processes, whose handler of bus errors would end them if a file shrinks."""
    global _guarded_pid
    if data.get_worker_info() is not None and _guarded_pid != os.getpid():
        _guarded_pid = os.getpid()
        _ffrecord.restore_sigbus_guard()


def _first(indices: Sequence[int]) -> Sequence[int]:
    """The first of them, with the same position in the stream, or seed and epoch."""
    if isinstance(indices, IndexBatch):
        return indices.part(0, 1)
    return SeededIndices.like(indices[:1], indices, slice(1))


def _with_generator(transform: Callable[..., Any], generator: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    return lambda sample: transform(sample, generator)


def _takes_generator(transform: Callable[..., Any]) -> bool:
    """Whether it has a second parameter without a default."""
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):
        return False  # A builtin without a signature.
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) == 2


def _rows_left(indices: Sequence[int], found: Indices) -> Indices | slice:
    """Rows of a read with these indices whose records were not skipped."""
    if len(indices) == found.size:
        return slice(None)
    left = iter(found.tolist())
    wanted = next(left, None)
    rows = []
    for row, index in enumerate(indices):
        if index == wanted:
            rows.append(row)
            wanted = next(left, None)
    return np.array(rows, np.int64)


def _generators(indices: Iterable[int]) -> "Iterator[np.random.Generator]":
    """A generator for each index; the same for the same seed, epoch and place, anywhere."""
    origin = SeededIndices.like((), indices)
    places = indices if origin.places is None else origin.places.tolist()
    # Philox: a counter under a key, so that a stream costs no seeding.
    key = int(np.random.SeedSequence([origin.seed, origin.epoch]).generate_state(1, np.uint64)[0])
    for place in places:
        yield np.random.Generator(np.random.Philox(key=[key, place]))
