"""The library's own collectives as a backend of torch.distributed, for tensors in CPU memory.

import ffrecord.torch.backend  # Registers it.
torch.distributed.init_process_group("ffrecord")
"""

# torch's stubs name and overload the methods of a process group otherwise from release to release.
# mypy: disable-error-code="override, assignment"

import os
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ffrecord._ffrecord import CollectiveEngine
from ffrecord.torch.group import _DTYPES, ReduceOp, _Pump, address_among, machine_identity
from ffrecord.torch.works import Started

__all__ = ["ProcessGroup"]

_OPS: dict[Any, ReduceOp] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}
_SECRET_SIZE = 16
Future = torch.futures.Future[Any]


class ProcessGroup(dist.ProcessGroup):
    """What `init_process_group("ffrecord")` and `new_group(backend="ffrecord")` make.

    All-reduce, reduce, broadcast, all-gather, reduce-scatter, gather, scatter, all-to-all and
    barrier; sum, average, minimum and maximum. All ranks take part in all of them: gather goes by
    all-gather, scatter by broadcast, which keeps the busiest link no busier, and all-to-all by
    all-gather, which moves as many times its bytes as there are ranks. There is no send and no
    receive. Errors name the rank, as in `Group`. Thread-safe.
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
            rank: this one's, in the group.
            size: ranks of the group.
            timeout: for meeting, and for each operation once its turn has come.
            name: by which torch finds the group.
            options: those of `Group`, by name; `pg_options` of `init_process_group`.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # One of its overloads.
        self._rank, self._size, self._name = rank, size, name
        store.set(f"machine/{rank}", machine_identity())
        identities = [bytes(store.get(f"machine/{i}")) for i in range(size)]
        settings: dict[str, Any] = {
            "listen_host": address_among(identities),
            "chunk_size_bytes": 512 << 10,
            "timeout_s": timeout.total_seconds(),
        }
        engine = CollectiveEngine(rank=rank, world_size=size, **(settings | (options or {})))
        if rank == 0:
            store.set("secret", secrets.token_hex(_SECRET_SIZE))
        store.set(f"address/{rank}", engine.address)
        addresses = [bytes(store.get(f"address/{i}")).decode() for i in range(size)]
        engine.connect(addresses, bytes.fromhex(bytes(store.get("secret")).decode()))
        self._pump = _Pump(engine)
        self._owner = os.getpid()

    def __del__(self) -> None:
        """Leave the group."""
        if hasattr(self, "_pump"):
            self._pump.stop()

    def shutdown(self) -> None:
        """Leave the group; what is pending fails."""
        self._pump.stop()

    def abort(self) -> None:
        """As `shutdown`."""
        self._pump.stop()

    def size(self) -> int:
        """Ranks."""
        return self._size

    def rank(self) -> int:
        """This one."""
        return self._rank

    @property
    def group_name(self) -> str:
        """By which torch finds the group."""
        return self._name

    def getBackendName(self) -> str:  # torch's name.
        """What it was registered as."""
        return "ffrecord"

    # --- What reduces ---

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:  # noqa: ANN401
        """Of each tensor, in place."""
        name = _name_of(opts)
        futures = [self._reduced(tensor, name) for tensor in tensors]
        return _all_of(futures, tensors)

    def allreduce_coalesced(
        self,
        tensors: list[torch.Tensor],
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """As `allreduce`."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:  # noqa: ANN401
        """To one rank; the tensors of the others are left alone."""
        sums = [tensor.clone() for tensor in tensors]
        futures = [self._reduced(each, _name_of(opts)) for each in sums]
        at_root = self._rank == opts.rootRank
        pairs = list(zip(tensors, sums, strict=True)) if at_root else []
        return _all_of(futures, tensors, lambda: [a.copy_(b) for a, b in pairs])

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """The reduced part of this rank, of equal ones."""
        buffer = whole.detach().clone(memory_format=torch.contiguous_format).view(-1)
        if buffer.numel() != output.numel() * self._size:
            raise ValueError(
                f"{buffer.numel()} elements for {self._size} ranks do not give {output.numel()}"
            )
        engine, name = self._pump.engine, _name_of(opts)
        kept, back = _reducible(buffer, name)
        future = self._pump.submit(
            kept, 0, lambda at, count, dtype: engine.reduce_scatter(at, count, dtype, name)
        )

        def finish() -> None:
            back()
            output.copy_(buffer.chunk(self._size)[self._rank].view(output.shape))

        return _all_of([future], [output], finish)

    def reduce_scatter(
        self,
        outputs: list[torch.Tensor],
        inputs: list[list[torch.Tensor]],
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """As `reduce_scatter_single`, of parts that are tensors."""
        wholes = [torch.cat([part.view(-1) for part in parts]) for parts in inputs]
        return _each(self.reduce_scatter_single, outputs, wholes, opts)

    def reduce_scatter_single_coalesced(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """As `reduce_scatter_single`, of each."""
        return _each(self.reduce_scatter_single, outputs, inputs, opts)

    # --- What moves ---

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:  # noqa: ANN401
        """From one rank, of any dtype."""
        engine = self._pump.engine
        futures, backs = [], []
        for tensor in tensors:
            kept, back = _movable(tensor)
            futures.append(
                self._pump.submit(
                    kept,
                    0,
                    lambda at, count, dtype: engine.broadcast(at, count, dtype, opts.rootRank),
                )
            )
            backs.append(back)
        return _all_of(futures, tensors, lambda: [back() for back in backs])

    def all_gather_single(
        self,
        output: torch.Tensor,
        part: torch.Tensor,
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """The parts of all ranks, equal in size, of any dtype."""
        del opts
        size_bytes = part.numel() * part.element_size()
        # Parts of the engine are whole elements.
        padded = -(-size_bytes // 4) * 4
        buffer = torch.zeros(self._size, padded, dtype=torch.uint8)
        buffer[self._rank, :size_bytes].copy_(_bytes_of(part))
        future = self._pump.submit(
            buffer.view(-1).view(torch.int32), 0, self._pump.engine.all_gather
        )

        def finish() -> None:
            found = buffer[:, :size_bytes].contiguous().view(-1).view(part.dtype)
            output.copy_(found.view(output.shape))

        return _all_of([future], [output], finish)

    def allgather(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """As `all_gather_single`, into tensors."""
        futures = []
        for places, part in zip(outputs, inputs, strict=True):
            whole = torch.empty(self._size, *part.shape, dtype=part.dtype)
            work = self.all_gather_single(whole, part, opts)

            def spread(
                ended: Future, whole: torch.Tensor = whole, places: Sequence[Any] = places
            ) -> list[torch.Tensor]:
                ended.value()
                return [place.copy_(each) for place, each in zip(places, whole, strict=True)]

            futures.append(work.get_future().then(spread))
        return _all_of(futures, [place for places in outputs for place in places])

    def all_gather_single_coalesced(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """As `all_gather_single`, of each."""
        return _each(self.all_gather_single, outputs, inputs, opts)

    def gather(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: Any,  # noqa: ANN401
    ) -> dist.Work:
        """The parts of all ranks to one of them."""
        places = outputs[0] if self._rank == opts.rootRank else []
        (part,) = inputs
        whole = torch.empty(self._size, *part.shape, dtype=part.dtype)
        work = self.all_gather_single(whole, part)

        def finish() -> None:
            for place, each in zip(places, whole, strict=False):  # At the others there is none.
                place.copy_(each)

        return _all_of([work.get_future()], places, finish)

    def scatter(
        self,
        outputs: list[torch.Tensor],
        inputs: list[list[torch.Tensor]],
        opts: Any,  # noqa: ANN401
    ) -> dist.Work:
        """A part to each rank, equal in size, from one of them."""
        (output,) = outputs
        whole = torch.empty(self._size, *output.shape, dtype=output.dtype)
        if self._rank == opts.rootRank:
            torch.stack([_on_cpu(part) for part in inputs[0]], out=whole)
        work = self.broadcast([whole], opts)
        return _all_of([work.get_future()], outputs, lambda: output.copy_(whole[self._rank]))

    def alltoall(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """A part from each rank to each, of any sizes; agrees on those before it returns."""
        del opts
        counts = torch.tensor([part.numel() for part in inputs])
        table = torch.empty(self._size, self._size, dtype=counts.dtype)
        self.all_gather_single(table, counts).wait()
        wanted = [place.numel() for place in outputs]
        if table[:, self._rank].tolist() != wanted:
            raise ValueError(
                f"rank {self._rank} is sent {table[:, self._rank].tolist()} elements by the ranks, "
                f"but has places for {wanted}"
            )
        own = torch.cat([_on_cpu(part).reshape(-1) for part in inputs])
        padded = own.new_zeros(int(table.sum(1).max()))
        padded[: own.numel()] = own
        whole = own.new_empty(self._size, padded.numel())
        work = self.all_gather_single(whole, padded)

        def finish() -> None:
            for place, row, sizes in zip(outputs, whole, table.tolist(), strict=True):
                part = row[: sum(sizes)].split(sizes)[self._rank]
                place.copy_(part.view(place.shape))

        return _all_of([work.get_future()], outputs, finish)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,  # noqa: ANN401
    ) -> dist.Work:
        """As `alltoall`, of rows of one tensor; equally many where no sizes are given."""
        places = torch.split(output, output_sizes) if output_sizes else output.chunk(self._size)
        parts = torch.split(whole, input_sizes) if input_sizes else whole.chunk(self._size)
        if len(places) != self._size or len(parts) != self._size:
            raise ValueError(
                f"{len(whole)} rows to and {len(output)} from {self._size} ranks do not divide"
            )
        return self.alltoall(list(places), list(parts), opts)

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> dist.Work:
        """Is not offered."""
        raise NotImplementedError(
            f"{len(tensors)} tensors from or to rank {rank}, tag {tag}: two ranks alone do not meet"
            ' by this backend; a group of dist.new_group(backend="gloo") beside it does that'
        )

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> dist.Work:
        """Is not offered."""
        return self.send(tensors, rank, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> dist.Work:
        """Is not offered."""
        return self.send(tensors, -1, tag)

    def barrier(self, opts: Any = None) -> dist.Work:  # noqa: ANN401
        """Ends when all ranks have come."""
        del opts
        return self.allreduce([torch.zeros(1, dtype=torch.int32)])

    # What older releases call them.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduced(self, tensor: torch.Tensor, name: ReduceOp) -> Future:
        engine = self._pump.engine
        kept, back = _reducible(tensor, name)
        future = self._pump.submit(
            kept, 0, lambda at, count, dtype: engine.all_reduce(at, count, dtype, name)
        )

        def finished(ended: Future) -> torch.Tensor:
            ended.value()
            back()
            return tensor

        return future.then(finished)


def _each(
    operation: Callable[[torch.Tensor, torch.Tensor, Any], dist.Work],
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    opts: Any,  # noqa: ANN401
) -> dist.Work:
    """An operation for each pair, ended when all of them are."""
    works = [operation(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
    return _all_of([work.get_future() for work in works], outputs)


def _all_of(
    futures: Sequence[Future], tensors: list[torch.Tensor], finish: Callable[[], Any] | None = None
) -> dist.Work:
    """Ends when all have, and then does the rest."""

    def finished(ended: Future) -> list[torch.Tensor]:
        for each in ended.value():
            each.value()  # Raises what went wrong.
        if finish is not None:
            finish()
        return tensors

    return Started(torch.futures.collect_all(list(futures)).then(finished))


def _name_of(opts: Any) -> ReduceOp:  # noqa: ANN401
    if opts is None:
        return "sum"
    for op, name in _OPS.items():
        if opts.reduceOp == op:
            return name
    raise NotImplementedError(f"{opts.reduceOp} is not reduced here: sum, average, min and max are")


def _nothing() -> None:
    pass


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TypeError(f"dense tensors in CPU memory go by this backend, not on {tensor.device}")
    return tensor.detach()


def _reducible(tensor: torch.Tensor, name: ReduceOp) -> tuple[torch.Tensor, Callable[[], None]]:
    """Memory that the engine reduces, and what brings the result back to the tensor."""
    own = _on_cpu(tensor)
    if own.dtype in _DTYPES and own.is_contiguous():
        return own, _nothing
    kind = own.dtype if own.dtype in _DTYPES else torch.int32
    if own.dtype not in _DTYPES and (own.dtype.is_floating_point or own.dtype.is_complex):
        raise TypeError(f"{own.dtype} is none of those that are reduced here")
    if name == "average" and not kind.is_floating_point:
        raise TypeError(f"{own.dtype} has no average here: sum and divide")
    kept = own.to(kind, copy=True, memory_format=torch.contiguous_format)

    def back() -> None:
        own.copy_(kept)

    return kept, back


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return _on_cpu(tensor).contiguous().view(-1).view(torch.uint8)


def _movable(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
    """Memory that the engine moves, and what brings the result back to the tensor."""
    own = _on_cpu(tensor)
    if own.dtype in _DTYPES and own.is_contiguous():
        return own, _nothing
    size_bytes = own.numel() * own.element_size()
    kept = torch.zeros(-(-size_bytes // 4), dtype=torch.int32)
    kept.view(torch.uint8)[:size_bytes].copy_(_bytes_of(own))

    def back() -> None:
        own.copy_(kept.view(torch.uint8)[:size_bytes].clone().view(own.dtype).view(own.shape))

    return kept, back


def _create(opts: Any, options: dict[str, Any] | None) -> ProcessGroup:  # noqa: ANN401
    return ProcessGroup(
        opts.store, opts.group_rank, opts.group_size, opts.timeout, opts.group_id, options
    )


if "FFRECORD" not in dist.Backend._plugins:
    dist.Backend.register_backend("ffrecord", _create, extended_api=True, devices=["cpu"])
