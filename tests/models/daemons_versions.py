"""Named versions in the model of daemons: what was published under a version is read under it.

Names that have versions are not those of the other rules. Versions are changed where a change is
sure to succeed, so each answer is certain; also while a node is lost, and after a client was killed
in the middle of the same change. They are looked at in every trouble and after every restart.
"""

import contextlib
import time

from hypothesis import strategies as st
from hypothesis.stateful import rule

import ffrecord
from daemons_asking import AWAY, LISTS, SURE_S, WHICH
from daemons_damage import Damages
from daemons_places import NODES
from daemons_reading import Hosts, by_records
from daemons_truth import Content, Versions
from daemons_uploads import LeftCall
from ffrecord import catalogue
from ffrecord.errors import ConflictError

VERSIONED = st.sampled_from(["v/a", "v/b"])
VERSION = st.sampled_from(["1.0", "1.1", "2.0", "next"])
TAG = st.sampled_from(["best", "old", "1.1"])
SIZE = st.sampled_from(["small", "medium"])
# What an earlier publication of the version has left: nothing, its files, or other files.
LEFT = st.sampled_from(["nothing", "nothing", "same", "other"])
# The content of a publication that repeats a version.
AGAIN = st.sampled_from(["same", "same", "other"])
CHANGE = st.sampled_from(["publish", "tag", "remove"])
# Until a client that changes a version is killed.
KILLED_S = st.sampled_from([0.0, 0.01, 0.03, 0.1, 0.3])


class NamedVersions(Damages):
    """Rules that change versions, and the questions about them."""

    def settled(self, hosts: Hosts) -> Hosts:
        """Return these addresses, or others where a change is not sure to succeed."""
        hosts = self.usable(hosts)
        return hosts if self.is_sure(hosts) else ("alone",)

    def versions_of(self, hosts: Hosts, name: str) -> Versions:
        """Return what is known of a name with versions."""
        return self.place(hosts).versions.setdefault(self.full(name), Versions())

    @rule(hosts=LISTS, name=VERSIONED, version=VERSION, size=SIZE, left=LEFT, by=LISTS)
    def publish_version(
        self, hosts: Hosts, name: str, version: str, size: str, left: str, by: Hosts
    ) -> None:
        """Publish a version, perhaps after a publication of it that did not end."""
        hosts, content = self.settled(hosts), self.content(size)
        known, address = self.versions_of(hosts, name), self.address(hosts, self.full(name))
        is_new = version not in known.there and version not in known.removed
        self.may_restart = True
        self.did(f"publishes {name}@{version} by {hosts}, {content}, {left} was left")
        if is_new and left != "nothing":
            self.leave_data(hosts, name, version, content if left == "same" else None)
        try:
            catalogue.publish(content.path, address, version, timeout_s=SURE_S)
        except ConflictError as error:
            assert not is_new or left == "other" or version in known.tags, repr(error)
            if is_new and left != "nothing":
                data = self.address(hosts, f"{self.full(name)}/.versions/{version}")
                ffrecord.remove_published(data, timeout_s=SURE_S)
        else:
            assert is_new and left != "other", f"{name}@{version} was published again"
            known.there[version] = content
        self.ask(self.usable(by, hosts))

    @rule(hosts=LISTS, name=VERSIONED, which=WHICH, what=AGAIN, by=LISTS)
    def repeat_version(self, hosts: Hosts, name: str, which: int, what: str, by: Hosts) -> None:
        """Repeat a publication whose caller was not told that it had succeeded."""
        hosts = self.settled(hosts)
        known = self.versions_of(hosts, name)
        version, _ = self.pick_version(hosts, name, which)
        content = known.there[version] if what == "same" else self.content("small")
        place = self.address(hosts, self.full(name))
        self.did(f"repeats {name}@{version} by {hosts} with {content}")
        try:
            made = catalogue.publish(content.path, place, version, timeout_s=SURE_S)
        except ConflictError as error:
            assert what == "other", repr(error)
        else:
            assert what == "same", f"{name}@{version} was published again with other files"
            assert made.version == version
        self.ask(self.usable(by, hosts))

    def leave_data(self, hosts: Hosts, name: str, version: str, content: Content | None) -> None:
        """Publish the files of a version, as a publication does that ends before its last step."""
        content = content or self.content("small")
        data = self.address(hosts, f"{self.full(name)}/.versions/{version}")
        ffrecord.publish(content.path, data, timeout_s=SURE_S)

    def pick_version(self, hosts: Hosts, name: str, which: int) -> tuple[str, str]:
        """Return a version that is there, and its address; publishes one if there is none."""
        known, address = self.versions_of(hosts, name), self.address(hosts, self.full(name))
        if not known.there:
            content, version = self.content("small"), f"first-{len(known.removed)}"
            catalogue.publish(content.path, address, version, timeout_s=SURE_S)
            known.there[version] = content
        version = list(known.there)[which % len(known.there)]
        place, mark, options = address.partition("?")
        return version, f"{place}@{version}{mark}{options}"

    @rule(hosts=LISTS, name=VERSIONED, which=WHICH, tag=TAG, by=LISTS)
    def tag_version(self, hosts: Hosts, name: str, which: int, tag: str, by: Hosts) -> None:
        """Let a tag stand for a version."""
        hosts = self.settled(hosts)
        known = self.versions_of(hosts, name)
        version, address = self.pick_version(hosts, name, which)
        self.may_restart = True
        self.did(f"tags {name}@{version} as {tag} by {hosts}")
        try:
            catalogue.tag(address, tag, timeout_s=SURE_S)
        except ConflictError as error:
            assert tag in known.there or tag in known.removed, repr(error)
        else:
            assert tag not in known.there, f"{name}@{tag} is a version and a tag"
            known.tags[tag] = version
        self.ask(self.usable(by, hosts))

    @rule(hosts=LISTS, name=VERSIONED, which=WHICH, restart=st.booleans(), by=LISTS)
    def remove_version(self, hosts: Hosts, name: str, which: int, restart: bool, by: Hosts) -> None:
        """Remove a version: it does not come back, and its name is not used again."""
        hosts = self.settled(hosts)
        known = self.versions_of(hosts, name)
        version, address = self.pick_version(hosts, name, which)
        self.may_restart = True
        self.did(f"removes {name}@{version} by {hosts}")
        catalogue.remove(address, timeout_s=SURE_S)
        known.remove(version)
        if restart and hosts == ("alone",):
            self.world.alone.kill()
            self.world.alone.start()
        with contextlib.suppress(ConflictError):
            path, place = self.content("small").path, self.address(hosts, self.full(name))
            catalogue.publish(path, place, version, timeout_s=SURE_S)
            raise AssertionError(f"{name}@{version} was removed, and is published again")
        self.ask(self.usable(by, hosts))

    @rule(hosts=LISTS, name=VERSIONED, which=WHICH, what=CHANGE, killed_s=KILLED_S, by=LISTS)
    def change_again(
        self, hosts: Hosts, name: str, which: int, what: str, killed_s: float, by: Hosts
    ) -> None:
        """Repeat a change whose client was killed on its way: it has its effect once."""
        hosts = self.settled(hosts)
        known = self.versions_of(hosts, name)
        version, address = self.pick_version(hosts, name, which)
        content, place = self.content("small"), self.address(hosts, self.full(name))
        made = f"again-{content.number}"

        def change() -> None:
            if what == "publish":
                catalogue.publish(content.path, place, made, timeout_s=SURE_S)
            elif what == "tag":
                catalogue.tag(address, "again", timeout_s=SURE_S)
            else:
                catalogue.remove(address, timeout_s=SURE_S)

        self.may_restart = True
        self.did(f"{what} {name}@{version} or {made} by {hosts}, killed after {killed_s} s")
        left = LeftCall(change)
        time.sleep(killed_s)
        left.kill()
        with contextlib.suppress(FileNotFoundError) if what == "remove" else contextlib.ExitStack():
            change()
        self.did("done")
        if what == "publish":
            known.there[made] = content
        elif what == "tag":
            known.tags["again"] = version
        else:
            known.remove(version)
        self.ask(self.usable(by, hosts))

    @rule(hosts=LISTS, name=VERSIONED, which=WHICH)
    def replace_with_plain(self, hosts: Hosts, name: str, which: int) -> None:
        """Publish without a version what has versions: refused, and nothing changes."""
        hosts = self.settled(hosts)
        self.pick_version(hosts, name, which)
        try:
            ffrecord.publish(
                self.content("small").path,
                self.address(hosts, self.full(name)),
                replace=bool(which % 2),
                timeout_s=SURE_S,
            )
        except ConflictError as error:
            assert "has versions" in str(error), repr(error)
        else:
            raise AssertionError(f"{name} has versions, and was published without one")

    def ask(self, hosts: Hosts) -> None:
        """List and read all versions of a place too."""
        super().ask(hosts)
        for name, known in self.place(hosts).versions.items():
            try:
                self.ask_versions(hosts, name, known)
            except (*AWAY, ConflictError) as error:
                return self.failed(hosts, error, f"versions of {name}")

    def ask_versions(self, hosts: Hosts, name: str, known: Versions) -> None:
        """Compare the list of versions, the newest, one other and one that is gone."""
        seconds, address = self.seconds(hosts), self.address(hosts, name)
        place, mark, options = address.partition("?")
        if not known.there:
            found: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                listed = catalogue.versions(address, timeout_s=seconds)
                found = [each.version for each in listed.versions]
            assert not found, f"{name} has the versions {found}, which nobody gave"
            return
        listed = catalogue.versions(address, timeout_s=seconds)
        there = [each.version for each in listed.versions]
        assert there == list(known.there), f"{name} has {there}, not {list(known.there)}"
        assert listed.tags == known.tags, f"{name} has {listed.tags}, not {known.tags}"
        wanted = {"": list(known.there)[-1], f"@{there[0]}": there[0]}
        wanted |= {f"@{tag}": version for tag, version in known.tags.items()}
        for text, version in wanted.items():
            data = by_records(f"{place}{text}{mark}{options}", seconds)
            assert data == known.there[version].data, f"{name}{text} has other bytes"
        for gone in sorted(known.removed)[:1]:
            try:
                by_records(f"{place}@{gone}{mark}{options}", seconds)
            except FileNotFoundError:
                continue
            raise AssertionError(f"{name}@{gone} was removed, and is read")

    def teardown(self) -> None:
        """Leave no versions."""
        super().teardown()
        for kind, place in self.places.items():
            hosts: Hosts = NODES if kind == "cluster" else (kind,)
            for name in place.versions:
                for each in ffrecord.list_published(self.address(hosts, f"{name}/.")):
                    ffrecord.remove_published(self.address(hosts, each.name))
