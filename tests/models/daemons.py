"""Model of daemons and clusters: names, their bytes and their quotas are the truth.

Goal: what was acknowledged is read back equal at every address, or an error says why not; nobody
gets an older state, a stranger's data, or more room than the quota, and nobody is refused what
fits; damage that a reader meets is healed and counted. Method: a cluster of three nodes, another
cluster and a daemon by itself, as real processes; publish, upload, remove, list and read by every
list of addresses, while nodes and etcd are stopped, killed, frozen, cut off and replaced.
"""

import contextlib
import errno
import threading
import time
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import ffrecord
from daemons_asking import AWAY, LISTS, OF_CLUSTER, SURE_S, UNSURE_S, WHICH, is_calm
from daemons_places import NODES, QUOTA_BYTES, STRANGERS, fill, make_room
from daemons_reading import Hosts, by_records, place_of
from daemons_truth import RECORDS, Content, Place
from daemons_uploads import HeldUpload, LeftCall
from daemons_versions import NamedVersions
from ffrecord import _ffrecord
from ffrecord.errors import ConflictError, CorruptionError

TWO_PLACES = [("n1", "alone"), ("other", "n2"), ("alone", "other")]
AMBIGUOUS = st.sampled_from(TWO_PLACES)
NAMES = st.sampled_from(["d/a", "d/b", "q/a", "q/b", "q/c"])
OF_QUOTA = st.sampled_from(["q/a", "q/b", "q/c"])
ANY = st.booleans()
SIZE = st.sampled_from(["small", "medium", "large"])
CLASSES = st.sampled_from(["replicas", "replicas", "r1", "r2", "ec:2+1"])
NODE = st.sampled_from(NODES)
# Of a client that is killed, and of others since then. A removal is the fastest of those.
CHANGES = st.sampled_from(
    [("replace", "remove"), ("replace", "remove"), ("replace", "replace"), ("remove", "remove")]
)
LEFT_S = 0.3  # Until the request of a client that is killed is with its node.
TROUBLE = st.sampled_from(
    ["stop", "kill", "freeze", "cut", "cut", "wipe", "drain", "full", *STRANGERS]
)


class Daemons(NamedVersions):
    """Rules are calls of clients and accidents; `places` says what must be read."""

    # Publishing and removing.

    @rule(hosts=LISTS, name=NAMES, size=SIZE, durability=CLASSES, replace=st.booleans(), by=LISTS)
    def publish(
        self, hosts: Hosts, name: str, size: str, durability: str, replace: bool, by: Hosts
    ) -> None:
        """Publish or replace a name, and look at it by other addresses."""
        hosts = self.usable(hosts)
        kind, _ = self.world.trouble or ("", "")
        has_no_place = (kind and durability == "r1") or (kind == "full" and "ec" in durability)
        if place_of(hosts) != "cluster" or has_no_place:
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
        self.may_restart = True
        place = self.place(hosts)
        known = place.name(name)
        least, most = self.room(place, name, client)
        what = f"{client} publishes {name} {durability} {content.size_bytes} by {hosts}"
        self.did(f"{what}, between {least} and {most} are left")
        if client != "any" and not self.is_calm(place_of(hosts)):
            place.quota.note(content.size_bytes, is_certain=False)
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
        except OSError as error:
            if error.errno != errno.EDQUOT:
                raise
            self.did(f"refused: {error}")
            assert content.size_bytes > least, f"{name} fits ({least} bytes are left): {error}"
        else:
            self.did("done")
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
            self.did(f"removed {name} by {hosts}")
            known.acknowledge(None)
        self.ask(self.usable(by, hosts))
        self.read_on(which)

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
        self.did(
            f"published at once by {hosts}: {list(zip(names, contents, results, strict=True))}"
        )
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

    @rule(
        hosts=LISTS,
        size=st.sampled_from(["medium", "large", "large"]),
        bound=st.sampled_from([True, True, False]),
        kill=st.booleans(),
        count=st.sampled_from([1, 3, 4]),
    )
    def upload(self, hosts: Hosts, size: str, bound: bool, kill: bool, count: int) -> None:
        """Upload and do not publish; the processes are killed, or go on waiting."""
        if not is_calm(self):
            hosts = ("alone",)
        for _ in range(count):
            self.upload_one(hosts, size, bound=bound, kill=kill)
        self.ask(hosts)

    def upload_one(self, hosts: Hosts, size: str, *, bound: bool, kill: bool) -> None:
        """Upload, and compare the answer with the truth."""
        place, content = self.place(hosts), self.content(size)
        client = self.client if bound else "any"
        name = f"{self.client}/upload"
        least, most = self.room(place, name, client)
        upload = HeldUpload(content, self.address(hosts, name, client))
        self.did(f"{client} uploads {content.size_bytes} by {hosts}: {upload.errno} {upload.error}")
        if upload.errno == 0:
            assert content.size_bytes <= most, f"{content} is uploaded: {most} bytes were left"
        else:
            assert upload.errno == errno.EDQUOT, f"errno {upload.errno}: {upload.error}"
            assert content.size_bytes > least, f"{least} bytes are left: {upload.error}"
            # No node has another quota: who asks them all until then may hear of that instead.
            assert "until the timeout" not in upload.error, upload.error
        if upload.errno == 0 and bound:
            place.quota.note(content.size_bytes, is_certain=True)
        self.held.append(upload)
        while kill and self.held:
            self.held.pop().kill()

    # Changes whose client is dead.

    @precondition(is_calm)
    @rule(node=NODE, which=WHICH, changes=CHANGES, by=OF_CLUSTER)
    def leave_change(self, node: str, which: int, changes: tuple[str, str], by: Hosts) -> None:
        """Kill a client that waits for a node that is cut off: what others do since then stays."""
        removes, removed = (each == "remove" for each in changes)
        name, content = self.pick_settled(NODES, which)
        others = tuple(each for each in NODES if each != node)
        if content is None or name.startswith(f"{self.client}/"):
            return
        known, later = self.places["cluster"].name(name), self.content("small")
        if not removes:
            upload = HeldUpload(later, self.address((node,), name))
            assert upload.errno == 0, upload.error
        self.world.trouble_node("cut", node)
        left: HeldUpload | LeftCall
        if removes:
            address = self.address((node,), name)
            left = LeftCall(lambda: ffrecord.remove_published(address))
        else:
            left = upload
            upload.go_on()
        time.sleep(LEFT_S)
        left.kill()
        self.did(f"left {'removal' if removes else 'replacement'} of {name} at {node}")
        known.may_become(None if removes else later)
        if removed:
            self.remove_sure(name, others)
        if removes or not removed:
            content = self.content("small")
            self.publish_one(others, name, content, "replicas", replace=not removed)
        self.mend(by)
        self.ask(by)

    # Trouble.

    @precondition(is_calm)
    @rule(kind=TROUBLE, node=NODE, which=WHICH, by=OF_CLUSTER)
    def trouble(self, kind: str, node: str, which: int, by: Hosts) -> None:
        """Something happens to a node, until it is mended."""
        if kind == "full" and not self.world.has_small_disks:
            return
        if kind == "wipe":
            self.world.await_filled()
            for name, each in self.places["cluster"].names.items():
                if each.durability == "r1":
                    self.remove_sure(name)
        self.did(f"{kind} {node}")
        self.world.trouble_node(kind, node)
        if kind in STRANGERS:
            name = self.pick(NODES, which) or f"{self.prefix}d/a"
            path = self.content("small").path
            ffrecord.publish(path, self.address((node,), name), replace=True, timeout_s=SURE_S)
        if kind == "cut":
            name = self.pick(NODES, which) or self.full("d/a")
            self.publish_one(NODES, name, self.content("small"), "replicas", replace=True)
            self.ask((node,))
        self.ask(self.usable(by))

    def remove_sure(self, name: str, hosts: Hosts = NODES) -> None:
        """Remove a name of the cluster, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            ffrecord.remove_published(self.address(hosts, name))
        self.places["cluster"].name(name).acknowledge(None)

    @precondition(is_calm)
    @rule(kind=st.sampled_from(["kill", "freeze", "cut"]), by=OF_CLUSTER)
    def trouble_of_etcd(self, kind: str, by: Hosts) -> None:
        """Etcd is gone, until it is mended."""
        self.did(f"{kind} etcd")
        self.world.trouble_etcd(kind)
        self.ask(self.usable(by))

    @precondition(lambda self: self.world.trouble is not None)
    @rule(by=OF_CLUSTER)
    def mend(self, by: Hosts) -> None:
        """All is well again."""
        _, node = self.world.trouble or ("", "")
        alone = self.usable((node,) if node in NODES else NODES)
        self.world.mend(lambda: self.ask(alone))  # Right after its start, it may know little.
        self.did("mended")
        self.ask(by)

    @precondition(lambda self: self.may_restart)
    @rule(does=ANY)
    def pace(self, does: bool) -> None:
        """Let storage give way to a phase that never ends: calls take longer, and do the same."""
        _ffrecord.stop_pacing()
        if does:
            _ffrecord.start_pacing(prefetch=(0, 0.001), checkpoint=(0, 0.001))
            _ffrecord.phase_begin("collective")
        self.did(f"pacing is {'on' if does else 'off'}")

    @rule(how=st.sampled_from(["stop", "kill", "freeze"]))
    def restart_alone(self, how: str) -> None:
        """The daemon by itself is stopped and started again, or does nothing for a moment."""
        self.may_restart = False
        self.did(f"{how} alone")
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

    @precondition(lambda self: self.world.has_small_disks)
    @rule(size=SIZE, name=NAMES, replace=ANY, removes=ANY, restart=ANY)
    def fill_alone(self, size: str, name: str, replace: bool, removes: bool, restart: bool) -> None:
        """The disk of the daemon by itself is full: nothing is taken, and nothing is lost."""
        content, address = self.content(size), self.address(("alone",), self.full(name))
        disk = self.world.alone.data
        fill(disk)
        # What was kept for one removal is kept for the next one once there was room.
        removes = removes and (disk / "reserve").stat().st_size > 0
        try:
            ffrecord.publish(content.path, address, replace=replace, timeout_s=UNSURE_S)
        except (OSError, ConflictError) as error:
            self.did(f"publish {name} on a full disk: {error!r}")
        else:
            raise AssertionError(f"{content} was published on a disk that is full")
        self.ask(("alone",))
        if removes and (old := self.pick(("alone",), 0)) is not None:
            ffrecord.remove_published(self.address(("alone",), old), timeout_s=SURE_S)
            self.places["alone"].name(old).acknowledge(None)
            self.did(f"removed {old} from a full disk")
        make_room(disk)
        if restart:
            self.world.alone.kill()
            self.world.alone.start()
        # A daemon looks for room that others have made now and then, and says what it knows.
        end = time.monotonic() + SURE_S
        while not self.world.metrics("alone").sum("ffrecord_data_free_bytes"):
            assert time.monotonic() < end, "a disk that has room again stays full"
            time.sleep(0.05)
        self.ask(("alone",))

    # Questions.

    @rule(hosts=st.one_of(LISTS, AMBIGUOUS), which=WHICH)
    def open(self, hosts: Hosts, which: int) -> None:
        """Open a name, and keep the reader."""
        self.read_on(which)
        if hosts in TWO_PLACES:
            return self.ask_two(hosts) if is_calm(self) else None
        hosts = self.usable(hosts)
        name, content = self.pick_settled(hosts, which)
        if content is not None and self.is_sure(hosts):
            reader = ffrecord.open(self.address(hosts, name), timeout_s=SURE_S)
            self.readers.append((reader, place_of(hosts), name, content))

    def read_on(self, which: int) -> None:
        """Read by a reader that was opened before: the same bytes, whatever was published since."""
        if not self.readers:
            return
        reader, kind, name, content = self.readers[which % len(self.readers)]
        try:
            data = bytes(reader.read(range(RECORDS)).data)
        except (FileNotFoundError, *AWAY, CorruptionError) as error:
            known = self.places[kind].name(name)
            has_gap = known.durability == "r1" and not self.is_calm(kind)
            is_there = known.possible == [content] and not has_gap
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


MODEL = Daemons
