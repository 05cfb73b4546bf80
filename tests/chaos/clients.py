"""The clients of the chaos test: processes that read or publish until they are told to stop.

What they wanted and got they write down, one JSON object a line; whether that was right the test
decides. A batch that is wrong ends the process at once: nothing excuses it.
"""

import hashlib
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

RECORDS = 400
# A call may end this much after its timeout of 4 s: the machine is shared.
SLACK_S = 4.0


def record(seed: int, number: int) -> bytes:
    """Record `number` of the dataset `seed`: the same bytes wherever they are made."""
    key = f"{seed}/{number}".encode()
    size = int.from_bytes(hashlib.sha256(key).digest()[:2], "little") % 12_000
    return hashlib.shake_128(key).digest(size)


class Journal:
    """What this client says."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def say(self, **facts: object) -> None:
        """Write one line down."""
        with self.path.open("a") as file:
            file.write(json.dumps(facts) + "\n")


def attempt(journal: Journal, timeout_s: float, call: Callable[[], object]) -> BaseException | None:
    """Run one call: it must end in its time, well or with an error of those that are documented."""
    begin = time.monotonic()
    failure: BaseException | None = None
    try:
        call()
    except (ConnectionError, TimeoutError, OSError) as error:
        failure = error
    took_s = time.monotonic() - begin
    if took_s > timeout_s + SLACK_S:
        journal.say(late=took_s, error=str(failure))
    return failure


def read(journal: Journal, address: str, seed: int, timeout_s: float, stop: Path) -> None:
    """Random batches, each compared byte for byte."""
    import ffrecord

    choose = random.Random(seed)
    truth = [record(0, number) for number in range(RECORDS)]
    dataset = ffrecord.open(address, timeout_s=timeout_s)
    good = failed = 0

    def one_batch() -> None:
        indices = [choose.randrange(RECORDS) for _ in range(64)]
        batch = dataset.read(indices)
        for place, number in enumerate(indices):
            if bytes(batch[place]) != truth[number]:
                journal.say(wrong=number)
                sys.exit("a record is wrong")

    while not stop.exists():
        if attempt(journal, timeout_s, one_batch) is None:
            good += 1
        else:
            failed += 1
            time.sleep(0.05)  # A daemon that was never reached is given up at once.
    # All is well again: so must we be.
    final = attempt(journal, timeout_s, one_batch)
    journal.say(good=good, failed=failed, final=None if final is None else str(final))


def publish(journal: Journal, address: str, seed: int, timeout_s: float, stop: Path) -> None:
    """Small datasets under names of their own; each outcome is written down before the next."""
    import ffrecord

    path = stop.parent / f"publish-{seed}.ffr"
    host, _, query = address.partition("/base")
    for number in range(1_000_000):
        if stop.exists():
            return
        data = seed * 1_000_000 + number
        path.unlink(missing_ok=True)
        with ffrecord.Writer(path) as writer:
            for i in range(5):
                writer.write(record(data, i))
        name = f"p{seed}/{number}"
        failure = attempt(
            journal,
            timeout_s,
            lambda name=name: ffrecord.publish(path, f"{host}/{name}{query}", timeout_s=timeout_s),
        )
        journal.say(name=name, data=data, error=None if failure is None else str(failure))
        time.sleep(0.1)


if __name__ == "__main__":
    _, role, journal_path, address, seed, timeout_s, stop = sys.argv
    {"read": read, "publish": publish}[role](
        Journal(journal_path), address, int(seed), float(timeout_s), Path(stop)
    )
