"""Model of daemons and clusters: names, their bytes and their quotas are the truth.

Goal: what was acknowledged is read back equal at every address, or an error says why not; nobody
gets an older state, a stranger's data, or more room than the quota, and nobody is refused what
fits; damage that a reader meets is healed and counted. Method: a cluster of three nodes, another
cluster and a daemon by itself, as real processes; publish, upload, remove, list and read by every
list of addresses, while nodes and etcd are stopped, killed, frozen, cut off and replaced.
"""

import contextlib
import errno
import itertools
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import ffrecord
import ffrecord.checkpoint as ckpt
from daemons_places import NODES, PREFIXES, QUOTA_BYTES, World, world
from daemons_reading import CLUSTER, Hosts, by_bytes, by_records, damage, heal, place_of, strangers
from daemons_truth import RECORDS, Content, Name, Place, Quota, State
from daemons_uploads import HeldUpload
from ffrecord.errors import ConflictError, CorruptionError, DeadlineExceeded, UnavailableError

AWAY = (UnavailableError, DeadlineExceeded)
SURE_S, UNSURE_S = 30.0, 1.0  # How long a call may take that must succeed, or need not.
LISTS = st.sampled_from([*CLUSTER, ("alone",), ("alone",), ("other",)])
OF_CLUSTER = st.sampled_from(CLUSTER)
AMBIGUOUS = st.sampled_from([("n1", "alone"), ("other", "n2"), ("alone", "other")])
NAMES = st.sampled_from(["d/a", "d/b", "q/a", "q/b", "q/c"])
OF_QUOTA = st.sampled_from(["q/a", "q/b", "q/c"])
WHICH = st.integers(0, 9)
SIZE = st.sampled_from(["small", "medium", "large"])
CLASSES = st.sampled_from(["replicas", "replicas", "r1", "r2", "ec:2+1"])
NODE = st.sampled_from(NODES)
TROUBLE = st.sampled_from(["stop", "stop", "kill", "freeze", "cut", "wipe", "drain", "stranger"])
PREFIX_TURNS = itertools.count()
CONTENT_TURNS = itertools.count(1)


def is_calm(machine: "Daemons") -> bool:
    """Whether nothing is wrong with the cluster."""
    return machine.world.trouble is None


class Daemons(RuleBasedStateMachine):
    """Rules are calls of clients and accidents; `places` says what must be read."""

    def __init__(self) -> None:
        """Begin with prefixes that nobody has used."""
        super().__init__()
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

    def teardown(self) -> None:
        """Leave nothing."""
        for reader, *_ in self.readers:
            reader.close()
        for upload in self.held:
            upload.kill()
        self.world.mend()
        with ThreadPoolExecutor(8) as pool:
            for kind in self.places:
                hosts: Hosts = NODES if kind == "cluster" else (kind,)
                for name in (each.name for each in self.listed(hosts, "")):
                    pool.submit(ffrecord.remove_published, self.address(hosts, name))
        shutil.rmtree(self.folder)

    # What the rules share.

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
        return hosts if answering or not foreign else NODES

    def answering(self, hosts: Hosts) -> tuple[list[str], int]:
        """Return the nodes that can do all that is asked, and how many strangers answer."""
        kind, node = self.world.trouble or ("", "")
        nodes = [each for each in hosts if each in NODES and (each != node or kind == "drain")]
        return nodes, strangers(hosts) + (kind == "stranger" and node in hosts)

    def is_sure(self, hosts: Hosts) -> bool:
        """Whether a call by these addresses must succeed."""
        if place_of(hosts) != "cluster":
            return True
        answering, foreign = self.answering(hosts)
        is_majority = not foreign or 2 * len(answering) > len(hosts)
        return not self.has_no_etcd() and bool(answering) and is_majority

    def has_no_etcd(self) -> bool:
        """Whether names cannot be told or changed in the cluster."""
        return self.world.trouble is not None and self.world.trouble[1] == "etcd"

    def seconds(self, hosts: Hosts) -> float:
        """Return the time that a call may take."""
        return SURE_S if self.is_sure(hosts) else UNSURE_S

    def failed(self, hosts: Hosts, error: Exception, what: str) -> None:
        """Check that a call by these addresses may have failed."""
        sure = self.is_sure(hosts)
        assert not sure, f"{what} failed by {hosts} in {self.world.trouble}: {error!r}"

    # Publishing and removing.

    @rule(hosts=LISTS, name=NAMES, size=SIZE, durability=CLASSES, replace=st.booleans(), by=LISTS)
    def publish(
        self, hosts: Hosts, name: str, size: str, durability: str, replace: bool, by: Hosts
    ) -> None:
        """Publish or replace a name, and look at it by other addresses."""
        hosts = self.usable(hosts)
        if place_of(hosts) != "cluster" or (self.world.trouble and durability == "r1"):
            durability = "replicas"
        name, content = self.full(name), self.content(size)
        self.publish_one(hosts, name, content, durability, replace=replace)
        self.ask(self.usable(by, hosts))

    @rule(hosts=LISTS, name=OF_QUOTA, size=SIZE, replace=st.booleans())
    def publish_bound(self, hosts: Hosts, name: str, size: str, replace: bool) -> None:
        """Publish as a client whose token has the prefix of the quota."""
        hosts, content = self.usable(hosts), self.content(size)
        self.publish_one(
            hosts, self.full(name), content, "replicas", replace=replace, client=self.client
        )
        self.ask(hosts)

    def publish_one(
        self,
        hosts: Hosts,
        name: str,
        content: Content,
        durability: str,
        *,
        replace: bool,
        client: str = "any",
    ) -> None:
        """Publish, and compare the answer with the truth."""
        place = self.place(hosts)
        known = place.name(name)
        least, most = self.room(place, name, client)
        try:
            ffrecord.publish(
                content.path,
                self.address(hosts, name, client),
                replace=replace,
                durability=durability,
                timeout_s=self.seconds(hosts),
            )
        except ConflictError as error:
            if "exists already" not in str(error):  # Two clusters, and neither has most.
                return self.failed(hosts, error, "publish")
            assert not replace, f"replace met {error}"
            assert known.possible != [None], f"{name} is not there: {error}"
            if None in known.possible:
                known.late = [each for each in known.possible if each is not None]
                known.settled = known.late.pop()
        except AWAY as error:
            self.failed(hosts, error, "publish")
            known.may_become(content)
            place.quota.note(content.size_bytes, is_certain=False)
        except OSError as error:
            if error.errno != errno.EDQUOT:
                raise
            assert content.size_bytes > least, f"{name} fits ({least} bytes are left): {error}"
        else:
            assert content.size_bytes <= most, f"{name} passes the quota: {most} bytes were left"
            assert replace or None in known.possible, f"{name} was there and is replaced"
            assert (
                self.world.trouble is None
                or self.world.trouble[1] != "etcd"
                or (place_of(hosts) != "cluster")
            ), f"{name} is published without etcd"
            known.acknowledge(content)
            known.durability = durability

    def room(self, place: Place, name: str, client: str) -> tuple[int, int]:
        """Return the bytes that must at least and may at most be taken for a name."""
        if not name.startswith(place.quota.prefix):
            return 1 << 40, 1 << 40
        published = place.quota.published_bytes(place.names, name)
        least, most = (QUOTA_BYTES - each for each in reversed(published))
        if client != "any":
            pending = place.quota.pending_bytes()
            least = min(least, QUOTA_BYTES - pending[1])
            most = min(most, QUOTA_BYTES - pending[0])
        return least, most

    @rule(hosts=LISTS, which=WHICH, by=LISTS)
    def remove(self, hosts: Hosts, which: int, by: Hosts) -> None:
        """Remove a name; it does not come back."""
        hosts = self.usable(hosts)
        if (name := self.pick(hosts, which)) is None:
            return
        known = self.place(hosts).name(name)
        try:
            ffrecord.remove_published(self.address(hosts, name), timeout_s=self.seconds(hosts))
        except FileNotFoundError:
            assert None in known.possible, f"{name} is there and was not found"
            known.saw(None)
        except (*AWAY, ConflictError) as error:
            self.failed(hosts, error, "remove")
            known.may_become(None)
        else:
            known.acknowledge(None)
        self.ask(self.usable(by, hosts))

    @precondition(is_calm)
    @rule(hosts=LISTS, names=st.lists(NAMES, min_size=2, max_size=3), size=SIZE)
    def publish_at_once(self, hosts: Hosts, names: list[str], size: str) -> None:
        """Publish names, or one of them twice, at the same time: room is given out once."""
        place, contents = self.place(hosts), [self.content(size) for _ in names]
        names = [self.full(name) for name in names]
        results: list[Any] = [None] * len(names)
        start = threading.Barrier(len(names))

        def run(i: int) -> None:
            start.wait()
            address = self.address(hosts, names[i])
            try:
                ffrecord.publish(contents[i].path, address, timeout_s=SURE_S)
            except OSError as error:  # For the rule to judge.
                results[i] = error

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(names))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.judge(place, names, contents, results)
        self.ask(hosts)

    def judge(
        self, place: Place, names: list[str], contents: list[Content], results: list[Any]
    ) -> None:
        """Compare the answers to publications at the same time with the truth."""
        in_quota = [each.startswith(place.quota.prefix) for each in names]
        wanted = sum(
            each.size_bytes for each, is_in in zip(contents, in_quota, strict=True) if is_in
        )
        for name, content, result in zip(names, contents, results, strict=True):
            known = place.name(name)
            if result is None:
                assert known.settled is None, f"{name} was published twice"
                known.acknowledge(content)
            elif isinstance(result, ConflictError):
                assert known.settled is not None or names.count(name) > 1, f"{name}: {result}"
            elif getattr(result, "errno", 0) == errno.EDQUOT:
                least, _ = self.room(place, name, "any")
                assert wanted > least, f"{name} fits ({least} bytes are left): {result}"
            else:
                raise result
        used = sum(
            each.settled.size_bytes
            for name, each in place.names.items()
            if each.settled and name.startswith(place.quota.prefix)
        )
        assert used <= QUOTA_BYTES, f"the quota has {QUOTA_BYTES} bytes, and {used} are published"

    # Uploads that do not end.

    @precondition(is_calm)
    @rule(hosts=LISTS, size=SIZE, bound=st.booleans(), kill=st.booleans())
    def upload(self, hosts: Hosts, size: str, bound: bool, kill: bool) -> None:
        """Upload and do not publish; the process is killed, or goes on waiting."""
        place, content = self.place(hosts), self.content(size)
        client = self.client if bound else "any"
        name = f"{self.client}/upload"
        least, most = self.room(place, name, client)
        upload = HeldUpload(content, self.address(hosts, name, client))
        if upload.errno == 0:
            assert content.size_bytes <= most, f"{content} is uploaded: {most} bytes were left"
        else:
            assert upload.errno == errno.EDQUOT, f"errno {upload.errno}: {upload.error}"
            assert content.size_bytes > least, f"{least} bytes are left: {upload.error}"
        if upload.errno == 0 and bound:
            place.quota.note(content.size_bytes, is_certain=True)
        if kill:
            upload.kill()
        else:
            self.held.append(upload)
        self.ask(hosts)

    @precondition(lambda self: self.held)
    @rule()
    def kill_uploads(self) -> None:
        """Kill those that wait."""
        while self.held:
            self.held.pop().kill()

    # Trouble.

    @precondition(is_calm)
    @rule(kind=TROUBLE, node=NODE, by=OF_CLUSTER)
    def trouble(self, kind: str, node: str, by: Hosts) -> None:
        """Something happens to a node, until it is mended."""
        if kind == "wipe":
            self.world.await_filled()
            for name, each in self.places["cluster"].names.items():
                if each.durability == "r1":
                    self.remove_sure(name)
        self.world.trouble_node(kind, node)
        self.ask(self.usable(by))

    def remove_sure(self, name: str) -> None:
        """Remove a name of the cluster, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            ffrecord.remove_published(self.address(NODES, name))
        self.places["cluster"].name(name).acknowledge(None)

    @precondition(is_calm)
    @rule(kind=st.sampled_from(["kill", "freeze", "cut"]), by=OF_CLUSTER)
    def trouble_of_etcd(self, kind: str, by: Hosts) -> None:
        """Etcd is gone, until it is mended."""
        self.world.trouble_etcd(kind)
        self.ask(self.usable(by))

    @precondition(lambda self: self.world.trouble is not None)
    @rule(by=OF_CLUSTER)
    def mend(self, by: Hosts) -> None:
        """All is well again."""
        self.world.mend()
        self.ask(by)

    @rule(how=st.sampled_from(["stop", "kill", "freeze"]))
    def restart_alone(self, how: str) -> None:
        """The daemon by itself is stopped and started again, or does nothing for a moment."""
        daemon = self.world.alone
        if how == "freeze":
            daemon.freeze()
            thawing = threading.Timer(0.3, daemon.thaw)
            thawing.start()
            self.ask(("alone",))
            thawing.join()
        else:
            daemon.kill() if how == "kill" else daemon.stop()
            daemon.start()
        self.ask(("alone",))

    # Damage.

    @precondition(is_calm)
    @rule(which=WHICH, restart=st.booleans(), by=OF_CLUSTER)
    def damage_in_cluster(self, which: int, restart: bool, by: Hosts) -> None:
        """Damage a replica or a member of a stripe: readers get the right bytes, and it heals."""
        name, content = self.pick_settled(NODES, which)
        if content is None or self.places["cluster"].name(name).durability == "r1":
            return
        self.world.await_filled()
        found = self.world.extents("cluster", content.file)
        assert found, f"no node has an extent of {name}"
        node, path = found[which % len(found)]
        damage(path, content.size_bytes)
        if restart:
            self.world.cluster.stop(node)
            self.world.cluster.start(node)
            self.world.cluster.wait_ready()
        heal(self.world, node, path, content, self.address(by, name))
        self.ask(by)

    @rule(which=WHICH, restart=st.booleans())
    def damage_alone(self, which: int, restart: bool) -> None:
        """Damage what a daemon by itself has: an error says so; published again it is whole."""
        hosts = ("alone",)
        name, content = self.pick_settled(hosts, which)
        if content is None:
            return
        (_, path) = self.world.extents("alone", content.file)[0]
        damage(path, content.size_bytes)
        if restart:
            self.world.alone.stop()
            self.world.alone.start()
        try:
            by_records(self.address(hosts, name), SURE_S)
        except CorruptionError:
            pass
        else:
            raise AssertionError(f"{name} is damaged, and is read")
        self.publish_one(hosts, name, self.content("small"), "replicas", replace=True)
        self.ask(hosts)

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

    # Checkpoints.

    @rule(hosts=LISTS, by=LISTS)
    def save(self, hosts: Hosts, by: Hosts) -> None:
        """Save the next step, and ask for the latest by other addresses."""
        hosts = self.usable(hosts)
        place = self.place(hosts)
        step = max([*place.steps, *place.late_steps], default=0) + 1
        number = float(next(CONTENT_TURNS))
        run = self.address(hosts, f"{self.prefix}run")
        state = {"w": np.full(1000, number)}
        try:
            ckpt.save(run, step, state, group="alone", timeout_s=self.seconds(hosts))
        except (*AWAY, ConflictError) as error:
            self.failed(hosts, error, "save")
            place.late_steps.add(step)
        else:
            place.steps[step] = number
        self.ask_latest(self.usable(by, hosts))

    def ask_latest(self, hosts: Hosts) -> None:
        """Ask which step is the latest, and load it."""
        place = self.place(hosts)
        run = self.address(hosts, f"{self.prefix}run")
        try:
            latest = ckpt.latest(run, timeout_s=self.seconds(hosts))
        except (*AWAY, ConflictError) as error:
            return self.failed(hosts, error, "latest")
        newest = max(place.steps, default=None)
        if latest is not None and latest.step in place.late_steps:
            return
        found = latest.step if latest else None
        assert found == newest, f"latest by {hosts} is {found}, not {newest}"
        if newest is not None and self.is_sure(hosts):
            loaded: Any = ckpt.load(run, step=newest, timeout_s=SURE_S)
            assert np.all(loaded["w"] == place.steps[newest]), f"step {newest} has other values"

    # Questions.

    @rule(hosts=LISTS, which=WHICH)
    def open(self, hosts: Hosts, which: int) -> None:
        """Open a name, and keep the reader."""
        hosts = self.usable(hosts)
        name, content = self.pick_settled(hosts, which)
        if content is not None and self.is_sure(hosts):
            reader = ffrecord.open(self.address(hosts, name), timeout_s=SURE_S)
            self.readers.append((reader, place_of(hosts), name, content))

    @precondition(lambda self: self.readers)
    @rule(which=WHICH)
    def read_on(self, which: int) -> None:
        """Read by a reader that was opened before: the same bytes, whatever was published since."""
        reader, kind, name, content = self.readers[which % len(self.readers)]
        try:
            data = bytes(reader.read(range(RECORDS)).data)
        except (FileNotFoundError, *AWAY, CorruptionError) as error:
            is_there = self.places[kind].name(name).possible == [content]
            assert not is_there, f"{name} is there, and its reader gets {error!r}"
            assert kind != "cluster" or not isinstance(error, CorruptionError), repr(error)
        else:
            assert data == content.data, f"a reader of {content} gets other bytes"

    @precondition(lambda self: self.world.trouble in (("kill", "etcd"), ("cut", "etcd")))
    @rule(hosts=OF_CLUSTER, name=NAMES)
    def accept_old_names(self, hosts: Hosts, name: str) -> None:
        """Read what was known last, by choice, while etcd is gone."""
        name = self.full(name)
        known = self.places["cluster"].name(name)
        try:
            found = by_records(self.address(hosts, name) + "&old_names=accept", SURE_S)
        except FileNotFoundError:
            assert None in known.ever, f"{name} was there at all times"
        else:
            assert any(each and each.data == found for each in known.ever), f"{name}: other bytes"

    @precondition(is_calm)
    @rule(hosts=AMBIGUOUS)
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
        return [each for each in found if "/run/" not in each.name]

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


MODEL = Daemons
