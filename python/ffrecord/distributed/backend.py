"""The library's own collectives as a backend of torch.distributed, for tensors in CPU memory.

import ffrecord.distributed.backend  # Registers it.
torch.distributed.init_process_group("ffrecord")
"""

# torch's stubs name and overload the methods of a process group otherwise from release to release.
# mypy: disable-error-code="override, assignment"

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ffrecord.distributed._arguments import listed, op_of, read, read_lists, root_of
from ffrecord.distributed._engine_arrays import (
    all_reduce,
    contiguous_bytes,
    dense,
    in_place,
    reduce_scatter,
    reducible,
)
from ffrecord.distributed._group import ReduceOp, address_among, as_bytes, machine_identity
from ffrecord.distributed._meeting import MonitoredBarrier, meet_at
from ffrecord.distributed._messages import Messages
from ffrecord.distributed._pump import Pump, Start
from ffrecord.distributed._sparse import SparseSum
from ffrecord.distributed._works import Coalesced, Started, ended, is_in_hook, profiled

__all__ = ["ProcessGroup"]

Tensors = list[torch.Tensor]
Future = torch.futures.Future[Any]
# Arrays and what each starts, the tensors that it is about, and what is to be done at the end.
Arrays = list[tuple[torch.Tensor, Start]]
Plan = tuple[Arrays, Tensors, Callable[[], Any] | None]


def _operation(name: str) -> Callable[[Callable[..., Plan]], Callable[..., dist.Work]]:
    """Makes the objects that torch waits on; names the operation in errors and in the profiler.

    An event of the profiler ends with the operation, not with its start. Communication hooks of
    torch chain operations to an all-reduce by callbacks. If the all-reduce were still running then,
    each rank's threads would decide in which order those of several buckets start. Therefore it has
    ended.
    """

    def decorate(method: Callable[..., Plan]) -> Callable[..., dist.Work]:
        @functools.wraps(method)
        def called(self: "ProcessGroup", *args: Any, **kwargs: Any) -> dist.Work:  # noqa: ANN401
            ends = profiled(name)
            try:
                with torch.inference_mode():  # As in ended().
                    plan = method(self, *args, **kwargs)
            except (TypeError, ValueError, NotImplementedError) as error:
                if ends is not None:
                    ends.__exit__(None, None, None)
                raise type(error)(f"{name}: {error}") from error
            work = self._start(plan, ends)
            if name.startswith("all_reduce") and is_in_hook(sys._getframe(1)):
                work.get_future().wait()
            return work

        return called

    return decorate


def _stop(pump: Pump, messages: Messages) -> None:
    messages.stop()
    pump.stop()


class ProcessGroup(dist.ProcessGroup):
    """The backend of `init_process_group("ffrecord")` and `new_group(backend="ffrecord")`.

    All-reduce, reduce, broadcast, all-gather, reduce-scatter, gather, scatter, all-to-all, barrier
    and monitored barrier; sum, average, minimum, maximum, product, and the bitwise operations of
    integers; an all-reduce may sum sparse tensors. All ranks take part in all of them: gather uses
    all-gather, scatter uses broadcast, which keeps the busiest link no busier, and all-to-all uses
    all-gather, which moves as many times its bytes as there are ranks.

    A send needs its receiver alone. The first between two ranks, in one direction, connects them
    in the background; that takes a thread of each. Messages with one tag arrive in the order in
    which they were sent. A receive from any rank takes ranks in turns.

    Errors name the operation and the rank. An operation that a rank rejects for its arguments was
    not started there, and may be called again; operations that differ between ranks end the group,
    as in `Group`. The ranks compare how many elements of which type are sent: bytes, if they are
    only moved, and the wider integer, if one stands in for another. If ranks disagree about the
    dtype beyond that, each reads the result as its own dtype. Callbacks of futures may start
    operations and wait for them, in an order that is the same on all ranks. An all-reduce that
    Python code starts within a backward pass, as hooks of DDP do, has ended when it is returned.
    The time limit is that of the group; a `timeout` of one operation is ignored. Thread-safe.
    """

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # A torch.distributed.Store.
        rank: int,
        size: int,
        timeout: timedelta,
        name: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        """Meet the other ranks at the store.

        Args:
            store: where all ranks of this group, and no others, meet.
            rank: of this process, in the group.
            size: ranks of the group.
            timeout: for meeting, and for an operation in progress in which nothing moves.
            name: by which torch finds the group.
            options: those of `Group`, by name; `pg_options` of `init_process_group`.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # One of its overloads.
        self._rank, self._size, self._name = rank, size, name
        store.set(f"machine/{rank}", machine_identity())
        identities = [bytes(store.get(f"machine/{i}")) for i in range(size)]
        settings: dict[str, Any] = {
            "rank": rank,
            "world_size": size,
            "listen_host": address_among(identities),
            "chunk_size_bytes": 512 << 10,
            "timeout_s": timeout.total_seconds(),
            **(options or {}),
        }
        self._pump = Pump(meet_at(store, settings))
        self._timeout = timeout
        self._monitored = MonitoredBarrier(store, rank, size)
        self._coalesced = Coalesced()
        self._messages = Messages(store, settings, self._coalesced)
        # When it is destroyed or collected, or at exit: a thread must not outlive the interpreter.
        self._stop = weakref.finalize(self, _stop, self._pump, self._messages)

    def shutdown(self) -> None:
        """Leave the group; pending operations fail."""
        self._stop()

    def abort(self) -> None:
        """Like `shutdown`."""
        self._stop()

    def size(self) -> int:
        """The number of ranks."""
        return self._size

    def rank(self) -> int:
        """The rank of this process."""
        return self._rank

    @property
    def group_name(self) -> str:
        """The name by which torch finds the group."""
        return self._name

    def getBackendName(self) -> str:  # torch's name.
        """The name under which it was registered."""
        return "ffrecord"

    # --- What reduces ---

    @_operation("all_reduce")
    def allreduce(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Reduce each tensor, in place."""
        tensors, opts, _ = read(args, kwargs, "tensors tensor", "opts op", "timeout")
        tensors, op = listed(tensors), op_of(opts)
        if any(tensor.is_sparse for tensor in tensors):
            return self._sum_sparse(tensors, op)
        arrays = [reducible(tensor, op) for tensor in tensors]
        starts = [(array, all_reduce(op)) for array, _ in arrays]
        return starts, tensors, lambda: [back() for _, back in arrays]

    @_operation("all_reduce_coalesced")
    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Like `allreduce`."""
        return self.allreduce.__wrapped__(self, *args, **kwargs)  # type: ignore[attr-defined, no-any-return]

    @_operation("reduce")
    def reduce(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Reduce to one rank; the tensors of the others are left alone."""
        tensors, opts, op, _ = read(args, kwargs, "tensors tensor", "opts root", "op", "timeout")
        tensors, root, op = listed(tensors), root_of(opts, self._size), op_of(op or opts)
        sums = [dense(tensor).clone() for tensor in tensors]
        arrays = [reducible(each, op) for each in sums]
        starts = [(array, all_reduce(op)) for array, _ in arrays]

        def finish() -> None:
            for (_, back), tensor, each in zip(arrays, tensors, sums, strict=True):
                back()
                if self._rank == root:
                    tensor.detach().copy_(each)

        return starts, tensors, finish

    @_operation("reduce_scatter")
    def reduce_scatter_single(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Reduce; this rank gets its shard, all equal in size."""
        names = "output outputTensor", "input inputTensor", "opts"
        output, whole, opts = read(args, kwargs, *names)
        return self._reduce_scatter_equal([output], [whole], opts)

    @_operation("reduce_scatter")
    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Like `reduce_scatter_single`, with shards that are tensors, of any sizes."""
        names = "output_tensors output", "input_tensors input", "opts op", "timeout"
        outputs, inputs, opts = read_lists(args, kwargs, names)
        wholes = []
        for output, parts in zip(outputs, inputs, strict=True):
            self._check_parts(parts)
            if parts[self._rank].numel() != output.numel():
                raise ValueError(
                    f"the output has {output.numel()} elements, this rank's shard has"
                    f" {parts[self._rank].numel()}"
                )
            if wrong := [part.dtype for part in parts if part.dtype != output.dtype]:
                raise ValueError(f"the output is {output.dtype}, and a shard is {wrong[0]}")
            largest = max(part.numel() for part in parts)
            whole = output.new_zeros(self._size, largest)
            for row, part in zip(whole, parts, strict=True):
                row[: part.numel()] = dense(part).reshape(-1)
            wholes.append(whole.view(-1))
        return self._reduce_scatter(outputs, wholes, opts)

    @_operation("reduce_scatter_coalesced")
    def reduce_scatter_single_coalesced(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Like `reduce_scatter_single`, for each."""
        outputs, inputs, opts = read(args, kwargs, "outputs", "inputs", "opts")
        return self._reduce_scatter_equal(outputs, inputs, opts)

    def _reduce_scatter_equal(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Plan:  # noqa: ANN401
        """For each whole tensor, whose shards are as large as the output."""
        for output, whole in zip(outputs, inputs, strict=True):
            if whole.numel() != self._size * output.numel() or whole.dtype != output.dtype:
                raise ValueError(
                    f"{whole.numel()} elements of {whole.dtype} for {self._size} ranks do not give"
                    f" {output.numel()} of {output.dtype}"
                )
        return self._reduce_scatter(outputs, [dense(each).reshape(-1) for each in inputs], opts)

    def _reduce_scatter(self, outputs: Tensors, wholes: Tensors, opts: Any) -> Plan:  # noqa: ANN401
        """For each whole tensor, whose shards are equal, and may be longer than the output."""
        op = op_of(opts)
        starts, backs = [], []
        for output, whole in zip(outputs, wholes, strict=True):
            size = whole.numel() // self._size
            own = whole.clone(memory_format=torch.contiguous_format)
            array, back = reducible(own, op)
            starts.append((array, reduce_scatter(op)))
            backs.append((output.detach(), own.view(self._size, size)[self._rank], back))

        def finish() -> None:
            for output, part, back in backs:
                back()
                output.copy_(part[: output.numel()].view(output.shape))

        return starts, outputs, finish

    # --- What moves ---

    @_operation("broadcast")
    def broadcast(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Broadcast from one rank, any dtype."""
        tensors, opts, _ = read(args, kwargs, "tensors tensor", "opts root", "timeout")
        tensors = listed(tensors)
        return self._broadcast(tensors, root_of(opts, self._size))

    @_operation("all_gather")
    def all_gather_single(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Gather the shards of all ranks, equal in size, of any dtype."""
        names = "output output_tensor outputTensor", "input input_tensor inputTensor", "opts"
        output, part, _ = read(args, kwargs, *names)
        start, back = self._all_gather(output, part)
        return [start], [output], back

    @_operation("all_gather")
    def allgather(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Like `all_gather_single`, into tensors, whose sizes may differ."""
        names = "output_tensors", "input_tensors input_tensor", "opts", "timeout"
        outputs, inputs, _ = read_lists(args, kwargs, names)
        return self._all_gather_lists(outputs, inputs)

    @_operation("all_gather_coalesced")
    def allgather_coalesced(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Like `allgather`, for each; there is a list of outputs for each rank."""
        names = "output_lists output_tensor_lists", "input_list input_tensor_list", "opts"
        outputs, inputs, _ = read(args, kwargs, *names)
        self._check_parts(outputs)
        return self._all_gather_lists([list(each) for each in zip(*outputs, strict=True)], inputs)

    @_operation("all_gather_coalesced")
    def all_gather_single_coalesced(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Like `all_gather_single`, for each."""
        outputs, inputs, _ = read(args, kwargs, "outputs", "inputs", "opts")
        plans = [self._all_gather(*pair) for pair in zip(outputs, inputs, strict=True)]
        return [start for start, _ in plans], outputs, lambda: [back() for _, back in plans]

    @_operation("gather")
    def gather(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Gather the shards of all ranks on one of them."""
        names = "output_tensors", "input_tensors input_tensor", "opts root", "timeout"
        outputs, inputs, opts = read_lists(args, kwargs, names)
        (part,) = inputs
        places = outputs[0] if self._rank == root_of(opts, self._size) else []
        whole = part.new_empty(self._size, *part.shape)
        start, back = self._all_gather(whole, part)
        brought = (part.dtype, tuple(part.shape))
        wanted = [brought] * self._size if self._rank == root_of(opts, self._size) else []
        if (found := [(place.dtype, tuple(place.shape)) for place in places]) != wanted:
            self._pump.submit(start[0], 0, start[1])  # The others need not know.
            raise ValueError(f"the root has places for {found}, and each rank sends {brought}")

        def finish() -> None:
            back()
            for place, each in zip(places, whole, strict=False):  # At the others there is none.
                place.detach().copy_(each)

        return [start], places, finish

    @_operation("scatter")
    def scatter(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Scatter parts, equal in size, from one rank to each."""
        names = "output_tensors output_tensor", "input_tensors", "opts root", "timeout"
        outputs, inputs, opts = read_lists(args, kwargs, names)
        (output,) = outputs
        root, refusal = root_of(opts, self._size), None
        # The last byte says whether the root had something to scatter.
        size_bytes = output.numel() * output.element_size()
        sent = torch.zeros(self._size * size_bytes + 1, dtype=torch.uint8)
        if self._rank == root:
            try:
                self._check_parts(inputs[0])
                wrong = [p for p in inputs[0] if (p.shape, p.dtype) != (output.shape, output.dtype)]
                if wrong:
                    raise ValueError(
                        f"the root has a part of {wrong[0].dtype} {tuple(wrong[0].shape)}, and the"
                        f" output is {output.dtype} {tuple(output.shape)}"
                    )
                whole = torch.cat([contiguous_bytes(part) for part in inputs[0]])
                sent[:-1], sent[-1] = whole, 1
            except (TypeError, ValueError) as error:
                refusal = error
        (start,), _, _ = self._broadcast([sent], root)
        if refusal is not None:
            self._pump.submit(start[0], 0, start[1])  # The others learn that it has failed.
            raise refusal

        def finish() -> None:
            if not sent[-1]:
                raise ValueError(f"scatter: rank {root} had no parts that fit; its error says why")
            part = sent[self._rank * size_bytes :][:size_bytes].clone().view(output.dtype)
            output.detach().copy_(part.view(output.shape))

        return [start], outputs, finish

    @_operation("all_to_all")
    def alltoall(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Send a part from each rank to each, of any sizes; agrees on those before it returns."""
        outputs, inputs, _ = read(args, kwargs, "output_tensors", "input_tensors", "opts")
        return self._all_to_all(outputs, inputs)

    @_operation("all_to_all")
    def all_to_all_single(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Like `alltoall`, for rows of one tensor; equally many if no sizes are given."""
        names = "output", "input", "output_split_sizes", "input_split_sizes", "opts timeout"
        output, whole, output_sizes, input_sizes, _ = read(args, kwargs, *names)
        places = torch.split(output, output_sizes) if output_sizes else output.chunk(self._size)
        parts = torch.split(whole, input_sizes) if input_sizes else whole.chunk(self._size)
        if len(places) != self._size or len(parts) != self._size:
            raise ValueError(
                f"{len(whole)} rows to and {len(output)} from {self._size} ranks do not divide"
            )
        return self._all_to_all(list(places), list(parts))

    def _all_to_all(self, outputs: Tensors, inputs: Tensors) -> Plan:
        self._check_parts(inputs)
        self._check_parts(outputs)
        # Gather the counts that each sends and has room for: all ranks know of a difference, and
        # raise.
        own_counts = [part.numel() for part in inputs], [place.numel() for place in outputs]
        table = torch.empty(self._size, 2, self._size, dtype=torch.int64)
        start, _ = self._all_gather(table, torch.tensor(own_counts))
        self._pump.submit(start[0], 0, start[1]).wait()
        for rank in range(self._size):
            sent, wanted = table[:, 0, rank].tolist(), table[rank, 1].tolist()
            if sent != wanted:
                raise ValueError(
                    f"rank {rank} is sent {sent} elements by the ranks, but has places for {wanted}"
                )
        own = torch.cat([dense(part).reshape(-1) for part in inputs])
        padded = own.new_zeros(int(table[:, 0].sum(1).max()))
        padded[: own.numel()] = own
        whole = own.new_empty(self._size, padded.numel())
        start, _ = self._all_gather(whole, padded)

        def finish() -> None:
            for place, row, counts in zip(outputs, whole, table[:, 0].tolist(), strict=True):
                part = row[: sum(counts)].split(counts)[self._rank]
                place.detach().copy_(part.view(place.shape))

        return [start], outputs, finish

    # --- Between two ranks ---

    def send(self, *args: Any, **kwargs: Any) -> dist.Work:  # noqa: ANN401
        """Send a tensor to one rank; ends when it may be changed again."""
        tensors, rank, tag = read(args, kwargs, "tensors", "dstRank", "tag")
        return self._messages.transfer("send", tensors, rank, tag)

    def recv(self, *args: Any, **kwargs: Any) -> dist.Work:  # noqa: ANN401
        """Receive a tensor of the same size in bytes that a rank has sent with this tag."""
        tensors, rank, tag = read(args, kwargs, "tensors", "srcRank", "tag")
        return self._messages.transfer("recv", tensors, rank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        """Receive a tensor of the same size in bytes that any other rank has sent with this tag."""
        return self._messages.receive_any(tensors, tag)

    @_operation("barrier")
    def barrier(self, *args: Any, **kwargs: Any) -> Plan:  # noqa: ANN401
        """Ends when all ranks have reached it."""
        read(args, kwargs, "opts timeout")
        one = torch.zeros(1, dtype=torch.int32)
        return [(one, all_reduce("sum"))], [one], None

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return when all ranks have reached it; it needs the store alone.

        `torch.distributed.monitored_barrier` accepts the group of Gloo only: call this method.

        Raises:
            RuntimeError: on every rank that is here, if others have not come in time; the message
            names the first of them, or all with `wait_all_ranks`.
        """
        limit = self._timeout if timeout is None else timeout
        self._monitored.meet(limit.total_seconds(), wait_all_ranks=wait_all_ranks)

    # --- Several at once ---

    def _start_coalescing(self, device: torch.device) -> None:
        """Operations of this thread end together from now on."""
        del device
        self._coalesced.begin()

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """The end of all since `_start_coalescing`."""
        del device
        return Started(self._coalesced.end())

    def _start(
        self,
        plan: Plan,
        ends: Any,  # noqa: ANN401  # An event of the profiler, or none.
    ) -> Started:
        arrays, tensors, finish = plan
        futures: list[Future] = [torch.futures.Future() for _ in arrays]
        future = ended(futures, tensors, finish)
        if ends is not None:
            future = ends._call_end_callbacks_on_future(future)
        for (array, start), each in zip(arrays, futures, strict=True):
            self._pump.submit(array, 0, start, future=each)
        self._coalesced.add(future)
        return Started(future)

    # Older releases have these names.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- What they are made of ---

    def _broadcast(self, tensors: Tensors, root: int) -> Plan:
        arrays = [in_place(tensor) for tensor in tensors]
        starts: Arrays = [
            (as_bytes(array), lambda engine, *array: engine.broadcast(*array, root))
            for array, _ in arrays
        ]
        return starts, tensors, lambda: [back() for _, back in arrays]

    def _all_gather(
        self, output: torch.Tensor, part: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, Start], Callable[[], None]]:
        """Gather equal parts, into `output` if it is contiguous."""
        if output.numel() != part.numel() * self._size or output.dtype != part.dtype:
            raise ValueError(
                f"{part.numel()} elements of {part.dtype} from each of {self._size} ranks do not"
                f" fill {output.numel()} of {output.dtype}"
            )
        own = contiguous_bytes(part)
        whole, back = in_place(output)
        rows = as_bytes(whole).view(self._size, own.numel())
        rows[self._rank].copy_(own)
        return (rows.view(-1), lambda engine, *array: engine.all_gather(*array)), back

    def _all_gather_lists(self, outputs: list[Tensors], inputs: Tensors) -> Plan:
        wholes = []
        for places, part in zip(outputs, inputs, strict=True):
            self._check_parts(places)
            if places[self._rank].numel() != part.numel() or any(
                place.dtype != part.dtype for place in places
            ):
                raise ValueError(
                    f"places for {[place.numel() for place in places]} elements of"
                    f" {places[0].dtype}, and rank {self._rank} sends {part.numel()} of"
                    f" {part.dtype}"
                )
            largest = max(place.numel() for place in places)
            padded = part.new_zeros(largest)
            padded[: part.numel()] = dense(part).reshape(-1)
            wholes.append((part.new_empty(self._size, largest), padded))
        starts = [self._all_gather(*pair)[0] for pair in wholes]

        def finish() -> None:
            for places, (whole, _) in zip(outputs, wholes, strict=True):
                for place, row in zip(places, whole, strict=True):
                    place.detach().copy_(row[: place.numel()].view(place.shape))

        return starts, [place for places in outputs for place in places], finish

    def _sum_sparse(self, tensors: Tensors, op: ReduceOp) -> Plan:
        """Sum sparse tensors; agrees on the numbers of their elements before it returns."""
        if op != "sum":
            raise TypeError(f"sparse tensors have a sum here, and no {op}")
        sums = [SparseSum(tensor, self._size) for tensor in tensors]
        starts: Arrays = []

        def gather(output: torch.Tensor, part: torch.Tensor) -> None:
            starts.append(self._all_gather(output, part)[0])

        for each in sums:
            each.agree(gather)
        for told in [self._pump.submit(array, 0, start) for array, start in starts]:
            told.wait()
        starts.clear()
        for each in sums:
            each.start(gather)

        def finish() -> None:
            for each in sums:
                each.finish()

        return starts, tensors, finish

    def _check_parts(self, parts: Sequence[Any]) -> None:
        if len(parts) != self._size:
            raise ValueError(f"{len(parts)} tensors for {self._size} ranks")


def _create(opts: Any, options: dict[str, Any] | None) -> ProcessGroup:  # noqa: ANN401
    return ProcessGroup(
        opts.store, opts.group_rank, opts.group_size, opts.timeout, opts.group_id, options
    )


if "FFRECORD" not in dist.Backend._plugins:
    dist.Backend.register_backend("ffrecord", _create, extended_api=True, devices=["cpu"])
