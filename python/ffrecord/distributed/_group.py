"""Ranks that reduce tensors in CPU memory together, with the library's own collectives."""

import dataclasses
import hashlib
import itertools
import os
import secrets
import socket
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from ffrecord._base.closeable import Closing
from ffrecord._ffrecord import CollectiveEngine
from ffrecord.distributed._pump import REDUCED, Pump, Transfer
from ffrecord.errors import UnavailableError

Transport = Literal["tcp", "rdma"]
ReduceOp = Literal["sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor"]
Algorithm = Literal["ring", "halving_doubling", "recursive_doubling", "double_tree", "hierarchical"]
# The types on the wire of float32 arrays.
_WIRES = {None: "exact", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_ADDRESS_SIZE_MAX = 256
_SECRET_SIZE = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An event in a group."""

    at_ns: int
    """`time.monotonic_ns()`."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """The counters of a hook."""

    bytes_sent: int
    """Over the network."""
    bytes_received: int
    bytes_shared: int
    """Given to ranks of the same machine, in shared memory."""
    operations: int
    reduce_ns: int
    streams_lost: int
    """Connections to other ranks that broke while others went on; `Group.events` names them."""
    transfers: list[Transfer]
    """The newest last; at most 10,000."""


class Group(Closing):
    """One rank's place in a group of all ranks of a process group; a context manager.

    Create it on all ranks at the same point: creation is a collective call. `torch.distributed`
    must be initialised: it carries addresses and a secret once, and nothing after that. All ranks
    submit the same operations in the same order, and get identical bits.

    A failed rank ends the operations of all others with an error that names it: at once if it dies;
    when the difference shows if it runs other operations; when nothing has moved for `timeout_s` if
    it hangs or does not join. The group is unusable afterwards. Callbacks of futures may start
    operations of the group and wait for them, in an order that is the same on all ranks.
    Thread-safe.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float | None = None,
        listen_host: str | None = None,
        chunk_size_bytes: int = 512 << 10,
        algorithm: Algorithm | None = None,
        wire: torch.dtype | None = None,
        shares_memory: bool = True,
        streams: int = 1,
        transport: Transport = "tcp",
        rdma_devices: Sequence[str] = (),
        rdma_traffic_class: int = 0,
        rdma_service_level: int = 0,
    ) -> None:
        """Join the group.

        Args:
            process_group: the ranks; the default group if None.
            timeout_s: time limit for joining, and for an operation in progress in which nothing
                moves: longer than one rank alone may be busy, for example with an evaluation. By
                default that of the process group, 30 minutes unless it was set.
            listen_host: the address at which the other ranks can reach this machine. By default
                loopback if all ranks are on one machine, else the address that leads to
                MASTER_ADDR.
            chunk_size_bytes: the largest piece of the pipeline, 64 B to 8 MiB; the same on all
                ranks. Smaller arrays have smaller pieces.
            algorithm: for every array, the same on all ranks. By default the ranks measure their
                network first, and use the fastest algorithm for each size; set one if two runs must
                round alike.
            wire: torch.float16 or torch.bfloat16 sends float32 arrays in half the bytes. Sums are
                made in float32; each is rounded when it is forwarded, so the error of an average is
                at most 2**-11 (bfloat16: 2**-8) of the mean magnitude, times the ranks that it went
                through. Each chunk of float16 is scaled by a power of two of its own: nothing
                overflows, and only values below 2**-39 of the largest magnitude in their chunk may
                be lost. None sends arrays unchanged. The same on all ranks.
            shares_memory: ranks of one machine communicate through shared memory. If False, they
                use the transport of the others.
            streams: connections to each other rank over the network, 1 to 16; the same on all
                ranks. Each carries as much as it can: a slow one costs its share only. If one
                breaks, the others send its data and continue, and, over TCP, it is opened again.
            transport: "tcp" or "rdma", without fallback; the same on all ranks.
            rdma_devices: with "rdma", the devices, such as "mlx5_0", that the streams use in turn,
                in the same order on all ranks; by default the first usable one.
            rdma_traffic_class: with "rdma", of the IP header of sent packets: DSCP times 4.
            rdma_service_level: with "rdma", the priority in a VLAN tag, 0 to 15.

        Raises:
            ConnectionError: a rank could not join; the message names it. TimeoutError: not in time.
        """
        if not dist.is_initialized():
            raise RuntimeError(
                "a group of ranks needs torch.distributed:"
                " call torch.distributed.init_process_group()"
            )
        if wire not in _WIRES:
            raise ValueError(
                f"wire= sends arrays unchanged (None), as float16 or as bfloat16, not as {wire}"
            )
        self.process_group = process_group
        self.streams, self.chunk_size_bytes, self.wire = streams, chunk_size_bytes, wire
        rank, world_size = dist.get_rank(process_group), dist.get_world_size(process_group)
        self.world_size = world_size
        host = listen_host or own_address(process_group)
        engine, refusal = None, None
        try:
            engine = CollectiveEngine(
                rank=rank,
                world_size=world_size,
                listen_host=host,
                timeout_s=timeout_of(process_group) if timeout_s is None else timeout_s,
                chunk_size_bytes=chunk_size_bytes,
                algorithm=algorithm,
                wire=_WIRES[wire],
                shares_memory=shares_memory,
                streams=streams,
                transport=transport,
                rdma_devices=rdma_devices,
                rdma_traffic_class=rdma_traffic_class,
                rdma_service_level=rdma_service_level,
            )
        except (OSError, ValueError) as error:
            refusal = error  # The others wait for our address: tell them that there is none.
        addresses, secret = exchange(process_group, engine.address if engine else "")
        if refusal is not None:
            raise refusal
        if missing := [i for i, address in enumerate(addresses) if not address]:
            raise UnavailableError(f"ranks {missing} of the group could not open their listener")
        assert engine is not None
        engine.connect(addresses, secret)
        self._pump = Pump(engine)
        # Runs at close(), when the hook is collected, or at exit: whatever comes first.
        self._stop = weakref.finalize(self, self._pump.stop)

    def all_reduce(
        self, buffer: torch.Tensor, op: ReduceOp = "average", *, bucket: int = 0
    ) -> torch.futures.Future[torch.Tensor]:
        """Start to reduce `buffer` over the ranks in place; never blocks.

        Args:
            buffer: contiguous, in CPU memory, of the same size on all ranks; do not change it until
                the future is done.
            op: integers have no average, and only integers have "bit_and", "bit_or", "bit_xor".
            bucket: a number for `stats()`.

        Raises:
            TypeError: a tensor of that dtype or device cannot be reduced here.
            ConnectionError, TimeoutError: the group has failed before.
        """
        _check(buffer, op)
        return self._pump.submit(
            buffer, bucket, lambda engine, *array: engine.all_reduce(*array, op)
        )

    def reduce_scatter(
        self, buffer: torch.Tensor, op: ReduceOp = "average"
    ) -> torch.futures.Future[torch.Tensor]:
        """Start to reduce `buffer`; each rank gets its shard of the result. Like `all_reduce`.

        Args:
            buffer: its size is a multiple of the number of ranks. Rank r of n ends with the result
                in the r-th of n equal shards; the others are undefined.
            op: as for `all_reduce`.
        """
        _check(buffer, op)
        self._check_parts(buffer)
        return self._pump.submit(
            buffer, 0, lambda engine, *array: engine.reduce_scatter(*array, op)
        )

    def all_gather(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Start to gather `buffer` on all ranks; each rank contributes its own shard.

        Args:
            buffer: of any dtype; its size is a multiple of the number of ranks; rank r of n
                contributes the r-th of n equal shards.
        """
        check_place(buffer)
        _check_contiguous(buffer)
        self._check_parts(buffer)
        return self._pump.submit(
            as_bytes(buffer), 0, lambda engine, *array: engine.all_gather(*array), result=buffer
        )

    def _check_parts(self, buffer: torch.Tensor) -> None:
        if buffer.numel() % dist.get_world_size(self.process_group) != 0:
            raise ValueError(f"{buffer.numel()} elements are not a multiple of the number of ranks")

    def stats(self) -> Stats:
        """Counters since the start, and the times of the newest transfers."""
        return Stats(**self._pump.engine.stats(), transfers=self._pump.transfers())

    def transfers_since(self, ended_ns: int) -> list[Transfer]:
        """The transfers that ended later, in that order."""
        return self._pump.transfers_since(ended_ns)

    def events(self) -> list[Event]:
        """Events for operators: lost streams, and the reasons."""
        return [Event(at_ns, text) for at_ns, text in self._pump.engine.events()]

    def tune(
        self,
        *,
        chunk_size_bytes: int | None = None,
        algorithm: Algorithm | None = None,
        streams: int | None = None,
    ) -> None:
        """Change the settings of operations that are submitted from now on.

        All ranks make the same change between the same two operations; `Tuner` does so without a
        call.

        Args:
            chunk_size_bytes: the pipelined piece, at most that of the group; None: that of the
                group.
            algorithm: of all-reduces of 64 KiB and more; None: that of the group.
            streams: the largest number to use; None: all.

        Raises:
            ValueError: the group does not support these settings.
        """
        self._pump.engine.tune(
            chunk_size_bytes=chunk_size_bytes or 0, algorithm=algorithm, streams=streams or 0
        )

    def close(self) -> None:
        """Leave the group; pending operations fail. Idempotent."""
        self._stop()


def _check(buffer: torch.Tensor, op: ReduceOp) -> None:
    check_kind(buffer)
    check_op(buffer.dtype, op)
    _check_contiguous(buffer)


def _check_contiguous(buffer: torch.Tensor) -> None:
    if not buffer.is_contiguous():
        raise ValueError("a group takes contiguous tensors: call .contiguous() before")


def check_kind(tensor: torch.Tensor) -> None:
    """Reject a tensor that a group cannot reduce.

    Raises:
        TypeError: the tensor is not in CPU memory, or its dtype is not supported.
    """
    check_place(tensor)
    if tensor.dtype not in REDUCED:
        raise TypeError(f"{sorted(REDUCED.values())} can be reduced here, not {tensor.dtype}")


def check_op(dtype: torch.dtype, op: ReduceOp) -> None:
    """Reject an operation that numbers of that type do not have.

    Raises:
        TypeError: integers have no average here, and only integers have bits to combine.
    """
    if op == "average" and not dtype.is_floating_point:
        raise TypeError(f"{dtype} has no average here: sum and divide")
    if op.startswith("bit_") and dtype.is_floating_point:
        raise TypeError(f"{dtype} is not reduced bit by bit: only integers are")


def check_place(tensor: torch.Tensor) -> None:
    """Reject a tensor whose elements are not stored one after the other in CPU memory.

    Raises:
        TypeError: it is such a tensor.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise TypeError(
            f"expected a dense tensor in CPU memory, not {tensor.layout} on {tensor.device}:"
            " use this for models on the CPU, and another backend for others"
        )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor."""
    # One of a single element, or of none, is contiguous with any stride.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


# --- Meeting -------------------------------------------------------------------------------------


def timeout_of(group: dist.ProcessGroup | None) -> float:
    """The time limit of torch for an operation of the group, in seconds."""
    found = group or dist.group.WORLD
    try:
        # Not every backend has options.
        limit = found._get_backend(_device(group)).options._timeout  # type: ignore[union-attr]
    except (AttributeError, RuntimeError):
        limit = dist.distributed_c10d.default_pg_timeout
    return float(limit.total_seconds())


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """The device from which the group's backend takes tensors."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


def gather_bytes(group: dist.ProcessGroup | None, text: bytes, size: int) -> list[bytes]:
    """The texts of all ranks, in rank order; shorter ones are padded with zeros."""
    device = _device(group)
    own = torch.frombuffer(bytearray(text.ljust(size, b"\0")), dtype=torch.uint8).to(device)
    all_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_ranks, own, group=group)
    return [bytes(tensor.cpu().numpy()).rstrip(b"\0") for tensor in all_ranks]


def agree(group: dist.ProcessGroup | None, table: list[str], what: str) -> None:
    """Check that all ranks have the same table, one `what` per line; a collective call.

    Raises:
        ValueError: on every rank if any differs; the message names the first rank that differs from
        rank 0, and the first such line.
    """
    text = "\n".join(table).encode()
    # A digest and a size of each: who has another table has another digest, on whatever rank.
    summary = hashlib.sha256(text).digest() + len(text).to_bytes(8, "little")
    summaries = gather_bytes(group, b"=" + summary + b"=", len(summary) + 2)
    if len(set(summaries)) == 1:
        return
    size = max(int.from_bytes(each[-9:-1], "little") for each in summaries)
    tables = [each.decode().split("\n") for each in gather_bytes(group, text, max(size, 1))]
    rank = next(i for i, each in enumerate(tables) if each != tables[0])
    pairs = itertools.zip_longest(tables[0], tables[rank], fillvalue="nothing")
    number, (first, theirs) = next((i, pair) for i, pair in enumerate(pairs) if len(set(pair)) > 1)
    raise ValueError(
        f"the ranks differ in {what} {number}: rank 0 has {first or 'nothing'}, rank {rank} has"
        f" {theirs or 'nothing'}; all ranks must have the same in the same order"
    )


def own_address(group: dist.ProcessGroup | None) -> str:
    """The address by which the other ranks can reach this machine."""
    return address_among(gather_bytes(group, machine_identity(), 128))


def machine_identity() -> bytes:
    """Where the same loopback is: a machine since its boot, and a network namespace of it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}".encode()


def address_among(identities: list[bytes]) -> str:
    """The address by which ranks on these machines can reach this one."""
    if len(set(identities)) == 1:
        return "127.0.0.1"
    master = os.environ.get("MASTER_ADDR")
    if master is None:
        raise ValueError(
            "the ranks are on several machines and MASTER_ADDR is not set: pass listen_host"
        )
    family, kind, protocol, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # Sends nothing: it only asks the routing table.
        host: Any = probe.getsockname()[0]
    return str(host)


def exchange(group: dist.ProcessGroup | None, address: str) -> tuple[list[str], bytes]:
    """All ranks' addresses, and the secret that the first rank made. As tensors: no pickle."""
    addresses = gather_bytes(group, address.encode(), _ADDRESS_SIZE_MAX)
    secret = torch.frombuffer(bytearray(secrets.token_bytes(_SECRET_SIZE)), dtype=torch.uint8)
    secret = secret.to(_device(group))
    first = 0 if group is None else dist.get_global_rank(group, 0)
    dist.broadcast(secret, src=first, group=group)
    return [text.decode() for text in addresses], bytes(secret.cpu().numpy())
