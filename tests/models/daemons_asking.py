"""What all rules of the model of daemons share: the truth, who can answer, and every question."""

import contextlib
import itertools
import shutil
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

import ffrecord
from daemons_places import NODES, PREFIXES, STRANGERS, World, world
from daemons_reading import CLUSTER, Hosts, by_bytes, by_records, place_of, strangers
from daemons_truth import Content, Name, Place, Quota, State
from daemons_uploads import HeldUpload
from ffrecord import _ffrecord
from ffrecord.errors import ConflictError, DeadlineExceeded, UnavailableError

AWAY = (UnavailableError, DeadlineExceeded)
SURE_S, UNSURE_S = 30.0, 1.0  # How long a call may take that must succeed, or need not.
SERVING = ("drain", "full")  # Troubles in which a node answers all questions.
LISTS = st.sampled_from([*CLUSTER, ("alone",), ("alone",), ("other",)])
OF_CLUSTER = st.sampled_from(CLUSTER)
WHICH = st.integers(0, 9)
PREFIX_TURNS = itertools.count()
CONTENT_TURNS = itertools.count(1)


def is_calm(machine: "Asking") -> bool:
    """Whether nothing is wrong with the cluster."""
    return machine.world.trouble is None


class Asking(RuleBasedStateMachine):
    """The truth, and how it is compared."""

    SHRINKS = False
    STEPS = 14  # Each may wait for seconds, and a run ends with an example.

    def __init__(self) -> None:
        """Begin with prefixes that nobody has used."""
        super().__init__()
        warnings.simplefilter("ignore")
        self.world: World = world()
        self.folder = Path(tempfile.mkdtemp(prefix="ffrecord-model-"))
        turn = next(PREFIX_TURNS)
        self.prefix = f"x{turn}/"
        self.client = f"q{turn % PREFIXES}"  # Whose token has the quota's prefix.
        self.places = {
            kind: Place(Quota(f"{self.client}/")) for kind in ("cluster", "alone", "other")
        }
        self.readers: list[tuple[ffrecord.Reader, str, str, Content]] = []
        self.held: list[HeldUpload] = []
        self.journal: list[str] = []
        self.began = time.monotonic()
        self.may_restart = True  # Since the last restart, something has happened.

    def did(self, what: str) -> None:
        """Note what was done: what happens at real processes need not happen again."""
        self.journal.append(f"{time.monotonic() - self.began:8.3f} s {what}")

    def teardown(self) -> None:
        """Leave nothing."""
        if (error := sys.exc_info()[1]) is not None:
            error.journal = self.journal  # type: ignore[attr-defined]
        for reader, *_ in self.readers:
            reader.close()
        for upload in self.held:
            upload.kill()
        _ffrecord.stop_pacing()
        self.world.mend()
        with ThreadPoolExecutor(8) as pool:
            for kind in self.places:
                hosts: Hosts = NODES if kind == "cluster" else (kind,)
                for name in (each.name for each in self.listed(hosts, "")):
                    pool.submit(ffrecord.remove_published, self.address(hosts, name))
        shutil.rmtree(self.folder)

    def content(self, size: str) -> Content:
        """Return a file that nobody has published."""
        return Content(self.folder, next(CONTENT_TURNS), size)

    def full(self, name: str) -> str:
        """Return the name with the prefix of this example."""
        head, _, tail = name.partition("/")
        return f"{self.client}/{tail}" if head == "q" else f"{self.prefix}{name}"

    def address(self, hosts: Hosts, name: str, client: str = "any") -> str:
        """Return the address of a name, by its full name, at these daemons."""
        return self.world.address(hosts, name, client)

    def place(self, hosts: Hosts) -> Place:
        """Return the place that these addresses must stand for."""
        return self.places[place_of(hosts)]

    def usable(self, hosts: Hosts, instead: Hosts | None = None) -> Hosts:
        """Return these addresses, or others where it is not said whose they are now."""
        if instead is not None and place_of(hosts) != place_of(instead):
            hosts = instead
        if place_of(hosts) != "cluster":
            return hosts
        answering, foreign = self.answering(hosts)
        is_said = not foreign or (answering and 2 * foreign <= len(hosts))
        return hosts if is_said else NODES

    def answering(self, hosts: Hosts) -> tuple[list[str], int]:
        """Return the nodes that can do all that is asked, and how many strangers answer."""
        kind, node = self.world.trouble or ("", "")
        nodes = [each for each in hosts if each in NODES and (each != node or kind in SERVING)]
        return nodes, strangers(hosts) + (kind in STRANGERS and node in hosts)

    def is_sure(self, hosts: Hosts) -> bool:
        """Whether a call by these addresses must succeed."""
        if place_of(hosts) != "cluster":
            return True
        answering, foreign = self.answering(hosts)
        is_majority = not foreign or 2 * len(answering) > len(hosts)
        return not self.has_no_etcd() and bool(answering) and is_majority

    def is_calm(self, kind: str) -> bool:
        """Whether nothing is wrong with a place."""
        return kind != "cluster" or self.world.trouble is None

    def has_no_etcd(self) -> bool:
        """Whether names cannot be told or changed in the cluster."""
        return self.world.trouble is not None and self.world.trouble[1] == "etcd"

    def seconds(self, hosts: Hosts) -> float:
        """Return the time that a call may take."""
        return SURE_S if self.is_sure(hosts) else UNSURE_S

    def failed(self, hosts: Hosts, error: Exception, what: str) -> None:
        """Check that a call by these addresses may have failed."""
        sure = self.is_sure(hosts)
        self.did(f"{what} by {hosts}: {error!r}")
        assert not sure, f"{what} failed by {hosts} in {self.world.trouble}: {error!r}"

    def pick(self, hosts: Hosts, which: int) -> str | None:
        """Return one of the names of a place that may be there."""
        place = self.place(hosts)
        names = sorted(name for name, each in place.names.items() if each.possible != [None])
        return names[which % len(names)] if names else None

    def pick_settled(self, hosts: Hosts, which: int) -> tuple[str, Content | None]:
        """Return a name, and its content if it is there and known."""
        name = self.pick(hosts, which) or ""
        known = self.place(hosts).names.get(name, Name())
        return name, None if known.late else known.settled

    def ask_two(self, hosts: Hosts) -> None:
        """Ask daemons of two places: nobody can know which is meant."""
        try:
            found = self.listed(hosts, "")
        except ConflictError as error:
            for each in hosts:
                assert self.world.host(each) in str(error), f"{each} is not named: {error}"
        else:
            raise AssertionError(f"{hosts} are of two places, and list {found}")

    def listed(self, hosts: Hosts, name: str) -> list[Any]:
        """List the names of this example."""
        found: list[Any] = []
        for prefix in (self.prefix, f"{self.client}/"):
            address = self.address(hosts, prefix + name)
            found += ffrecord.list_published(address, timeout_s=self.seconds(hosts))
        return [each for each in found if "/run/" not in each.name and "/." not in each.name]

    def ask(self, hosts: Hosts) -> None:
        """List and read all names of a place, by these addresses."""
        place = self.place(hosts)
        try:
            found = {each.name: each.size_bytes for each in self.listed(hosts, "")}
        except (*AWAY, ConflictError) as error:
            return self.failed(hosts, error, "list")
        for name, known in place.names.items():
            sizes = [each.size_bytes if each else None for each in known.possible]
            told = f"list by {hosts} tells {found.get(name)} bytes of {name}, not {sizes}"
            assert found.get(name) in sizes, told
        assert found.keys() <= place.names.keys(), f"names that nobody gave: {found}"
        for name, known in place.names.items():
            has_gap = known.durability == "r1" and self.world.trouble is not None
            if not has_gap and not self.ask_one(hosts, name):
                break

    def ask_one(self, hosts: Hosts, name: str) -> bool:
        """Read one name; whether the others may be asked as well."""
        known = self.place(hosts).name(name)
        state: State
        try:
            data = by_records(self.address(hosts, name), self.seconds(hosts))
        except FileNotFoundError:
            state = None
        except (*AWAY, ConflictError) as error:
            self.failed(hosts, error, f"read of {name}")
            return False
        else:
            match = [each for each in known.possible if each and each.data == data]
            old = [each for each in known.ever if each and each.data == data]
            assert match, f"{name} by {hosts} is {old or 'foreign'}, not {known.possible}"
            state = match[0]
        assert state in known.possible, f"{name} by {hosts} is gone, not {known.possible}"
        known.saw(state)
        if state is not None and self.is_sure(hosts):
            with contextlib.suppress(FileNotFoundError):
                found = by_bytes(self.address(hosts, name), SURE_S)
                assert found == state.file or known.late, f"the file of {name} has other bytes"
        return True
