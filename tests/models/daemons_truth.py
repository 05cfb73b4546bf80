"""The truth of the model of daemons: what each name holds, and what counts against a quota."""

import dataclasses
import time
from pathlib import Path

import numpy as np

import ffrecord

SIZES = {"small": 100, "medium": 2_000, "large": 6_000}  # Bytes of a record.
RECORDS = 16
# After which an upload that was given up need not count any more.
PENDING_S = 100.0


class Content:
    """A file with records that no other has."""

    def __init__(self, folder: Path, number: int, size: str) -> None:
        """Write the file."""
        self.number = number
        self.path = folder / f"{number}.ffr"
        random = np.random.default_rng(number)
        with ffrecord.Writer(self.path, {"number": "i64", "body": "bytes"}) as writer:
            for _ in range(RECORDS):
                writer.write({"number": number, "body": random.bytes(SIZES[size] + number % 97)})
        self.file = self.path.read_bytes()
        with ffrecord.open(self.path) as local:
            self.data = bytes(local.read(range(RECORDS)).data)

    def __repr__(self) -> str:
        """Say which it is."""
        return f"content {self.number}"

    @property
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return len(self.file)


State = Content | None  # None: there is no such name.


@dataclasses.dataclass
class Name:
    """What a name may hold: what was acknowledged last, and what may still take effect."""

    settled: State = None
    late: list[State] = dataclasses.field(default_factory=list)  # Of calls without an answer.
    ever: list[State] = dataclasses.field(default_factory=lambda: [None])
    durability: str = "replicas"

    @property
    def possible(self) -> list[State]:
        """Return the states that an answer may show."""
        return [self.settled, *self.late]

    def acknowledge(self, state: State) -> None:
        """Take the effect of a call that has succeeded; nothing of before can follow it."""
        self.settled = state
        self.late = []
        self.ever.append(state)

    def may_become(self, state: State) -> None:
        """Take note of a call of which it is not known whether it has had its effect."""
        self.late.append(state)
        self.ever.append(state)

    def saw(self, state: State) -> None:
        """Take what a daemon has shown: it does not go back from there."""
        if state is not self.settled:
            self.settled = state
            self.late = [each for each in self.late if each is not state]


@dataclasses.dataclass
class Versions:
    """The versions of a name, in the order of their publication; tags; names used up."""

    there: dict[str, Content] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    removed: set[str] = dataclasses.field(default_factory=set)

    def remove(self, version: str) -> None:
        """Take note of a removal."""
        del self.there[version]
        self.removed.add(version)
        self.tags = {tag: of for tag, of in self.tags.items() if of != version}


@dataclasses.dataclass
class Pending:
    """An upload that was not published: counts until it has been silent for long."""

    size_bytes: int
    since: float = dataclasses.field(default_factory=time.monotonic)
    is_certain: bool = True


class Quota:
    """What counts against the quota of a prefix, at least and at most."""

    def __init__(self, prefix: str) -> None:
        """Begin without anything."""
        self.prefix = prefix
        self.pending: list[Pending] = []

    def note(self, size_bytes: int, *, is_certain: bool) -> None:
        """An upload was given up; `is_certain`: the daemons had heard of all of it."""
        self.pending.append(Pending(size_bytes, is_certain=is_certain))

    def pending_bytes(self) -> tuple[int, int]:
        """Return bounds for the bytes of uploads that were not published."""
        now = time.monotonic()
        least = sum(
            each.size_bytes
            for each in self.pending
            if each.is_certain and now - each.since < PENDING_S
        )
        return least, sum(each.size_bytes for each in self.pending)

    def published_bytes(self, names: dict[str, Name], but: str) -> tuple[int, int]:
        """Return bounds for the bytes of all names below the prefix but one."""
        least = most = 0
        for name, known in names.items():
            if name == but or not name.startswith(self.prefix):
                continue
            sizes = [each.size_bytes if each else 0 for each in known.possible]
            least, most = least + min(sizes), most + max(sizes)
        return least, most


class Place:
    """The names of a cluster or a daemon by itself, and the checkpoints of one run."""

    def __init__(self, quota: Quota) -> None:
        """Begin empty."""
        self.names: dict[str, Name] = {}
        self.versions: dict[str, Versions] = {}
        self.quota = quota
        self.steps: dict[int, float] = {}
        self.late_steps: set[int] = set()  # Of saves without an answer,
        self.left_steps: set[int] = set()  # and those that a prune without one may have removed.

    def name(self, name: str) -> Name:
        """Return what is known of a name."""
        return self.names.setdefault(name, Name())
