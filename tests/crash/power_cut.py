"""Replays what a power cut may leave of a recorded run.

A program is traced with strace; its changes to one folder become a list of operations on files and
folders. At any cut, what a finished fsync covers is there; each later operation is there, is not,
or, if it is a write, is there up to some sector. That is more than file systems do: most keep the
order of changes to names.
"""

import dataclasses
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

SECTOR = 512
TRACED = (
    "openat,mkdir,mkdirat,pwrite64,write,fallocate,ftruncate,fsync,fdatasync,linkat,rename,"
    "renameat,renameat2,unlink,unlinkat,io_uring_setup"
)
CALL = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)(.*)$")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclasses.dataclass(eq=False)
class Node:
    """A file or folder of the traced run."""

    is_folder: bool
    label: str  # The first name it had, for people.


@dataclasses.dataclass(frozen=True)
class Change:
    """One change: of a file's bytes or size, or of a folder's names."""

    node: Node
    kind: str  # "write", "size" (at least), "cut" (to a size), "link", "unlink" or "rename"
    offset: int = 0
    content: bytes = b""
    name: str = ""
    to: str = ""
    child: Node | None = None


@dataclasses.dataclass(frozen=True)
class Sync:
    """A finished fsync or fdatasync."""

    node: Node


@dataclasses.dataclass(frozen=True)
class Promise:
    """The program has said that what it did is durable."""


Event = Change | Sync | Promise


def record(
    command: list[str], folder: Path, trace: Path, existing: tuple[str, ...] = ()
) -> tuple[Node, list[Event]]:
    """Runs `command` and returns `folder` and what was done below it. io_uring is refused to it.

    The `existing` files of the folder may be changed in place: making them comes first of what was
    done, all of it synced (`made_before` events).
    """
    parser = _Parser(folder, existing)
    options = ["-f", "-qq", "-y", "-xx", "-s", "4000000", "-o", str(trace)]
    refuse = ["-e", f"trace={TRACED}", "-e", "inject=io_uring_setup:error=ENOSYS"]
    subprocess.run(["strace", *options, *refuse, *command], check=True, stdout=subprocess.DEVNULL)
    return parser.parse(trace.read_text())


def made_before(existing: tuple[str, ...]) -> int:
    """How many events of a record are the making of the existing files."""
    return 4 * len(existing)


class _Parser:
    def __init__(self, folder: Path, existing: tuple[str, ...] = ()) -> None:
        self.root = Node(True, folder.name)
        self.nodes: dict[str, Node] = {str(folder): self.root}  # By path.
        self.fds: dict[int, Node | None] = {}
        self.marks: set[Node] = set()  # Files that had a name before they had bytes.
        self.events: list[Event] = []
        for name in existing:
            node = Node(False, name)
            self._link(str(folder / name), node)
            content = (folder / name).read_bytes()
            self.events += [Change(node, "write", 0, content), Sync(node), Sync(self.root)]

    def parse(self, text: str) -> tuple[Node, list[Event]]:
        for line in _whole_calls(text):
            match = CALL.match(line)
            if not match or int(match[4]) < 0:
                continue
            strings = [_decode(found) for found in STRING.findall(match[3])]
            handler = getattr(self, f"_{match[2]}", None)
            if handler is not None:
                handler(match[3], strings, int(match[4]))
        return self.root, self.events

    def _openat(self, arguments: str, strings: list[bytes], fd: int) -> None:
        path = strings[0].decode()
        if "O_TMPFILE" in arguments:
            inside = self._fd_of(arguments) is not None or path in self.nodes
            self.fds[fd] = Node(False, "unnamed") if inside else None
        elif path.startswith("/proc/self/fd/"):
            self.fds[fd] = self.fds.get(int(path.rsplit("/", 1)[1]))
        elif "O_CREAT" in arguments and path.rsplit("/", 1)[0] in self.nodes:
            # A mark is whole from the beginning: its name is all that it says.
            self.marks.add(mark := Node(False, path.rsplit("/", 1)[1]))
            self._link(path, mark)
            self.fds[fd] = mark
        else:
            self.fds[fd] = self.nodes.get(path)

    def _mkdir(self, _: str, strings: list[bytes], __: int) -> None:
        self._link(strings[0].decode(), Node(True, strings[0].decode().rsplit("/", 1)[1]))

    def _linkat(self, arguments: str, strings: list[bytes], _: int) -> None:
        node = self.fds[int(strings[0].decode().rsplit("/", 1)[1])]
        folder = _decode(re.findall(r"\d+<((?:\\x[0-9a-f]{2})*)>", arguments)[-1]).decode()
        name = strings[1].decode()
        if node is not None:
            node.label = name.rsplit("/", 1)[-1]
            self._link(name if name.startswith("/") else f"{folder}/{name}", node)

    def _link(self, path: str, node: Node) -> None:
        parent, name = path.rsplit("/", 1)
        if parent in self.nodes:
            self.nodes[path] = node
            self.events.append(Change(self.nodes[parent], "link", name=name, child=node))

    def _rename(self, _: str, strings: list[bytes], __: int) -> None:
        old, new = strings[0].decode(), strings[1].decode()
        (old_parent, old_name), (new_parent, new_name) = old.rsplit("/", 1), new.rsplit("/", 1)
        if old_parent not in self.nodes or new_parent not in self.nodes:
            return
        if old_parent == new_parent:
            parent = self.nodes[old_parent]
            self.events.append(Change(parent, "rename", name=old_name, to=new_name))
        else:
            self._link(new, self.nodes[old])
            self.events.append(Change(self.nodes[old_parent], "unlink", name=old_name))
        moved = {p: n for p, n in self.nodes.items() if p == old or p.startswith(old + "/")}
        for path, node in moved.items():
            del self.nodes[path]
            self.nodes[new + path[len(old) :]] = node

    _renameat = _renameat2 = _rename
    _mkdirat = _mkdir

    def _pwrite64(self, arguments: str, strings: list[bytes], written: int) -> None:
        node = self._fd_of(arguments)
        if node is not None:
            assert node not in self.marks, f"{node.label}: a file is unnamed until it is whole"
            offset = int(arguments.rsplit(", ", 1)[1])
            self.events.append(Change(node, "write", offset, strings[0][:written]))

    def _fallocate(self, arguments: str, _: list[bytes], __: int) -> None:
        offset, size = map(int, arguments.rsplit(", ", 2)[1:])
        self._size(arguments, offset + size)

    def _ftruncate(self, arguments: str, _: list[bytes], __: int) -> None:
        self._size(arguments, int(arguments.rsplit(", ", 1)[1]), "cut")

    def _size(self, arguments: str, size: int, kind: str = "size") -> None:
        node = self._fd_of(arguments)
        if node is not None:
            assert node not in self.marks, f"{node.label}: a file is unnamed until it is whole"
            self.events.append(Change(node, kind, size))

    def _fsync(self, arguments: str, _: list[bytes], __: int) -> None:
        node = self._fd_of(arguments)
        if node is not None:
            self.events.append(Sync(node))

    _fdatasync = _fsync

    def _write(self, arguments: str, strings: list[bytes], _: int) -> None:
        assert self._fd_of(arguments) is None, "files are expected to be written with pwrite"
        if arguments.startswith("1<") and strings[0].startswith(b"committed"):
            self.events.append(Promise())

    def _fd_of(self, arguments: str) -> Node | None:
        match = re.match(r"\d+", arguments)
        return self.fds.get(int(match[0])) if match else None


def _decode(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _whole_calls(text: str) -> Iterator[str]:
    """Lines of strace, those that were cut in two by another thread put together."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>").rstrip()
        elif match := re.match(r"^\d+ +<\.\.\. \w+ resumed>(.*)$", line):
            yield begun.pop(pid) + match[1]
        else:
            yield line


# --- States --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class State:
    """What is on the disk after a cut."""

    changes: list[Change]
    promise_count: int
    description: str

    @property
    def is_promised(self) -> bool:
        """Whether anything was said to be durable."""
        return self.promise_count > 0


def states(
    events: list[Event], chance: random.Random, randoms: int, first_cut: int = 0
) -> Iterator[State]:
    """At each cut: nothing unsynced, all of it, all but one, only one, and random choices."""
    for cut in range(first_cut, len(events) + 1):
        past = events[:cut]
        promised = sum(isinstance(event, Promise) for event in past)
        optional = [
            i
            for i, event in enumerate(past)
            if isinstance(event, Change)
            and not any(isinstance(s, Sync) and s.node is event.node for s in past[i:])
        ]
        each = {frozenset(), frozenset(optional)}
        each |= {frozenset(optional) - {i} for i in optional} | {frozenset({i}) for i in optional}
        # Twice the same choice is not twice the same state: writes are torn anew.
        some = [frozenset(i for i in optional if chance.random() < 0.5) for _ in range(randoms)]
        for kept in [*each, *some]:
            yield _state(past, set(optional), kept, promised, chance)


def _state(
    past: list[Event], optional: set[int], kept: frozenset[int], promised: int,
    chance: random.Random,
) -> State:  # fmt: skip
    changes = []
    for i, event in enumerate(past):
        if not isinstance(event, Change) or (i in optional and i not in kept):
            continue
        if i in optional and event.kind == "write" and chance.random() < 0.3:
            sectors = chance.randrange(len(event.content) // SECTOR + 1)
            event = dataclasses.replace(event, content=event.content[: sectors * SECTOR])
        changes.append(event)
    return State(
        changes, promised, f"cut at {len(past)}, kept {sorted(kept)} of {sorted(optional)}"
    )


def materialise(root: Node, state: State, into: Path) -> None:
    """Makes the folder as it would be found; what was there before is put in by the caller."""
    names: dict[Node, dict[str, Node]] = {}
    contents: dict[Node, bytearray] = {}
    for change in state.changes:
        if change.node.is_folder:
            _rename_in(names.setdefault(change.node, {}), change)
            continue
        content = contents.setdefault(change.node, bytearray())
        end = change.offset + len(change.content)
        content.extend(bytes(max(0, end - len(content))))
        if change.kind == "write":
            content[change.offset : end] = change.content
        elif change.kind == "cut":
            del content[change.offset :]
    _write_folder(root, names, contents, into)


def _rename_in(entries: dict[str, Node], change: Change) -> None:
    if change.kind == "link" and change.child is not None:
        entries[change.name] = change.child
    elif change.name in entries:
        node = entries.pop(change.name)
        if change.kind == "rename":
            entries[change.to] = node


def _write_folder(
    node: Node, names: dict[Node, dict[str, Node]], contents: dict[Node, bytearray], into: Path
) -> None:
    into.mkdir(exist_ok=True)
    for name, child in names.get(node, {}).items():
        if child.is_folder:
            _write_folder(child, names, contents, into / name)
        else:
            (into / name).write_bytes(contents.get(child, b""))
