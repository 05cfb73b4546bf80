"""Model of a daemon that joins a cluster, goes back, and joins for good.

Goal: what the daemon has acknowledged it has whenever it is by itself, and what the cluster has
acknowledged the cluster has whenever the daemon is a node of it, however often it goes there and
back, is killed on its way, loses etcd, or has its metadata taken away under it. Method: one real
daemon, which is all nodes of its cluster, and etcd; each extent has one replica.
"""

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import ffrecord
from adoption_histories import DATASET, RUN, Histories, step_of
from cli import ok
from daemon import Daemon, program
from daemons_places import LEASE_S, SETTLE_S
from daemons_reading import by_records
from daemons_truth import RECORDS, Content, Name, State, Versions
from daemons_uploads import HeldUpload
from ffrecord import catalogue
from ffrecord._cli.admin import fetch_cluster
from ffrecord._cli.local_cluster import LocalCluster, Node
from ffrecord.errors import ConflictError

NAMES = st.sampled_from(["a", "b", "c"])
STEP = st.integers(1, 6)
VERSION = st.sampled_from(["1.0", "1.1", "2.0"])
TAG = st.sampled_from(["best", "old"])
METADATA = ("metadata.sqlite", "metadata.sqlite-wal")
END = st.sampled_from([signal.SIGTERM, signal.SIGKILL])
# From the start of a daemon that adopts until it is killed.
ON_ITS_WAY_S = st.sampled_from([0.05, 0.2, 0.5, 1.0])
COLLECT_S = 3.0  # Until what the daemon does not want any more is gone.


class Joining(LocalCluster):
    """A cluster of one node, which adopts its own names or has done so."""

    adopts = True

    def _node_command(self, node: Node, program: str) -> list[str]:
        return [*super()._node_command(node, program), *(["--adopt"] if self.adopts else [])]


def until(is_so: Callable[[], bool], what: str) -> None:
    """Return once it is."""
    end = time.monotonic() + SETTLE_S
    while True:
        with contextlib.suppress(OSError):
            if is_so():
                return
        assert time.monotonic() < end, f"{what}: not within {SETTLE_S} s"
        time.sleep(0.02)


class Adoption(RuleBasedStateMachine):
    """Rules are calls of clients and what operators do; `names` says what must be read."""

    SHRINKS = False  # Another program takes another time.
    STEPS = 15

    def __init__(self) -> None:
        """Start the daemon by itself."""
        super().__init__()
        self.journal: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="ffrecord-model-"))
        self.cluster = Joining(self.folder / "c", 1, 1, lease_s=LEASE_S, program=program())
        self.node = self.cluster.nodes[0]
        self.data = self.cluster.folder / self.node.name
        self.data.mkdir(parents=True)
        self.alone = Daemon(self.data, "--upload-grace-s", "1")
        self.alone.listen = self.node.listen
        self.is_alone = True
        self.alone.start()
        self.cluster.start("etcd")
        # Of the daemon by itself, and of the cluster.
        self.names: dict[bool, dict[str, Name]] = {True: {}, False: {}}
        self.taken: set[tuple[str, int]] = set()
        self.histories = Histories()
        self.upload: tuple[str, Content, HeldUpload] | None = None
        self.count = 0

    def teardown(self) -> None:
        """End all processes."""
        if self.upload:
            self.upload[2].kill()
        self.alone.__exit__() if self.is_alone else None
        self.cluster.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    # What clients do.

    def did(self, what: str) -> None:
        """Note it for the report of a failure."""
        self.journal.append(what)

    def content(self) -> Content:
        """Return one that is new."""
        self.count += 1
        return Content(self.folder, self.count, "small")

    def address(self, name: str) -> str:
        """Return the address of a name, at whatever the daemon is now."""
        return f"ffrecord://{self.node.listen}/{name}"

    def known(self, name: str) -> Name:
        """Return what is known of a name, to whatever the daemon is now."""
        return self.names[self.is_alone].setdefault(name, Name())

    @rule(name=NAMES, replace=st.booleans())
    def publish(self, name: str, replace: bool) -> None:
        """Publish or replace a name."""
        known, content = self.known(name), self.content()
        self.did(f"publish {name} {content} {replace=}")
        try:
            ffrecord.publish(content.path, self.address(name), replace=replace)
        except ConflictError:
            assert known.settled and not replace, f"{name} is not there"
        else:
            assert replace or not known.settled, f"{name} was there"
            known.acknowledge(content)
        self.check()

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        """Remove a name, unless the daemon would then publish another one of its own there."""
        if name in self.conflicts():
            return
        known = self.known(name)
        self.did(f"remove {name}")
        try:
            ffrecord.remove_published(self.address(name))
        except FileNotFoundError:
            assert known.settled is None, f"{name} was not found"
        else:
            assert known.settled, f"{name} was there again"
            known.acknowledge(None)
        self.check()

    @rule(number=STEP)
    def save(self, number: int) -> None:
        """Save a step of a run."""
        name, content = step_of(RUN, number), self.content()
        self.did(f"save {name} {content}")
        is_there = name in self.histories.names[self.is_alone]
        try:
            ffrecord.publish(content.path, self.address(name))
        except ConflictError:
            assert is_there, f"{name} is not there"
        else:
            assert not is_there, f"{name} was there"
            self.histories.add(self.is_alone, name, content)
        self.check()

    @precondition(lambda self: not self.histories.waiting())
    @rule(number=STEP)
    def remove_step(self, number: int) -> None:
        """Remove a step, unless the daemon's run would then be taken for the cluster's."""
        name = step_of(RUN, number)
        self.did(f"remove {name}")
        is_there = name in self.histories.names[self.is_alone]
        try:
            ffrecord.remove_published(self.address(name))
        except FileNotFoundError:
            assert not is_there, f"{name} was not found"
        else:
            assert is_there, f"{name} was there again"
            del self.histories.names[self.is_alone][name]
        self.check()

    @rule(version=VERSION)
    def publish_version(self, version: str) -> None:
        """Publish a version of a dataset."""
        content = self.content()
        known = self.histories.versions(self.is_alone)
        is_new = version not in known.there and version not in known.removed
        self.did(f"publish {DATASET}@{version} {content}")
        try:
            catalogue.publish(content.path, self.address(DATASET), version)
        except ConflictError as error:
            assert not is_new, repr(error)
        else:
            assert is_new, f"{version} was published again"
            self.histories.add_version(self.is_alone, version, content)
        self.check()

    @rule(version=VERSION, tag=TAG)
    def tag_version(self, version: str, tag: str) -> None:
        """Let a tag stand for a version."""
        known = self.histories.versions(self.is_alone)
        self.did(f"tag {DATASET}@{version} {tag}")
        try:
            catalogue.tag(self.address(f"{DATASET}@{version}"), tag)
        except FileNotFoundError:
            assert version not in known.there, f"{version} is gone"
        else:
            assert version in known.there, f"{version} was not there"
            if known.tags.get(tag) != version:
                known.tags[tag] = version
                self.histories.set_versions(self.is_alone, known)
        self.check()

    @rule(version=VERSION)
    def remove_version(self, version: str) -> None:
        """Remove a version; its name is not used again."""
        known = self.histories.versions(self.is_alone)
        self.did(f"remove {DATASET}@{version}")
        try:
            catalogue.remove(self.address(f"{DATASET}@{version}"))
        except FileNotFoundError:
            assert version not in known.there, f"{version} is gone"
        else:
            assert version in known.there, f"{version} was there again"
            self.histories.remove_version(self.is_alone, version)
        self.check()

    @precondition(lambda self: self.upload is None)
    @rule(name=NAMES)
    def begin(self, name: str) -> None:
        """Send what is to be published later."""
        content = self.content()
        self.did(f"begin {name} {content}")
        held = HeldUpload(content, self.address(name))
        assert held.errno == 0, held.error
        self.upload = (name, content, held)

    @precondition(lambda self: self.upload is not None)
    @rule()
    def end(self) -> None:
        """Publish it, at whatever the daemon is by now; it may have been given up."""
        assert self.upload
        name, content, held = self.upload
        self.upload = None
        self.did(f"end {name} {content}")
        self.known(name).may_become(content)
        held.finish()
        self.check()

    # What operators do.

    def conflicts(self) -> set[str]:
        """Return names of the daemon that the cluster has otherwise."""
        return {
            name
            for name, known in self.names[True].items()
            if known.settled
            and (name, known.settled.number) not in self.taken
            and self.names[False].setdefault(name, Name()).settled
        }

    def facts(self) -> dict[str, Any]:
        """Return what the node says of itself."""
        return fetch_cluster(self.node.admin, 5.0)

    def is_settled(self) -> bool:
        """Whether all that can be adopted is."""
        facts = self.facts()
        has_slots = any(each["slots"] > 0 for each in facts["nodes"])
        own = self.conflicts() | self.histories.waiting()
        waiting = len(own) if self.cluster.adopts else 0
        return has_slots and facts["leased"] and facts["adopting"] == waiting

    def take_up(self) -> None:
        """The cluster has what it lacked of the daemon's names."""
        for name, known in self.names[True].items():
            own, there = known.settled, self.names[False].setdefault(name, Name())
            if own and (name, own.number) not in self.taken and there.settled is None:
                self.taken.add((name, own.number))
                there.acknowledge(own)
        self.histories.take_up()

    def stop(self, number: int) -> None:
        """End the daemon."""
        self.alone.stop(number) if self.is_alone else self.cluster.stop(self.node.name, number)

    def start(self) -> None:
        """Start it as what it is, and wait until it is that."""
        if self.is_alone:
            self.alone.start()
            return
        self.cluster.start(self.node.name)
        until(self.is_settled, "the daemon is a node")
        if self.cluster.adopts:
            self.take_up()

    @rule(number=END)
    def restart(self, number: int) -> None:
        """Stop or kill it, and start it again."""
        self.did(f"restart {number}")
        self.stop(number)
        self.start()
        self.check()

    @precondition(lambda self: self.is_alone)
    @rule(number=END, killed_s=st.none() | ON_ITS_WAY_S)
    def join(self, number: int, killed_s: float | None) -> None:
        """Begin to adopt; be killed on the way."""
        self.did(f"join {number} {killed_s}")
        self.stop(number)
        self.is_alone = False
        if killed_s is not None:
            self.cluster.start(self.node.name)
            time.sleep(killed_s)
            self.cluster.stop(self.node.name, signal.SIGKILL)
        self.start()
        self.check()

    @precondition(lambda self: not self.is_alone and self.cluster.adopts)
    @rule(number=END, name=NAMES, replaces=st.booleans(), stays=st.booleans())
    def go_back(self, number: int, name: str, replaces: bool, stays: bool) -> None:
        """Be by itself again, change a name, and let go what is not wanted."""
        self.did(f"go back {number}")
        self.stop(number)
        self.is_alone = True
        self.start()
        self.check()
        self.publish(name, replace=True) if replaces else self.remove(name)
        before = len(self.alone.log)
        end = time.monotonic() + COLLECT_S
        while not any("event=collected" in line for line in self.alone.log[before:]):
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        if not stays:
            self.join(number, None)

    def may_stay(self) -> bool:
        """Whether the cluster has all names of the daemon."""
        waits = self.conflicts() or self.histories.waiting()
        return not self.is_alone and self.cluster.adopts and not waits

    @precondition(may_stay)
    @rule(number=END)
    def stay(self, number: int) -> None:
        """Be a node for good."""
        self.did(f"stay {number}")
        self.stop(number)
        self.cluster.adopts = False
        self.names[True] = {}
        self.histories.names[True] = {}
        self.start()
        self.check()

    @precondition(lambda self: not self.is_alone)
    @rule()
    def lose_etcd(self) -> None:
        """Have all metadata brought back from the node's disk."""
        self.did("lose etcd")
        self.cluster.stop("etcd", signal.SIGKILL)
        shutil.rmtree(self.cluster.folder / "etcd")
        self.cluster.start("etcd")
        until(lambda: "knows no such" in self.facts()["trouble"], "the loss is noticed")
        ok("ffrecord", "cluster", "rebuild", self.address(""))
        ok("ffrecord", "cluster", "confirm", self.address(""), "--yes")
        until(lambda: not self.facts()["frozen"] and self.is_settled(), "the metadata is trusted")
        self.check()

    @precondition(lambda self: self.is_alone)
    @rule(which=st.sampled_from(METADATA), name=NAMES, replaces=st.booleans())
    def meddle(self, which: str, name: str, replaces: bool) -> None:
        """Take the metadata away under the daemon; then do as the error says."""
        self.did(f"meddle {which} {replaces=}")
        path = self.data / which
        other = shutil.copy(path, self.folder / "other")
        path.unlink()
        if replaces:
            shutil.move(other, path)
        self.check()
        try:
            ffrecord.publish(self.content().path, self.address(name), replace=True)
        except OSError as error:
            assert "under the running daemon" in str(error), error
        else:
            raise AssertionError(f"{name} was acknowledged, and will be gone")
        self.check()
        self.stop(signal.SIGKILL)
        for each in METADATA:
            (self.data / each).unlink(missing_ok=True)
        (self.data / "metadata.sqlite.rescued").rename(self.data / "metadata.sqlite")
        self.start()
        self.check()

    # What must be so.

    def check(self) -> None:
        """Read all names, and list them."""
        for name, known in self.names[self.is_alone].items():
            found = self.read(name, known)
            assert found in known.possible, (
                f"{name} is {found}, and was {known.possible}"
                f" {'by itself' if self.is_alone else 'in the cluster'}: {self.journal}"
            )
            known.settled, known.late = found, []  # No call is under way.
        listed = {each.name for each in ffrecord.list_published(self.address(""))}
        wanted = {name for name, known in self.names[self.is_alone].items() if known.settled}
        wanted |= self.histories.names[self.is_alone].keys()
        assert listed == wanted, f"{listed} are listed, and {wanted} are there: {self.journal}"

        self.check_histories()

    def check_histories(self) -> None:
        """Read all steps, and all versions."""
        names, contents = self.histories.names[self.is_alone], self.histories.contents
        for name in self.histories.steps(self.is_alone, RUN):
            content, data = contents[names[name]], by_records(self.address(name), 20)
            assert isinstance(content, Content)
            assert data == content.data, f"{name} has other bytes: {self.journal}"
        known, found = self.histories.versions(self.is_alone), Versions()
        with contextlib.suppress(FileNotFoundError):
            listed = catalogue.versions(self.address(DATASET))
            found.tags = listed.tags
            for each in listed.versions:
                data = by_records(self.address(f"{DATASET}@{each.version}"), 20)
                content = known.there.get(each.version)
                assert content and data == content.data, f"{each.version}: {self.journal}"
                found.there[each.version] = content
        assert list(found.there) == list(known.there), f"{found} is not {known}: {self.journal}"
        assert found.tags == known.tags, f"{found} is not {known}: {self.journal}"

    def read(self, name: str, known: Name) -> State:
        """Return what is there."""
        try:
            with ffrecord.open(self.address(name), timeout_s=20) as served:
                data = bytes(served.read(range(RECORDS)).data)
        except FileNotFoundError as error:
            assert "every replica" not in str(error), f"{name}: {error}: {self.journal}"
            return None
        return next(each for each in known.ever if each and each.data == data)


MODEL = Adoption
