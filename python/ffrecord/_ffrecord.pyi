"""The interface of the extension, written by hand; stubtest compares the two."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn, final

import numpy as np
import numpy.typing as npt

__version__: str

_BytesLike = bytes | bytearray | memoryview | npt.NDArray[Any]
_Target = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Numbers = tuple[int, ...]
_TensorSlice = tuple[str, str, _Numbers, _Numbers, _Numbers, int, int, bool]

@final
class Schema:
    """How the bytes of a record are divided into columns."""

    def __init__(self, columns: Sequence[tuple[str, str, Sequence[int]]]) -> None: ...
    @property
    def columns(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, type and shape of each column."""

@final
class Batch:
    """Records in one block; arrays keep it alive."""

    @staticmethod
    def over(
        block: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        status: npt.NDArray[np.uint8],
        schema: Schema,
    ) -> Batch:
        """Records in `block`, which is kept alive."""
    def __len__(self) -> int: ...
    @property
    def slab(self) -> npt.NDArray[np.uint8]: ...
    @property
    def starts(self) -> npt.NDArray[np.int64]: ...
    @property
    def sizes(self) -> npt.NDArray[np.int64]: ...
    @property
    def status(self) -> npt.NDArray[np.uint8]: ...
    def packed(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The records back to back, and where each ends: n + 1 offsets."""
    def rows(self, width: int) -> npt.NDArray[np.uint8] | None:
        """The slab, if it is whole records of `width` bytes, back to back; else None."""
    def records(self) -> list[npt.NDArray[np.uint8]]: ...
    def column_spans(self, column: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the values of a column are in the slab: starts and sizes."""
    def column_views(self, column: int) -> list[npt.NDArray[np.uint8]]: ...
    def column_text(self, column: int) -> list[str]: ...
    def gather_fixed(self, column: int, destination: npt.NDArray[np.uint8]) -> None: ...
    def select(self, positions: npt.NDArray[np.int64]) -> Batch: ...

def npy_views(field: object) -> tuple[list[Any], list[tuple[int, str]]]:
    """Arrays over the memory of .npy files, and errors by row."""

def npy_stack(
    field: object, dtype: str, shape: Sequence[int], destination: npt.NDArray[np.uint8]
) -> list[tuple[int, str]]:
    """Copy arrays of one type and shape back to back."""

def npy_decoder(dtype: str, shape: Sequence[int], size_bytes: int) -> NativeDecoder:
    """Does what `npy_stack` does; `size_bytes` is the size of one array."""

def safetensors_views(
    field: object, names: Sequence[str]
) -> tuple[list[Any], list[tuple[int, str]]]:
    """Tensors by name over the memory of safetensors files; all if no names are given."""

def gather_spans(
    field: object, places: npt.NDArray[np.int64], destination: npt.NDArray[np.uint8]
) -> None:
    """Copy each value to its place."""

has_jpeg: bool

@final
class ImageDecoder:
    """Decodes the pictures of a batch."""

    def __init__(
        self,
        *,
        height: int,
        width: int,
        crop: Sequence[float],
        flip: float,
        channels: int,
        dtype: str,
        layout: str,
        mean: Sequence[float],
        deviation: Sequence[float],
        orient: bool,
        pixels_max: int,
    ) -> None: ...
    @staticmethod
    def others(field: object) -> npt.NDArray[np.int64]:
        """Rows of good records that are not JPEGs."""
    def decode(
        self,
        field: object,
        decoded: Sequence[tuple[int, npt.NDArray[np.uint8]]],
        seed: int,
        epoch: int,
        positions: npt.NDArray[np.int64],
        threads: int,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], list[tuple[int, str]]]:
        """Bytes; start, height, width of each picture; errors by row."""
    def native(self, threads: int) -> NativeDecoder: ...

@final
class NativeDecoder:
    """A decoder for the threads of a `BatchStream`."""

@final
class OpenOptions:
    """The options of a `RecordReader`, beside what it reads."""

    def __init__(
        self,
        *,
        check_data: bool = True,
        salvage: bool = False,
        direct: bool = False,
        timeout_s: float = 30.0,
        assume_running: bool = False,
        cache: bytes | str = "",
        cache_size: int = 68719476736,
    ) -> None: ...

@final
class EpochPlan:
    """The part of an epoch that a rank reads."""

    def __init__(
        self,
        *,
        seed: int,
        epoch: int,
        first: int,
        end: int,
        block: int,
        window: int,
        step_size: int,
        world_size: int,
        rank: int,
        in_file_order: bool,
    ) -> None: ...

@final
class PrefetchHint:
    """A prefetch hint that a daemon has accepted; it ends with this object."""

    @property
    def alive(self) -> bool:
        """Whether the daemon still follows it."""

@final
class DelegatedReads:
    """Ranges of files that threads of the program read for readers."""

    def __init__(
        self,
        files: Sequence[tuple[str, int, str]],
        *,
        timeout_s: float,
        group_count: int,
        group_bytes: int,
    ) -> None:
        """Name, size and version of each file; the bounds of a group of ranges."""
    def take(self) -> tuple[list[tuple[int, int, int, int]], bool]:
        """Wait for ranges: id, file, offset, size of each; and whether more threads are wanted.

        No ranges: the reader is closed.
        """
    def answer(self, id: int, data: object) -> None: ...
    def refuse(
        self,
        id: int,
        kind: Literal["invalid", "not_found", "unavailable", "deadline", "conflict", "denied"],
        message: str,
        retry: Literal["never", "later", "throttled"],
    ) -> None: ...
    def is_wanted(self, id: int) -> bool: ...
    def close(self) -> None: ...

@final
class RecordReader:
    """An ordered list of files, or a dataset of a daemon."""

    @staticmethod
    def open(locations: Sequence[bytes], options: OpenOptions) -> RecordReader: ...
    @staticmethod
    def open_delegated(reads: DelegatedReads, options: OpenOptions) -> RecordReader: ...
    def __len__(self) -> int: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def file_count(self) -> int: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def warnings(self) -> list[str]: ...
    def file(self, file_index: int) -> dict[str, Any]: ...
    def metadata(self, file_index: int) -> dict[str, bytes]: ...
    def read_batch(self, indices: npt.NDArray[np.int64]) -> Batch: ...
    def sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Size of each record in bytes, from the index; 0 if its entry is damaged."""
    def find(self, keys: Sequence[bytes]) -> list[int | None]: ...
    def keys(self, file_index: int) -> list[tuple[int, bytes]]:
        """Index in the file, and key, of each record of one file that has a key."""
    def key_origin(self, file_index: int) -> tuple[bool, str | None]:
        """Whether its records may have keys, and the key column; "" for keys given apart.

        None if there are no keys, or if an old file does not state the column.
        """
    def read_column(
        self, column: int, first: int, count: int, destination: npt.NDArray[np.uint8]
    ) -> None: ...
    def hint_epoch(self, plan: EpochPlan) -> PrefetchHint | None: ...
    def stats(self) -> dict[str, Any]: ...
    def describe(self, index: int, status: int) -> str: ...
    def raise_for(self, index: int, status: int) -> NoReturn: ...

@final
class BatchQueue:
    """Several batches of one reader at a time. Not thread-safe: an overlapping call raises."""

    def __init__(self, reader: RecordReader, *, batches_in_flight: int, in_order: bool) -> None: ...
    def __len__(self) -> int: ...
    def submit(
        self, indices: npt.NDArray[np.int64], token: int, timeout_s: float | None
    ) -> None: ...
    def poll(
        self, timeout_s: float, found: list[tuple[int, Batch | None, Exception | None]]
    ) -> None: ...
    def cancel(self, token: int) -> bool: ...
    def fileno(self) -> int: ...

@final
class BatchStream:
    """The steps of epochs, read ahead by native threads. For one consumer at a time."""

    def __init__(
        self,
        reader: RecordReader,
        plan: EpochPlan,
        *,
        epoch_end: int,
        threads: int,
        batches_ahead: int,
        memory_limit_bytes: int,
        columns: list[tuple[int, np.dtype[Any], list[int]]],
        decoded: list[tuple[int | None, NativeDecoder]],
        keeps_records: bool,
    ) -> None: ...
    @property
    def depth(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    def next(self, timeout_s: float) -> tuple[Batch, tuple[Any, ...] | None] | None:
        """Values: arrays of `columns`; of each of `decoded` its bytes and the places in them."""
    def times(self) -> dict[str, float]: ...
    def close(self) -> None: ...

@final
class RecordWriter:
    """One version 2 file."""

    @staticmethod
    def create(
        path: bytes,
        schema: Schema,
        *,
        compress: bool = False,
        level: int = 3,
        align: int = 1,
        replace: bool = False,
        metadata: dict[str, _BytesLike] = ...,
        dictionary: _BytesLike | None = None,
        train_dictionary_bytes: int = 0,
        keys: bool = False,
        key_column: str = "",
        copied_columns: Sequence[str] = ...,
        file_id: bytes = b"",
    ) -> RecordWriter: ...
    @staticmethod
    def append(
        path: bytes,
        *,
        compress: bool | None = None,
        level: int = 3,
        metadata: dict[str, _BytesLike] | None = None,
    ) -> RecordWriter: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def record_count(self) -> int: ...
    @property
    def has_keys(self) -> bool: ...
    @property
    def key_column(self) -> str | None: ...
    def commit(self) -> None: ...
    def begin_group(self) -> None: ...
    def end_group(self) -> None: ...
    def undo_group(self) -> None: ...
    def set_metadata(self, metadata: dict[str, bytes]) -> None:
        """Replaces the metadata in the next commit, or, of a new file, when it is closed."""
    def write(self, record: _BytesLike, key: bytes = b"") -> None: ...
    def write_fields(self, fields: Sequence[_BytesLike], key: bytes = b"") -> None: ...
    def write_rows(
        self,
        columns: Sequence[tuple[_BytesLike, _BytesLike]],
        begin: int,
        end: int,
        key: int | None = None,
    ) -> None:
        """Rows [begin, end) of columns: data, and as int64 where values begin and the last ends.

        The keys are the values of column `key`.
        """
    def write_file_rows(
        self,
        columns: Sequence[tuple[Any, ...]],
        files: Sequence[tuple[bytes, int, int]],
        begin: int,
        end: int,
        key: int | None = None,
    ) -> int | None:
        """As `write_rows`; a column may be three arrays: numbers of files, offsets and sizes.

        A file is its path, size and time in nanoseconds; a size below 0 allows any version. Returns
        the first row with a file in another version, if there is one: those before it are written.
        """
    def close(self) -> dict[str, Any]: ...
    def discard(self) -> None: ...

@final
class IndexWriter:
    """One index in place."""

    @staticmethod
    def create(
        source: bytes,
        index: bytes,
        schema: Schema,
        *,
        form: int = 0,
        key_column: str = "",
        replace: bool = False,
        description: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> IndexWriter:
        """The samples are records as they are (form 0), or of MDS (1), or members of a tar (2).

        `description` is of the file that describes the source: its kind (0 none, 1 Megatron's
        `.idx`, 2 `index.json` of MDS), size in bytes, time of its last change in nanoseconds, and
        a digest of what it says about the source.
        """
    @staticmethod
    def read_source(index: bytes) -> tuple[bytes, tuple[int, int, int, int]]:
        """The path of the source of an index, and its `description`."""
    @staticmethod
    def write_description(index: bytes, description: tuple[int, int, int, int]) -> None:
        """Give an index another one of the same digest."""
    def add(self, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> None: ...
    def columns_with_nulls(self) -> list[str]: ...
    def set_metadata(self, metadata: dict[str, bytes]) -> None: ...
    def close(self) -> dict[str, Any]: ...
    def discard(self) -> None: ...

@final
class V1Writer:
    """One version 1 file."""

    @staticmethod
    def create(path: bytes, record_count: int, *, replace: bool = False) -> V1Writer: ...
    def write(self, record: _BytesLike) -> None: ...
    def close(self) -> dict[str, Any]: ...
    def discard(self) -> None: ...

@final
class Permutation:
    """Order 1 as a function; lane 0 is the order of an epoch."""

    def __init__(self, *, seed: int, epoch: int, lane: int = 0, count: int) -> None: ...
    def __len__(self) -> int: ...
    def range(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The indices at positions [begin, end)."""
    def at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The indices at any positions, shape (n,)."""
    def position_of(self, index: int) -> int:
        """The inverse."""

@final
class BlockedPermutation:
    """The blocked order of an epoch."""

    def __init__(self, *, seed: int, epoch: int, count: int, block: int, window: int) -> None: ...
    def __len__(self) -> int: ...
    def range(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The indices at positions [begin, end)."""
    def at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The indices at any positions, shape (n,)."""

def publish(
    files: Sequence[bytes],
    address: str,
    *,
    replace: bool = False,
    from_origin: bool = False,
    copy_to: str | None = None,
    durability: str = "",
    timeout_s: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
    dry_run: bool = False,
) -> None: ...
def probe_daemon(address: str, *, timeout_s: float = 30.0) -> tuple[str, str, float]: ...
def list_published(
    address: str, *, timeout_s: float = 30.0
) -> list[tuple[str, int, int, str | None]]:
    """Name, size in bytes and count of files of each dataset."""

def remove_published(address: str, *, timeout_s: float = 30.0) -> None: ...

@final
class ServedFiles:
    """The files behind a published name, as plain bytes."""

    @staticmethod
    def open(address: str, *, timeout_s: float = 30.0) -> ServedFiles: ...
    @property
    def files(self) -> list[tuple[str, int, str]]:
        """Name, size in bytes and version of each file."""
    def read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """The bytes of each range: file, offset, size."""
    verified_bytes: ClassVar[int]  # Whole parts of this size are checked.

@final
class StoredFile:
    """One version of a file of any kind, at an object store or a server."""

    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def version(self) -> str:
        """Text that other versions do not have; empty if the store names none."""
    def open(self) -> StoredFileReader: ...

@final
class StoredFileReader:
    def read(self, offset_bytes: int, size_bytes: int) -> bytes:
        """As many bytes from there on, or as there are; raises `ConflictError` for another version.

        Any thread may call it; others go on meanwhile.
        """
    def stop(self) -> None:
        """Let reads under way, and to come, fail with `DeadlineExceeded`."""

def look_for_stored_files(addresses: Sequence[str], *, timeout_s: float) -> list[StoredFile | None]:
    """The file of each address; None where there is none."""

def match_stored_files(pattern: str, *, timeout_s: float) -> list[StoredFile]:
    """The objects of a bucket that match, sorted."""

def list_stored_files(folder: str, *, timeout_s: float) -> list[StoredFile]:
    """All objects in a folder of a bucket, and in folders in it, sorted."""

def describe_cluster(address: str, *, timeout_s: float = 30.0) -> dict[str, Any]: ...
def set_node_state(address: str, node: str, state: str, *, timeout_s: float = 30.0) -> None: ...
def raise_feature_level(address: str, level: int, *, timeout_s: float = 30.0) -> int: ...
def read_metadata(
    address: str, *, timeout_s: float = 30.0
) -> tuple[int, list[tuple[str, int, bytes]]]: ...
def restore_metadata(
    address: str, backup: int, keys: list[tuple[str, int, bytes]], *, timeout_s: float = 30.0
) -> None: ...
def work_on_metadata(address: str, work: str, *, timeout_s: float = 30.0) -> str: ...
def confirm_metadata(address: str, incarnation: int, *, timeout_s: float = 30.0) -> None: ...
def wait_for_idle_threads(name: str, timeout_s: float) -> bool: ...
def note_signals(numbers: Sequence[int], descriptor: int) -> None:
    """Write two bytes to `descriptor` for each of these signals that comes, in whatever thread.

    The first is its number; the second is 1 if the kernel has sent it, as for a key of the
    terminal, and 0 for a process. One caller at a time.
    """

def forget_signals() -> None:
    """Undo `note_signals`: the handlers are what they were."""

def phase_begin(kind: str, size_bytes: int = 0) -> None:
    """Kind: 'collective', 'point_to_point' or 'other'. Phases may nest and overlap."""

def phase_end(kind: str) -> None: ...
def step_end() -> None: ...

@final
class PhaseHandover:
    """Operations on their way to the one thread that ends their phases. Allocates nothing."""

    def add(self, operation: object, kind: str, is_gloo: bool, /) -> bool:
        """Never waits. False if it is full: then nobody will end the phase."""
    def take(self) -> tuple[Any, str, bool]:
        """The next one; waits for it."""
    def is_empty(self) -> bool: ...

def report_loader_queue(is_low: bool) -> None: ...
def start_pacing(
    *,
    prefetch: tuple[int, float] = (4194304, 0.1),
    checkpoint: tuple[int, float] = (1048576, 0.5),
    repair: tuple[int, float] = (262144, 2.0),
    link_bytes_per_s: int = 0,
    chunk_size_bytes: int = 262144,
    phase_limit_s: float = 30.0,
    stale_after_s: float = 10.0,
) -> None:
    """A class's floor in bytes/s, and its longest hold in seconds."""

def stop_pacing() -> None: ...
def is_pacing() -> bool: ...
def await_turn(traffic: str, size_bytes: int) -> None:
    """Wait until a transfer of class 'urgent', 'prefetch', 'checkpoint' or 'repair' may begin."""

def pacing_counters() -> dict[str, Any]: ...
def mark_traffic(*, dscp: Mapping[str, int] = {}, socket_priority: Mapping[str, int] = {}) -> None:
    """Mark this process's TCP packets by traffic class, as the operator's network orders them.

    Each argument gives a number by class, 'urgent', 'prefetch', 'checkpoint', 'repair', or
    'collectives'; classes that it lacks have none. Holds for what begins after the call.
    """

def profile_open(
    path: str,
    command: str = "",
    rank: int = -1,
    local_rank: int = -1,
    world_size: int = -1,
    coarse_events: int = 131072,
    fine_events: int = 131072,
) -> None: ...
def profile_attach(path: str) -> None: ...
def profile_close() -> None: ...
def profile_is_on() -> bool: ...
def profile_name(name: str) -> int: ...
def profile_set_rank(rank: int, world_size: int) -> None: ...
def profile_record(
    kind: int,
    name: int,
    begin_ns: int,
    end_ns: int,
    size_bytes: int = 0,
    detail: int = 0,
    first: int = 0,
    second: int = 0,
) -> None: ...
def profile_begin(kind: int, name: int, begin_ns: int, detail: int = 0) -> int: ...
def profile_end(
    token: int,
    kind: int,
    name: int,
    begin_ns: int,
    end_ns: int,
    size_bytes: int = 0,
    detail: int = 0,
    first: int = 0,
    second: int = 0,
) -> None: ...
def profile_drop(token: int) -> None: ...
def verify_file(
    path: bytes, *, progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]: ...
def repair_file(
    source: bytes,
    destination: bytes,
    *,
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]: ...
def probe_io_engine() -> tuple[str, str]:
    """Name of the engine that reads files here, and why."""

def probe_file(path: bytes, *, seconds: float, read_bytes_max: int) -> dict[str, Any]:
    """How fast a local file is read, direct and through the page cache; see file_probe.h.

    Keys: `size_bytes`, `direct_memory_alignment_bytes`, `direct_offset_alignment_bytes`,
    `why_not_direct`, `resident_share`, `kept_share`, `rates`; of a rate: `direct`, `random`,
    `block_bytes`, `depth`, `reads`, `read_bytes`, `cached_bytes`, `duration_s`,
    `latency_median_us`, `latency_p99_us`.
    """

def memory_room() -> tuple[int, int | None]:
    """The memory that processes can still take, and the least limit of the control groups.

    Pages of files count as free. 0 if the kernel does not say; None if there is no limit.
    """

def memory_cap_bytes() -> int:
    """The most memory that batches of this process may take together."""

def probe_rdma() -> tuple[str, list[tuple[str, int, str, int, str]]]:
    """Why RDMA is absent; for each port: device, number, address, MTU, why it is skipped."""

def why_no_tls() -> str:
    """Why this build has no TLS; empty if it has."""

def why_no_object_stores() -> str:
    """Why s3:// and http:// addresses cannot be used; empty if they can."""

def restore_sigbus_guard() -> None:
    """Make a shrinking file an error of the read again, if other code replaced our handler."""

@final
class PlainTensors:
    """Takes dicts of tensors of a state apart, each in a microsecond."""

    def __init__(
        self,
        leaf: type,
        reference: type,
        kind: object,
        types: tuple[type, ...],
        strided: object,
        dtypes: dict[object, tuple[str, int]],
        exchange: object,
    ) -> None: ...
    def take(
        self,
        items: dict[Any, Any],
        prefix: str,
        is_own: bool,
        leaves: list[Any],
        tree: dict[Any, Any],
        other: Callable[[Any, Any], object],
    ) -> None:
        """Put tensors in plain memory into leaves and tree; others as `other` converts them."""

def encode_references(items: dict[Any, Any], reference: type) -> bytes | None:
    """A dict of nothing but references under names, without its head; None for another dict."""

@final
class StagingArena:
    """Memory that tensors are copied to before they are saved."""

    def __init__(self, size_bytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def copy(self, jobs: list[tuple[int, int, int]]) -> None:
        """Copy each job: address, size in bytes, and offset in the arena."""

@final
class CheckpointShards:
    """A checkpoint whose ranks have their own means of communication."""

    def __init__(
        self,
        target: _Target,
        step: int,
        attempt: str | None,
        direct: bool,
        timeout_s: float,
        incremental: bool,
        progress: SaveProgress | None = None,
        replaces: bool = False,
        turn: int = 0,
    ) -> None:
        """Without an attempt: the coordinator, which begins one; `replaces` replaces the step.

        `turn`, from `take_turn`, is when the state was taken; 0: now.
        """
    @property
    def attempt(self) -> str: ...
    def write(
        self,
        rank: int,
        slices: list[_TensorSlice],
        training: list[str] = ...,
        fails_if_unchanged: bool = False,
    ) -> tuple[bytes, tuple[int, list[str]]]:
        """Return what the coordinator needs, and `PreparedSave.unchanged`; slices as there."""
    def commit(self, shards: list[bytes], structure: bytes) -> tuple[int, str, int]: ...

@final
class CheckpointReader:
    """A committed checkpoint, verified down to its manifests."""

    def __init__(
        self, target: _Target, step: int | None, timeout_s: float, below: int = ...
    ) -> None:
        """Without a step: the newest whole one below `below`."""
    @property
    def commit(self) -> tuple[int, str, int]:
        """Step, attempt, size in bytes."""
    @property
    def world_size(self) -> int: ...
    @property
    def structure(self) -> bytes: ...
    @property
    def tensors(self) -> list[tuple[str, str, list[int]]]:
        """Key, dtype, shape."""
    @property
    def digests(self) -> list[int | None]:
        """One for each of `tensors`, of when it was saved; None if it was saved without."""
    @property
    def skipped(self) -> list[str]: ...
    @property
    def unseen(self) -> list[str]:
        """Places that did not answer, and may have newer steps."""
    def slices(self) -> list[tuple[str, list[int], list[int]]]:
        """Key, offset, extent of every slice that was saved; ascending."""
    def verify(self) -> list[str]:
        """Read every block; return the problems."""
    def go_on(self, is_certain: bool) -> None:
        """Tell this process that its run goes on from this step, or may do so."""
    def is_whole(self) -> bool:
        """Whether it can be read; reads what this process has not verified since it was written."""
    def read(self, wanted: list[tuple[str, list[int], list[int], int, int]]) -> None:
        """Slices (key, offset, extent) into memory (address, size in bytes)."""

@final
class SaveProgress:
    """The progress of a save. Thread-safe."""

    def __init__(self) -> None: ...
    @property
    def total_bytes(self) -> int:
        """0 until the save is planned."""
    @property
    def done_bytes(self) -> int: ...

@final
class PreparedSave:
    """One rank's side of a save; errors of this rank alone are raised here."""

    def __init__(
        self,
        target: _Target,
        step: int,
        slices: list[_TensorSlice],
        direct: bool,
        timeout_s: float,
        incremental: bool,
        progress: SaveProgress | None,
        replaces: bool = False,
        turn: int = 0,
        training: list[str] = ...,
        fails_if_unchanged: bool = False,
    ) -> None:
        """Slices are key, dtype, shape, offset, extent, address, size in bytes, is stable.

        In place of an address: a callable of offset, address and size that copies bytes there.
        `turn`: `take_turn()` when the state was taken; 0: when it is committed.
        """
    def commit(
        self, structure: bytes, group: object, released: Callable[[], object] | None
    ) -> tuple[int, str, int]:
        """Commit with the other ranks; all end alike."""
    @property
    def unchanged(self) -> tuple[int, list[str]]:
        """The step of the last save, and the tensors that train and are as they were in it."""

def all_gather_results(
    group: object, mine: bytes, failed: tuple[str, str] | None
) -> tuple[list[bytes], tuple[str, str] | None]:
    """One round of a save or a load: what every rank has, or the failure of the first that failed.

    A failure is given as the name of its type and its message. It is returned as a message that
    names the rank and the type, and that name.
    """

def block_checksums(data: _BytesLike, block_bytes: int, first: int) -> bytes:
    """XXH3-64 of each block, seeded with its number; `first` is the number of the first block.

    Little-endian, 8 bytes each; the last block may be short. Runs without the GIL.
    """

def tensor_digest(address: int, size_bytes: int, offset_bytes: int) -> int:
    """The share of bytes at this memory in the digest of a tensor, from `offset_bytes` of it on."""

def take_turn() -> int:
    """Return what says, to a save, what this process had loaded and saved until now."""

def forget_where_runs_go_on() -> None:
    """Forget what this process has loaded and saved, as a new process has."""

def checkpoint_item_sizes() -> dict[str, int]:
    """The element types of format.md and their sizes in bytes."""

def content_digests(slices: list[tuple[Any, ...]]) -> bytes:
    """16 bytes for each slice, which are as those of a save."""

def share_place(first: _Target, second: _Target) -> bool:
    """Whether two addresses have a place in common, however they are spelled."""

def list_checkpoints(
    target: _Target,
    timeout_s: float,
    roots_only: bool = ...,
    line_of: _Target | None = None,
) -> list[tuple[int, str, int, str, bool]]:
    """Step, attempt, size in bytes, damage, and whether it was given up, as `line_of` says."""

def list_steps(target: _Target, timeout_s: float) -> list[int]:
    """The committed steps of one moment, ascending; reads nothing of them."""

def copy_checkpoint(
    source: _Target,
    step: int,
    target: _Target,
    timeout_s: float,
    compresses: bool = False,
    replaces: str = "",
    is_of_run: bool = False,
) -> tuple[int, str, int]:
    """`replaces`: the attempt of the save at `target` that the copy replaces.

    `is_of_run`: `target` holds copies of this run, also if no save is at both places.
    """

def prune_checkpoints(
    target: _Target, keep_last: int, keep_every: int, verify: bool, dry_run: bool, timeout_s: float
) -> list[tuple[int, str, int]]: ...
def remove_checkpoint(target: _Target, step: int, timeout_s: float, attempt: str = "") -> None: ...

@final
class CollectiveEngine:
    """A rank of a group that reduces arrays together."""

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        listen_host: str,
        timeout_s: float,
        chunk_size_bytes: int,
        algorithm: str | None = None,
        wire: str = "exact",
        shares_memory: bool = True,
        streams: int = 1,
        transport: str = "tcp",
        rdma_devices: Sequence[str] = (),
        rdma_traffic_class: int = 0,
        rdma_service_level: int = 0,
        carries_messages: bool = False,
    ) -> None: ...
    @property
    def address(self) -> str: ...
    def connect(self, addresses: Sequence[str], secret: bytes) -> None: ...
    def all_reduce(self, address: int, count: int, dtype: str, op: str) -> int:
        """Start on `count` elements in memory that the caller keeps; returns a token. So do all."""
    def reduce_scatter(self, address: int, count: int, dtype: str, op: str) -> int: ...
    def all_gather(self, address: int, count: int, dtype: str) -> int: ...
    def broadcast(self, address: int, count: int, dtype: str, root: int) -> int: ...
    def barrier(self) -> int: ...
    def send(self, address: int, size_bytes: int, tag: int) -> int:
        """Start a message, in a group that carries them; `wait` for its token, or `announce`."""
    def receive(self, address: int, size_bytes: int, tag: int) -> int: ...
    def receive_kept(self, address: int, size_bytes: int, tag: int) -> int | None:
        """Receive a message that has come, or has begun to; None if there is none."""
    def probe(self, tag: int) -> int:
        """Ends when `receive_kept` has a message to take."""
    def keep_next(self) -> None:
        """Receive what the other rank has begun to send, though nothing waits for it."""
    def announce(self, token: int) -> None:
        """Let `wait_any` return that message, too."""
    def wait(self, token: int) -> None: ...
    def wait_for(self, token: int, limit_s: float) -> bool:
        """`wait` within a limit: whether it has ended."""
    def wait_any(self, timeout_s: float) -> tuple[int, Exception | None, int, int] | None:
        """Token, error, began and ended (time.monotonic_ns) of an operation that has ended."""
    def shutdown(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def tune(
        self, *, chunk_size_bytes: int = 0, algorithm: str | None = None, streams: int = 0
    ) -> None:
        """Settings of later operations, the same on all ranks; 0: as created."""
    def events(self) -> list[tuple[int, str]]:
        """Events for operators: time.monotonic_ns(), and a sentence."""

def read_examples(
    messages: Sequence[bytes], columns: Sequence[tuple[str, int, int]], skips_others: bool
) -> list[tuple[bytes, bytes]] | None:
    """Values and ends of rows of each column; None if Python must look at a message.

    A column has a name, the number of its kind of values in `Feature`, and their count, -1 for any.
    """
