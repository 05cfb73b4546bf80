"""One rank of benchmarks/run overlap: reads orders, a JSON object a line, and answers each.

Usage: sharing.py HOST, with the variables of torch.distributed; HOST is this rank's own address.
A step is one collective, which is timed, and a sleep in the place of computing.
"""

import contextlib
import itertools
import json
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ffrecord
import ffrecord.checkpoint as ckpt
from ffrecord import runtime
from ffrecord.distributed import Group

SAVE_BYTES = 16 << 20
_BLOCK_ITEMS = 8192  # Items are float64: each block of a save differs from that of the save before.
_BEGUN_BYTES = 1 << 20
_LATE_S = 0.01


def sent_bytes() -> dict[str, int]:
    """Bytes that this rank has sent on each of its links."""
    cards = pathlib.Path("/sys/class/net").glob("eth*")
    return {card.name: int((card / "statistics/tx_bytes").read_text()) for card in cards}


def received_bytes() -> dict[str, int]:
    """Bytes that it has received."""
    cards = pathlib.Path("/sys/class/net").glob("eth*")
    return {card.name: int((card / "statistics/rx_bytes").read_text()) for card in cards}


class Saves:
    """A thread that saves checkpoints one after another."""

    steps = itertools.count(1)

    def __init__(self, target: str) -> None:
        """Save there, from the beginning of the block to its end."""
        self.target = target
        self.error: BaseException | None = None
        self._is_over = False
        self._state = np.zeros(SAVE_BYTES // 8)
        self._thread = threading.Thread(target=self._run, name="saves")

    def __enter__(self) -> "Saves":
        before = sum(sent_bytes().values())
        self._thread.start()
        while sum(sent_bytes().values()) - before < _BEGUN_BYTES and self._thread.is_alive():
            time.sleep(0.002)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._is_over:
                step = next(self.steps)
                self._state[::_BLOCK_ITEMS] = step
                ckpt.save(self.target, step, {"state": self._state}, group="alone")
            ckpt.prune(self.target, keep_last=1)
        except BaseException as error:  # Raised where the thread is joined.
            self.error = error


class Reads:
    """A loader's prefetch: a thread that reads batches ahead, and a step that takes one each."""

    def __init__(self, dataset: str, batch: int) -> None:
        """Read batches of so many records."""
        self._records = ffrecord.open(dataset)
        self._batch = batch
        self._ready = threading.Semaphore(0)
        self._room = threading.Semaphore(4)
        self._is_over = False
        self.stalls = 0
        self._thread = threading.Thread(target=self._run, name="reads")

    def __enter__(self) -> "Reads":
        self._thread.start()
        return self

    def take(self) -> None:
        """The next batch; a stall if it is not there."""
        if not self._ready.acquire(blocking=False):
            self.stalls += 1
            self._ready.acquire()
        self._room.release()

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._room.release()
        self._thread.join()

    def _run(self) -> None:
        count = len(self._records)
        for first in itertools.count(0, self._batch):
            self._room.acquire()
            if self._is_over:
                return
            self._records.read([(first + i) % count for i in range(self._batch)])
            self._ready.release()


class Collectives:
    """The kinds of collectives: each all-reduces a tensor."""

    def __init__(self, host: str) -> None:
        """Join; `host` is this rank's own address."""
        self.group = Group(listen_host=host)
        self.attached: runtime.Attachment | None = None

    def start(self, kind: str, tensor: torch.Tensor) -> Any:  # noqa: ANN401 - waits in two ways
        """Begin."""
        if kind == "ours":
            return self.group.all_reduce(tensor, "sum")
        return dist.all_reduce(tensor, async_op=True)


def disturbed(number: int, operation: Any) -> None:  # noqa: ANN401
    """Signals as they should not be, beside those of a collective that goes on."""
    if number % 3 == 0:  # Late.
        runtime.phase_end("collective")
        time.sleep(_LATE_S)
        runtime.phase_begin("collective", 0)
    elif number % 3 == 1:  # Lost. The end that follows is one too many.
        runtime.phase_end("collective")
    operation.wait()
    if number % 3 == 2:  # False: nothing follows, and no end for some time.
        runtime.phase_begin("collective", 1 << 20)


def steps(
    collectives: Collectives, order: dict[str, Any], count: int, reads: Reads | None
) -> dict[str, list[float]]:
    """The seconds of each step, and of its collective."""
    tensor = torch.ones(order["size_bytes"] // 4)
    found: dict[str, list[float]] = {"bursts_s": [], "steps_s": []}
    for number in range(count):
        began = time.perf_counter()
        if reads is not None:
            reads.take()
        start = time.perf_counter()
        if order["kind"] is None:
            time.sleep(order["burst_s"])
        else:
            tensor.fill_(1)
            operation = collectives.start(order["kind"], tensor)
            if order["disturbs"]:
                disturbed(number, operation)
            else:
                operation.wait()
        found["bursts_s"].append(time.perf_counter() - start)
        runtime.step_end()
        time.sleep(order["compute_s"])
        found["steps_s"].append(time.perf_counter() - began)
    return found


@contextlib.contextmanager
def paced(collectives: Collectives, options: dict[str, Any] | None) -> Iterator[None]:
    """Pace as ordered; Gloo's collectives signal by their hooks."""
    if options is None:
        yield
        return
    runtime.start_pacing(**options)
    try:
        with runtime.attach(dist.group.WORLD):
            yield
    finally:
        runtime.stop_pacing()


def answered(collectives: Collectives, order: dict[str, Any]) -> dict[str, Any]:
    """Run the steps of an order, with storage beside them."""
    with contextlib.ExitStack() as stack:
        if order["profiles"]:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(ffrecord.profile(folder, show=False))
        if order["saves"]:
            stack.enter_context(Saves(order["saves"]))
        reads = (
            stack.enter_context(Reads(order["reads"], order["batch"])) if order["reads"] else None
        )
        # Left first: what is under way at the end is not held.
        stack.enter_context(paced(collectives, order["pacing"]))
        dist.barrier()
        steps(collectives, order, order["warm_up"], reads)
        stalls = reads.stalls if reads else 0
        sent, received, began = sent_bytes(), received_bytes(), time.perf_counter()
        found: dict[str, Any] = steps(collectives, order, order["steps"], reads)
        found["window_s"] = time.perf_counter() - began
        for name, before, after in (
            ("sent", sent, sent_bytes()),
            ("received", received, received_bytes()),
        ):
            found[name] = {card: after[card] - before[card] for card in before}
        found["stalls"] = (reads.stalls if reads else 0) - stalls
        found["counters"] = runtime.pacing_counters()
    return found


def publish(order: dict[str, Any]) -> dict[str, Any]:
    """Publish a dataset of random records, by rank 0."""
    if dist.get_rank() == 0:
        chance = np.random.default_rng(1)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "records.ffr")
            with ffrecord.Writer(file) as writer:
                for _ in range(order["count"]):
                    writer.write(chance.bytes(order["size_bytes"]))
            ffrecord.publish(file, order["publishes"])
    return {}


def main() -> None:
    """Join the groups; answer until the orders end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    collectives = Collectives(sys.argv[1])
    target = f"runs/{dist.get_rank()}"
    for line in sys.stdin:
        order = json.loads(line)
        if "publishes" in order:
            answer = publish(order)
        else:
            if order["saves"]:
                order["saves"] += f"/{target}?transport=tcp"
            answer = answered(collectives, order)
        print(json.dumps(answer), flush=True)
    collectives.group.close()


if __name__ == "__main__":
    main()
