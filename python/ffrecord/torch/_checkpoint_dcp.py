"""Storage for `torch.distributed.checkpoint` (DCP).

    import torch.distributed.checkpoint as dcp
    from ffrecord.torch import CheckpointReader, CheckpointWriter

    dcp.save(state, storage_writer=CheckpointWriter("runs/x", step=1200))
    dcp.load(state, storage_reader=CheckpointReader("runs/x"))

The result is an ffrecord checkpoint: one commit of all ranks, every block with a checksum, and
nothing in it is pickled. `ffrecord.checkpoint` can list, verify and load it too.
"""

import contextlib
import dataclasses
import io
import os
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ffrecord import _ffrecord
from ffrecord._base.addresses import BUCKETS, SCHEME, SEVERAL, target_from_root
from ffrecord.checkpoint import _staged as staged
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._monitoring import Save, ledger
from ffrecord.checkpoint._pieces import Fetcher, Wanted, read_into
from ffrecord.checkpoint._ranks import TensorSlice
from ffrecord.checkpoint._saving import OnUnchanged, tell_unchanged
from ffrecord.checkpoint._state import Flattener, named_values
from ffrecord.checkpoint._steps import newest_on_line, step_number, tell_skipped
from ffrecord.checkpoint._tensors import describe, plain_address
from ffrecord.checkpoint._values import Kind, TensorRef, decode, encode
from ffrecord.errors import CorruptionError
from ffrecord.torch._dcp_turns import note_copy, turn_of_save

Place = str | os.PathLike[str]

_SCHEMES = (SCHEME, BUCKETS, *SEVERAL)
_STEP = re.compile(r"(.+)/step-(\d{9,})/*")
_PART = "#ffrecord.part"  # Index of the result that carries the description of a rank's shard.


def _split(place: Place) -> tuple[str, int | None]:
    """Target and step: RUN/step-000001200 names both, any other path is a run."""
    text = os.fspath(place)
    match = _STEP.fullmatch(text)
    return (match[1], int(match[2])) if match else (text, None)


class _AtPlace:
    """The common part of the two storages: the place, and a pickle without open objects."""

    _path: str | None
    _step: int | None
    _OPEN: ClassVar[tuple[str, ...]]  # Attributes that a pickle holds as None.

    def __getstate__(self) -> dict[str, Any]:
        """Everything but open objects."""
        return {**self.__dict__, **dict.fromkeys(self._OPEN)}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Whether it names a folder, or a run at a daemon, a store or a replicated target."""
        if not isinstance(checkpoint_id, str | os.PathLike):
            return False
        text = os.fspath(checkpoint_id)
        return isinstance(text, str) and ("://" not in text or text.startswith(_SCHEMES))

    def _rename(self, checkpoint_id: Place | None) -> None:
        """Move to `checkpoint_id`, if given; the step applies if the path has none."""
        if checkpoint_id is not None:
            self._path = target_from_root(checkpoint_id)
            self._step = self._step if _split(self._path)[1] is None else None

    def _target_and_step(self) -> tuple[str, int | None]:
        assert self._path is not None
        target, step = _split(self._path)
        return target, step if self._step is None else self._step


class CheckpointWriter(_AtPlace, StorageWriter, BlockingAsyncStager):
    """The storage of `dcp.save` and `dcp.async_save`.

    Every rank writes its items to its own shard by direct I/O. The coordinator makes all shards
    visible together, or none. Values that are not tensors are stored as plain values.
    `ffrecord.checkpoint.monitor` sees these saves, and the copy that `dcp.async_save` makes first.
    """

    _OPEN = ("_parts", "_seen")
    _seen: Save | None = None  # For monitors.
    _turn = 0  # When the state was taken; 0: when the save begins.

    def __init__(
        self,
        path: Place | None = None,
        *,
        step: int | None = None,
        overwrite: bool = False,
        allow_pickle: bool = False,
        direct: bool = True,
        incremental: bool = False,
        on_unchanged: OnUnchanged = "warn",
        training: Iterable[str] = (),
        timeout_s: float = 30.0,
    ) -> None:
        """Store the arguments; write nothing yet.

        Args:
            path: a folder that all ranks share, `ffrecord://host[:port]/run`, or either followed by
                `/step-NNNNNNNNN`. None: the `checkpoint_id` of `dcp.save`.
            step: the step of the checkpoint in `path`, or in a `checkpoint_id` without a step.
                None: the step in the path, or one after the latest. Older steps stay;
                `ffrecord.checkpoint.prune` removes them.
            overwrite: replace that step, which must be named, if it is committed already. The old
                one stays until the new one is durable, and stays for good if the save fails; a
                replicated target replaces it place by place. No other step is ever removed.
            allow_pickle: store objects that are neither tensors nor plain values as the planner
                pickled them; a reader returns them only with `allow_pickle=True`. Otherwise such an
                object is a TypeError.
            direct: bypass the page cache if the file system allows it.
            incremental: write only what has changed since the newest checkpoint of the run, as
                `ffrecord.checkpoint.save` does.
            on_unchanged: what to do if tensors that train are bit-identical to those that this
                process wrote last for this run: log a warning, raise ValueError, so that the save
                fails on all ranks, or "off". A tensor trains if it requires a gradient, or is one
                of `training`.
            training: names of tensors in the state dict that train. Those of a module's
                `state_dict` say nothing of gradients: name them, such as `model.` before the names
                of `named_parameters`.
            timeout_s: for each call to a daemon.
        """
        if on_unchanged not in ("warn", "raise", "off"):
            raise ValueError(f'on_unchanged is {on_unchanged!r}, must be "warn", "raise" or "off"')
        StorageWriter.__init__(self)
        BlockingAsyncStager.__init__(self)
        self._path = None if path is None else target_from_root(path)
        self._step, self._overwrite = step, overwrite
        self._allow_pickle, self._direct, self._timeout_s = allow_pickle, direct, timeout_s
        self._incremental = incremental
        self._on_unchanged: OnUnchanged = on_unchanged
        self._training = frozenset(training)
        self._is_coordinator = False
        self._parts: _ffrecord.CheckpointShards | None = None

    def reset(self, checkpoint_id: Place | None = None) -> None:
        """Begin another save, to `checkpoint_id` if given."""
        self._rename(checkpoint_id)
        self._drop()

    def _drop(self) -> None:
        """Abandon a save in progress, because another rank has failed."""
        self._parts = None
        self._ended(committed=False)

    def _began(self, step: int) -> Save:
        self._ended(committed=False)
        self._seen = Save(step)
        ledger().begin(self._seen)
        return self._seen

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Run one phase of a save; on the main thread it counts as a stall."""
        is_main = threading.current_thread() is threading.main_thread()
        with ledger().stall() if is_main else contextlib.nullcontext():
            try:
                yield
            except BaseException:
                self._drop()  # Also removes its files, unless they may be committed.
                raise

    def __del__(self) -> None:
        """Report a save that was never finished."""
        self._ended(committed=False)

    def _ended(self, *, committed: bool) -> None:
        if self._seen is not None:
            ledger().end(self._seen, committed)
        self._seen = None

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The copy that `dcp.async_save` makes; its caller waits for it."""
        with ledger().stall():
            note_copy()
            return dict(super().stage(state_dict))

    def storage_meta(self) -> StorageMeta | None:
        """Where the checkpoint goes; asked for when a save begins."""
        self._turn = turn_of_save()
        return StorageMeta(checkpoint_id=self._path)

    # torch hands over `rank` and `use_collectives` only to a parameter that is called kwargs.
    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """Store which rank this is."""
        if kwargs.get("use_collectives", True) is False:
            raise ValueError("CheckpointWriter commits all ranks together: use_collectives=True")
        if self._path is None:
            raise ValueError("CheckpointWriter: give a path, or dcp.save a checkpoint_id")
        if self._overwrite and self._target_and_step()[1] is None:
            raise ValueError(
                f"CheckpointWriter: overwrite=True replaces one step, and {self._path} names none: "
                "set step=, or end the path in /step-NNNNNNNNN"
            )
        self._is_coordinator = is_coordinator
        self._drop()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Begin the attempt, and send its name to every rank."""
        target, step = self._target_and_step()
        if step is None:
            newest = newest_on_line(target, self._timeout_s)
            step = 0 if newest is None else newest + 1
        staged.before_save(target)
        with self._kept():
            self._parts = self._open(target, step, None, self._began(step))
        return [
            dataclasses.replace(plan, storage_data=(target, step, self._parts.attempt, rank))
            for rank, plan in enumerate(plans)
        ]

    def _open(
        self, target: str, step: int, attempt: str | None, seen: Save
    ) -> _ffrecord.CheckpointShards:
        return _ffrecord.CheckpointShards(
            target,
            step,
            attempt,
            self._direct,
            self._timeout_s,
            self._incremental,
            seen.bytes,
            self._overwrite,
            self._turn,
        )

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Make this rank's shard durable."""
        done: Future[list[WriteResult]] = Future()
        with self._kept():
            done.set_result(self._write(plan, planner))
        if not self._is_coordinator:
            self._ended(committed=True)  # As far as this rank knows.
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        target, step, attempt, rank = plan.storage_data
        if not self._is_coordinator:
            self._parts = self._open(target, step, attempt, self._began(step))
        assert self._parts is not None
        if self._parts.attempt != attempt:
            raise RuntimeError(
                "this plan is of an earlier save: use ffrecord.torch.BalancedSavePlanner, which "
                "caches plans itself, instead of enable_plan_caching"
            )
        owners: list[object] = []
        slices: list[TensorSlice] = []
        values: dict[str, object] = {}
        results: list[WriteResult] = []
        training: set[str] = set()
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                values[item.index.fqn] = self._value(item, planner)
                size = 0
            else:
                tensor_slice, owner = _slice_of(item, planner)
                slices.append(tensor_slice)
                owners.append(owner)
                size = tensor_slice[6]
                if self._trains(item):
                    training.add(item.index.fqn)
            results.append(WriteResult(item.index, size, None))
        part, unchanged = self._parts.write(
            rank, slices, sorted(training), self._on_unchanged == "raise"
        )
        tell_unchanged(unchanged, len(training), target, step, rank)
        carried = WriteResult(MetadataIndex(_PART), len(part), (part, encode(values)))
        return [*results, carried]

    def _trains(self, item: WriteItem) -> bool:
        if self._on_unchanged == "off" or item.tensor_data is None:
            return False
        return item.tensor_data.properties.requires_grad or item.index.fqn in self._training

    def _value(self, item: WriteItem, planner: SavePlanner) -> object:
        """A value that is not a tensor: [value], or the planner's bytes as they are."""
        fqn = item.index.fqn
        plain = getattr(type(planner), "transform_object", None)
        if isinstance(planner, DefaultSavePlanner) and plain is DefaultSavePlanner.transform_object:
            flattener = Flattener(0)
            try:
                value = flattener.value(planner.lookup_object(item.index), fqn)
                if flattener.leaves or flattener.sharded:
                    raise TypeError(f"state: {fqn} has tensors inside a value")
                for path, named in named_values(value, fqn):  # torch's planner could not use it.
                    raise TypeError(
                        f"state: {path} is of kind {named.kind} ({named.name}), which would need "
                        "pickling"
                    )
                return [value]
            except TypeError:
                if not self._allow_pickle:
                    raise
        elif not self._allow_pickle:
            raise TypeError(
                f"state: {fqn} is bytes that {type(planner).__name__} made: set allow_pickle=True"
            )
        content: Any = planner.resolve_data(item)
        return bytes(content.getbuffer())

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Make all rank shards visible together."""
        with self._kept():
            self._commit(metadata, results)
            self._ended(committed=True)

    def _commit(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._parts is not None
        carried = [
            next(each.storage_data for each in of_rank if each.index.fqn == _PART)
            for of_rank in results
        ]
        values: dict[str, Any] = {}
        for _, encoded in carried:
            of_rank: Any = decode(encoded)
            values.update(of_rank)
        state: dict[str, object] = {}
        requires_grad = []
        for fqn, about in metadata.state_dict_metadata.items():
            if isinstance(about, TensorStorageMetadata):
                state[fqn] = TensorRef(Kind.TORCH, fqn)
                if about.properties.requires_grad:
                    requires_grad.append(fqn)
            elif fqn not in values:
                raise ValueError(f"{fqn} is in the plan of the save, and no rank wrote it")
            elif isinstance(values[fqn], list):
                state[fqn] = values[fqn][0]
        tree = {
            "state": state,
            "dcp": {
                "planner_data": _plain(metadata.planner_data),
                "requires_grad": requires_grad,
                "opaque": {k: v for k, v in values.items() if isinstance(v, bytes)},
            },
        }
        made = self._parts.commit([part for part, _ in carried], encode(tree))
        self._parts = None
        target, _ = self._target_and_step()
        staged.saved(target, Commit(*made), replaces=self._overwrite)


def _plain(planner_data: object) -> object:
    """Paths of keys, unchanged; other planners may use data that has no plain form."""
    try:
        encode(planner_data)
    except TypeError as error:
        raise TypeError(f"the planner's data cannot be stored: {error}") from None
    return planner_data


def _slice_of(item: WriteItem, planner: SavePlanner) -> tuple[TensorSlice, object]:
    data: Any = planner.resolve_data(item)
    about = item.tensor_data
    assert about is not None
    try:
        dtype, extent = describe(data)
    except TypeError as error:
        raise TypeError(f"state: {item.index.fqn}: {error}") from None
    chunk = about.chunk
    if extent != chunk.sizes:
        raise ValueError(
            f"{item.index.fqn}: the planner declares {tuple(chunk.sizes)}, but gives {extent}"
        )
    address: object = plain_address(data)
    if address is None:
        address = Fetcher(data)
    fqn, shape = item.index.fqn, about.size
    return (fqn, dtype, shape, chunk.offsets, extent, address, data.nbytes, False), data


class CheckpointReader(_AtPlace, StorageReader):
    """The storage of `dcp.load`: for any number of ranks, whatever number saved.

    Reads only the bytes that this rank needs, and verifies each block of them.
    """

    _OPEN = ("_reader", "_tree")

    def __init__(
        self,
        path: Place | None = None,
        *,
        step: int | None = None,
        allow_pickle: bool = False,
        resume: bool | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Store the arguments; open nothing yet.

        Args:
            path: as for `CheckpointWriter`.
            step: the step to load; None for the step in the path, or the latest that is whole. If
                newer ones are damaged, a warning says so.
            allow_pickle: return objects that another planner pickled, for the planner to unpickle,
                which may run any code. Only for checkpoints that you trust.
            resume: as for `ffrecord.checkpoint.load`: whether the run goes on from this step.
            timeout_s: for each call to a daemon.
        """
        super().__init__()
        self._path = None if path is None else target_from_root(path)
        self._step = step
        self._allow_pickle, self._timeout_s = allow_pickle, timeout_s
        self._resume = resume
        self._is_coordinator = False
        self._reader: _ffrecord.CheckpointReader | None = None
        self._tree: Any = None

    def reset(self, checkpoint_id: Place | None = None) -> None:
        """Open the checkpoint here, where an error still reaches the caller unchanged."""
        self._rename(checkpoint_id)
        self._reader = None
        if self._path is not None:
            self._open()

    def _open(self) -> _ffrecord.CheckpointReader:
        if self._reader is None:
            if self._path is None:
                raise ValueError("CheckpointReader: give a path, or dcp.load a checkpoint_id")
            target, step = self._target_and_step()
            wanted = None if step is None else step_number(step)
            reader = _ffrecord.CheckpointReader(target, wanted, self._timeout_s)
            tell_skipped(reader, 2)
            tree: Any = decode(reader.structure)
            if not (isinstance(tree, dict) and isinstance(tree.get("dcp"), dict)):
                raise ValueError(
                    f"{target}, step {reader.commit[0]}: not written by dcp.save; load it with "
                    "ffrecord.checkpoint.load"
                )
            self._reader, self._tree = reader, tree
        return self._reader

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """The contents, in DCP's form."""
        reader = self._open()
        chunks: dict[str, list[ChunkStorageMetadata]] = {}
        for key, offset, extent in reader.slices():
            chunk = ChunkStorageMetadata(torch.Size(offset), torch.Size(extent))
            chunks.setdefault(key, []).append(chunk)
        grads = set(self._tree["dcp"]["requires_grad"])
        about: dict[str, Any] = {fqn: BytesStorageMetadata() for fqn in self._values()}
        for key, dtype, shape in reader.tensors:
            properties = TensorProperties(getattr(torch, dtype), requires_grad=key in grads)
            about[key] = TensorStorageMetadata(properties, torch.Size(shape), chunks[key])
        return Metadata(about, planner_data=self._tree["dcp"]["planner_data"])

    def _values(self) -> list[str]:
        state, opaque = self._tree["state"], self._tree["dcp"]["opaque"]
        return [fqn for fqn, value in state.items() if not isinstance(value, TensorRef)] + [*opaque]

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Store which rank this is: the checkpoint is open."""
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Tell every rank which checkpoint the coordinator has opened."""
        commit = self._open().commit
        return [dataclasses.replace(plan, storage_data=commit) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors that the planner asks for."""
        reader = self._open()
        if plan.storage_data is not None and tuple(plan.storage_data) != reader.commit:
            raise RuntimeError(
                f"the coordinator loads step {plan.storage_data[0]}, this rank opened "
                f"{reader.commit[0]}: a save was committed in between; set step="
            )
        values = [item for item in plan.items if item.type is LoadItemType.BYTE_IO]
        streams = [self._bytes(item.storage_index.fqn, planner) for item in values]  # It may raise.
        wanted: list[Wanted] = []
        filled: list[tuple[ReadItem, torch.Tensor]] = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                continue
            key = item.storage_index.fqn
            tensor = planner.resolve_tensor(item).detach()
            chunk = item.storage_index.offset or (0,) * len(item.lengths)
            offset = [a + b for a, b in zip(chunk, item.storage_offsets, strict=True)]
            wanted.append((key, offset, list(item.lengths), tensor))
            filled.append((item, tensor))
        # Converts between types of tensors, as DCP does.
        read_into(reader, wanted, {key: dtype for key, dtype, _ in reader.tensors})
        for item, tensor in filled:
            planner.commit_tensor(item, tensor)
        for item, stream in zip(values, streams, strict=True):
            planner.load_bytes(item, stream)
        if self._is_coordinator and self._resume is not False:
            with contextlib.suppress(OSError, CorruptionError):
                reader.go_on(is_certain=self._resume is True)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _bytes(self, fqn: str, planner: LoadPlanner) -> io.BytesIO:
        """A stream for the planner, which unpickles it; for a plain value, one made here."""
        opaque = self._tree["dcp"]["opaque"].get(fqn)
        if opaque is not None:
            if not self._allow_pickle:
                raise CorruptionError(
                    f"{fqn} was pickled by the planner that saved it; loading it may run any "
                    "code. If you trust the checkpoint, set allow_pickle=True"
                )
            return io.BytesIO(opaque)
        if not isinstance(planner, DefaultLoadPlanner):
            raise TypeError(
                f"{fqn} is stored as a plain value, which {type(planner).__name__} cannot take: "
                "derive the planner from DefaultLoadPlanner"
            )
        stream = io.BytesIO()
        torch.save(self._tree["state"][fqn], stream)
        stream.seek(0)
        return stream
