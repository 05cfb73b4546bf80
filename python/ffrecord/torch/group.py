"""Ranks that reduce tensors in CPU memory together, by the library's own collectives."""

import collections
import dataclasses
import hashlib
import itertools
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from ffrecord._ffrecord import CollectiveEngine
from ffrecord.closing import Closing
from ffrecord.errors import UnavailableError

# What the engine calls a dtype.
_DTYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
}
Transport = Literal["tcp", "rdma"]
ReduceOp = Literal["sum", "average", "min", "max"]
Algorithm = Literal["ring", "halving_doubling", "recursive_doubling", "double_tree", "hierarchical"]
# What float32 arrays are sent as.
_WIRES = {None: "exact", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_ADDRESS_SIZE_MAX = 256
_SECRET_SIZE = 16
# Enough for the timeline of some hundred steps; older ones are dropped.
_TRANSFERS_MAX = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """One bucket's way through the group. Times are `time.monotonic_ns()`."""

    bucket: int
    size_bytes: int
    submitted_ns: int
    """Backward had filled the bucket."""
    began_ns: int
    """Its turn came: buckets go one after another."""
    ended_ns: int
    ok: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened in a group."""

    at_ns: int
    """`time.monotonic_ns()`."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Stats:
    """What a hook has done so far."""

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


@dataclasses.dataclass(slots=True)
class _Pending:
    future: torch.futures.Future[torch.Tensor]
    buffer: torch.Tensor  # Kept alive: the engine writes to its memory.
    bucket: int
    submitted_ns: int


class _Pump:
    """Completes the futures of an engine's operations, in a thread of its own.

    Holds no reference to the Group, so that one that is dropped is collected, and stopped.
    """

    def __init__(self, engine: CollectiveEngine) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        self.pending: dict[int, _Pending] = {}
        self.transfers: collections.deque[Transfer] = collections.deque(maxlen=_TRANSFERS_MAX)
        self.owner = os.getpid()
        self.thread = threading.Thread(target=self.run, name="ffrecord-pump", daemon=True)
        self.thread.start()

    def submit(
        self, buffer: torch.Tensor, bucket: int, start: Callable[[int, int, str], int]
    ) -> torch.futures.Future[torch.Tensor]:
        """`start` gives the buffer's address, count and dtype to the engine."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        now = time.monotonic_ns()
        # The lock, for the pump may see the end before we have noted the beginning.
        with self.lock:
            token = start(buffer.data_ptr(), buffer.numel(), _DTYPES[buffer.dtype])
            self.pending[token] = _Pending(future, buffer, bucket, now)
        return future

    def run(self) -> None:
        while True:
            try:
                ended = self.engine.wait_any(3600.0)  # Without the GIL.
            except UnavailableError:
                return  # Shut down, and every end was seen.
            if ended is None:
                continue
            token, error, began_ns, ended_ns = ended
            with self.lock:
                pending = self.pending.pop(token)
                self.transfers.append(
                    Transfer(
                        bucket=pending.bucket,
                        size_bytes=pending.buffer.numel() * pending.buffer.element_size(),
                        submitted_ns=pending.submitted_ns,
                        began_ns=began_ns,
                        ended_ns=ended_ns,
                        ok=error is None,
                    )
                )
            if error is None:
                pending.future.set_result(pending.buffer)
            else:
                pending.future.set_exception(error)  # type: ignore[arg-type]

    def stop(self) -> None:
        if os.getpid() != self.owner:
            return  # A forked child has neither the thread nor the connections.
        self.engine.shutdown()
        self.thread.join()


class Group(Closing):
    """One rank's place in a group of all ranks of a process group; a context manager.

    Create it on all ranks at the same point, for it is a collective act. `torch.distributed` must
    be initialised: it carries addresses and a secret once, then nothing more of ours. All ranks
    submit the same operations in the same order, and get identical bits.

    A rank that dies, hangs or differs ends the operations of all others within `timeout_s` with an
    error that names the rank; the group is of no use afterwards. Thread-safe.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 60.0,
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
            timeout_s: for joining, and for each operation once its turn has come.
            listen_host: the address of this machine that the other ranks reach. By default loopback
                if all ranks are on one machine, else the address that leads to MASTER_ADDR.
            chunk_size_bytes: the largest piece that is pipelined, 64 B to 8 MiB; the same on all
                ranks. Of smaller arrays the pieces are smaller.
            algorithm: how every array goes, the same on all ranks. By default the ranks measure
                their network first, and each array goes by what is quickest for its size; give one
                if two runs have to round alike.
            wire: torch.float16 or torch.bfloat16 sends float32 arrays in half of the bytes. Sums
                are made in float32; each is rounded when it is sent on, so the error of an average
                is at most 2**-11 (bfloat16: 2**-8) of the mean magnitude, times the ranks that it
                went through. Each chunk of float16 is scaled by a power of two of its own: nothing
                overflows, and only what is below 2**-39 of the largest magnitude in its chunk may
                be lost. None sends all as it is. The same on all ranks.
            shares_memory: ranks of one machine speak through shared memory. Off, they use the
                transport of the others.
            streams: connections to each other rank over the network, 1 to 16; the same on all
                ranks. Each carries as much as it can: a slow one costs its share only, and when one
                breaks the others go on with what it had, and, over TCP, it is made anew.
            transport: "tcp" or "rdma", which no other takes the place of; the same on all ranks.
            rdma_devices: with "rdma", the devices such as "mlx5_0" that the streams go by in turn,
                in the same order on all ranks; by default the first that can be used.
            rdma_traffic_class: with "rdma", of the IP header of what is sent: DSCP times 4.
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
                f"arrays are sent as they are, as float16 or as bfloat16, not as {wire}"
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
                timeout_s=timeout_s,
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
        self._pump = _Pump(engine)
        # Runs at close(), when the hook is collected, or at exit: whatever comes first.
        self._stop = weakref.finalize(self, self._pump.stop)

    def all_reduce(
        self, buffer: torch.Tensor, op: ReduceOp = "average", *, bucket: int = 0
    ) -> torch.futures.Future[torch.Tensor]:
        """Start to reduce `buffer` over the ranks in place; never blocks.

        Args:
            buffer: contiguous, in CPU memory, of the same size on all ranks; left alone until the
                future is done.
            op: integers have no average.
            bucket: a number for `stats()`.

        Raises:
            TypeError: the tensor's dtype or device is none that can be reduced here.
            ConnectionError, TimeoutError: the group has failed before.
        """
        _check(buffer, op)
        engine = self._pump.engine
        return self._pump.submit(
            buffer,
            bucket,
            lambda address, count, dtype: engine.all_reduce(address, count, dtype, op),
        )

    def reduce_scatter(
        self, buffer: torch.Tensor, op: ReduceOp = "average"
    ) -> torch.futures.Future[torch.Tensor]:
        """Start to reduce `buffer`, each rank its part; as `all_reduce`.

        Args:
            buffer: its size is a multiple of the number of ranks. Rank r of n ends with the result
                in the r-th of n equal parts; the others are undefined.
            op: integers have no average.
        """
        _check(buffer, op)
        self._check_parts(buffer)
        engine = self._pump.engine
        return self._pump.submit(
            buffer,
            0,
            lambda address, count, dtype: engine.reduce_scatter(address, count, dtype, op),
        )

    def all_gather(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Start to give all ranks all parts of `buffer`, of which each brings its own.

        Args:
            buffer: its size is a multiple of the number of ranks; rank r of n brings the r-th of n
                equal parts.
        """
        _check(buffer, "sum")
        self._check_parts(buffer)
        return self._pump.submit(buffer, 0, self._pump.engine.all_gather)

    def _check_parts(self, buffer: torch.Tensor) -> None:
        if buffer.numel() % dist.get_world_size(self.process_group) != 0:
            raise ValueError(f"{buffer.numel()} elements are not a multiple of the number of ranks")

    def stats(self) -> Stats:
        """Counters since the start, and the times of the newest transfers."""
        with self._pump.lock:
            transfers = list(self._pump.transfers)
        return Stats(**self._pump.engine.stats(), transfers=transfers)

    def transfers_since(self, ended_ns: int) -> list[Transfer]:
        """Those that ended later, in that order."""
        newer: list[Transfer] = []
        with self._pump.lock:
            for transfer in reversed(self._pump.transfers):
                if transfer.ended_ns <= ended_ns:
                    break
                newer.append(transfer)
        return newer[::-1]

    def events(self) -> list[Event]:
        """What has happened that a person should know of: streams that were lost, and why."""
        return [Event(at_ns, text) for at_ns, text in self._pump.engine.events()]

    def tune(
        self,
        *,
        chunk_size_bytes: int | None = None,
        algorithm: Algorithm | None = None,
        streams: int | None = None,
    ) -> None:
        """Change what operations go by that are submitted from now on.

        All ranks make the same change between the same two operations; `Tuner` does so by itself.

        Args:
            chunk_size_bytes: the pipelined piece, at most that of the group; None: that.
            algorithm: of all-reduces of 64 KiB and more; None: as the group was made.
            streams: at most so many are used; None: all.

        Raises:
            ValueError: the group cannot go by that.
        """
        self._pump.engine.tune(
            chunk_size_bytes=chunk_size_bytes or 0, algorithm=algorithm, streams=streams or 0
        )

    def close(self) -> None:
        """Leave the group; what is pending fails. Idempotent."""
        self._stop()


def _check(buffer: torch.Tensor, op: ReduceOp) -> None:
    check_kind(buffer)
    if op == "average" and not buffer.dtype.is_floating_point:
        raise TypeError(f"{buffer.dtype} has no average here: sum and divide")
    if not buffer.is_contiguous():
        raise ValueError("contiguous tensors are reduced here: call .contiguous() before")


def check_kind(tensor: torch.Tensor) -> None:
    """Refuse what a group cannot reduce.

    Raises:
        TypeError: the tensor is not in CPU memory, or its dtype is none of ours.
    """
    if tensor.device.type != "cpu":
        raise TypeError(
            f"tensors in CPU memory are reduced here, not on {tensor.device}: use this for models"
            " on the CPU, and leave others to their own backend"
        )
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"{sorted(_DTYPES.values())} are reduced here, not {tensor.dtype}")


# --- Meeting -------------------------------------------------------------------------------------


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's backend takes tensors from."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


def gather_bytes(group: dist.ProcessGroup | None, text: bytes, size: int) -> list[bytes]:
    """The texts of all ranks, in rank order; shorter ones are filled up with zeros."""
    device = _device(group)
    own = torch.frombuffer(bytearray(text.ljust(size, b"\0")), dtype=torch.uint8).to(device)
    all_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_ranks, own, group=group)
    return [bytes(tensor.cpu().numpy()).rstrip(b"\0") for tensor in all_ranks]


def agree(group: dist.ProcessGroup | None, table: list[str], what: str) -> None:
    """Check that all ranks have the same table, a `what` a line; a collective act.

    Raises:
        ValueError: on every rank if any differs; the message names the first rank that differs from
        rank 0, and the first line.
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
    """The address by which the other ranks reach this machine."""
    return address_among(gather_bytes(group, machine_identity(), 128))


def machine_identity() -> bytes:
    """Where the same loopback is: a machine that was booted once, and a network namespace of it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}".encode()


def address_among(identities: list[bytes]) -> str:
    """The address by which ranks of these machines reach this one."""
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
