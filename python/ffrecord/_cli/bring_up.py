"""Brings the nodes of a cluster up on their hosts, and down again."""

import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._cli.host_checks import Found, examine
from ffrecord._cli.host_files import Service, etcd_service, node_service
from ffrecord._cli.hosts_file import HostEntry, HostsFile
from ffrecord._cli.remote_host import Host, write_file
from ffrecord._cli.text import shown
from ffrecord.errors import UnavailableError

_LOOK_S = 0.5
_ASK_S = 10.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Change:
    """The things that one service of a host lacks; none, if all three are empty."""

    service: Service
    folders: list[str]
    files: dict[str, str]  # Path -> the text to write.
    start: str  # "start", "restart" or "".

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be done."""
        return bool(self.folders or self.files or self.start)


class BringUp:
    """The hosts of one cluster. Call `check`, then `plan`, then `apply`; each may be repeated."""

    def __init__(
        self,
        cluster: HostsFile,
        hosts: Mapping[str, Host],
        say: Say,
        *,
        options: str = "",
        timeout_s: float = 120.0,
    ) -> None:
        """`hosts`: by the names of nodes; `options`: of the cluster's address, behind the `?`."""
        self._cluster, self._hosts, self._say = cluster, hosts, say
        self._timeout_s = timeout_s
        self._approved: set[str] = set()
        self._node_units = {node_service(cluster, entry, "").unit for entry in cluster.hosts}
        nodes = ",".join(entry.address for entry in cluster.hosts)
        self.address = f"ffrecord://{nodes}/{f'?{options}' if options else ''}"

    def check(self) -> dict[str, Found]:
        """Look at all hosts at once; change nothing.

        Raises:
            UnavailableError: Hosts are not as they should be; there is a line for each fault.
        """

        def look(entry: HostEntry) -> Found:
            try:
                return examine(self._cluster, entry, self._hosts[entry.name])
            except UnavailableError as error:
                return Found([], problems=[str(error)])

        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(look, self._cluster.hosts))
        problems = [line for one in found for line in one.problems]
        if problems:
            raise UnavailableError("nothing was changed:\n" + "\n".join(problems))
        return {entry.name: one for entry, one in zip(self._cluster.hosts, found, strict=True)}

    def plan(self, found: Mapping[str, Found]) -> list[tuple[HostEntry, Change]]:
        """The changes to make: members of etcd first, then nodes, in the order of the file."""
        steps = [
            (
                number < len(found[entry.name].services) - 1,
                entry,
                _change(service, found[entry.name]),
            )
            for entry in self._cluster.hosts
            for number, service in enumerate(found[entry.name].services)
        ]
        steps.sort(key=lambda step: not step[0])
        return [(entry, change) for _, entry, change in steps if change.is_needed]

    def apply(self, steps: list[tuple[HostEntry, Change]]) -> None:
        """Make the changes, one node after the other, and wait until all nodes take part.

        A node is restarted only while those before it are up again: a cluster that runs goes on.

        Raises:
            UnavailableError: A host refuses, or a node does not come up in time.
        """
        for entry, change in steps:
            self._make(entry, change)
            if change.service.unit in self._node_units:
                self._wait_for([entry])
        self._wait_for(self._cluster.hosts, placed=True)

    def down(self) -> None:
        """Stop the daemons, then etcd, and keep them from starting with their hosts.

        Files and data stay.

        Raises:
            UnavailableError: Some could not be stopped; etcd goes on if these are daemons.
        """
        nodes = [(entry, node_service(self._cluster, entry, "")) for entry in self._cluster.hosts]
        members = [
            (entry, etcd_service(self._cluster, entry, "")) for entry in self._cluster.members
        ]
        for group in (nodes, members):
            with ThreadPoolExecutor(16) as pool:
                stopped = list(pool.map(lambda one: self._stop(*one), group))
            faults = [str(one) for one in stopped if isinstance(one, UnavailableError)]
            for line in stopped:
                if isinstance(line, str):
                    self._say(line)
            if faults:
                raise UnavailableError("not everything was stopped:\n" + "\n".join(faults))

    def _make(self, entry: HostEntry, change: Change) -> None:
        host = self._hosts[entry.name]
        for folder in change.folders:
            owner = self._cluster.user
            self._run(host, f"make {folder}", f"install -d -m 700 -o {owner} {shlex.quote(folder)}")
            self._say(f"{entry.name}: made {folder}")
        marker = change.service.marker
        if change.start == "restart" and change.files:
            # An interrupted run has perhaps written files that what runs has not read.
            write_file(host, marker, "Written by `ffrecord cluster up`: this unit must restart.\n")
        for path, text in change.files.items():
            # Settings may have a password.
            owner = self._cluster.user if path.endswith(".toml") else ""
            write_file(host, path, text, owner)
            self._say(f"{entry.name}: wrote {path}")
        if change.start:
            unit = shlex.quote(change.service.unit)
            # A daemon is awaited until it serves. A member of etcd serves once others do.
            waits = "" if change.service.unit in self._node_units else "--no-block"
            self._run(
                host,
                f"{change.start} {change.service.unit}",
                f"systemctl daemon-reload && systemctl enable --quiet {unit}"
                f" && systemctl {waits} {change.start} {unit} && rm -f {shlex.quote(marker)}",
            )
            self._say(f"{entry.name}: {change.start}ed {change.service.unit}")

    def _run(self, host: Host, step: str, script: str) -> None:
        done = host.run(script, timeout_s=self._timeout_s)
        if done.code != 0:
            raise UnavailableError(
                f"{host.name}: {step}: {done.reason}; correct it and run the command again"
            )

    def _stop(self, entry: HostEntry, service: Service) -> str | UnavailableError:
        """Stop a unit; what has become of it, or why it could not be stopped."""
        host, unit = self._hosts[entry.name], shlex.quote(service.unit)
        there = " && ".join(f"[ -f {shlex.quote(path)} ]" for path in service.files)
        try:
            if host.run(there).code != 0:
                return f"{entry.name}: {service.unit} was never brought up"
            runs = host.run(f"systemctl is-active --quiet {unit}").code == 0
            # One that does not run may be about to start again.
            self._run(host, f"stop {service.unit}", f"systemctl disable --quiet --now {unit}")
        except UnavailableError as error:
            return error
        return (
            f"{entry.name}: {f'stopped {service.unit}' if runs else f'{service.unit} does not run'}"
        )

    def _wait_for(self, entries: list[HostEntry], *, placed: bool = False) -> None:
        """Return once nodes take part, and have slots if `placed`; those that wait are let in."""
        end = clock.now() + self._timeout_s
        while True:
            missing = self._missing(entries, placed)
            if not missing:
                return
            for entry in entries:
                self._check_unit(entry)
            if clock.now() > end:
                raise UnavailableError(
                    f"after {self._timeout_s:.0f} s, {'; '.join(missing)}; see `journalctl -u"
                    f" ffrecord-{self._cluster.cluster}-NODE` there, and run the command again"
                )
            clock.sleep(_LOOK_S)

    def _missing(self, entries: list[HostEntry], placed: bool) -> list[str]:
        """The things not yet as they should be, in words, but for nodes that an operator drains."""
        try:
            facts = _ffrecord.describe_cluster(self.address, timeout_s=_ASK_S)
        except OSError as error:
            if isinstance(error, PermissionError):
                raise
            return [f"no node of the cluster answers ({error})"]
        nodes = {node["id"]: node for node in facts["nodes"]}
        missing = []
        for entry in entries:
            node = nodes.get(entry.name)
            if node is None:
                missing.append(f"{entry.name} has not asked to join")
            elif node["state"] == "waiting":
                missing.append(self._approve(entry, node["address"]))
            elif not node["is_up"]:
                missing.append(f"{entry.name} is down")
            elif placed and node["state"] == "in" and node["slot_count"] == 0:
                missing.append(f"{entry.name} has no share of the data yet")
        return missing

    def _approve(self, entry: HostEntry, address: str) -> str:
        """Let in a node whose unit runs, unless another daemon waits under its name.

        Returns how far it is, in words. `address`: where it says that it is; empty for one of an
        earlier version.
        """
        if address and address != entry.address:
            raise UnavailableError(
                f"{entry.name}: another daemon, at {shown(address)}, waits for approval as node"
                f" {entry.name}, which is to be at {entry.address}; stop that daemon, or correct"
                " the file, and run the command again"
            )
        if entry.name not in self._approved:  # Else the node that told so has not heard of it yet.
            try:
                _ffrecord.set_node_state(self.address, entry.name, "in", timeout_s=_ASK_S)
            except UnavailableError as error:
                return f"{entry.name} waits for approval ({error})"
            self._approved.add(entry.name)
            self._say(f"{entry.name}: approved")
        return f"{entry.name} joins"

    def _check_unit(self, entry: HostEntry) -> None:
        unit = node_service(self._cluster, entry, "").unit
        done = self._hosts[entry.name].run(f"systemctl is-failed {shlex.quote(unit)}")
        if done.code == 0:
            log = self._hosts[entry.name].run(f"journalctl -q -n 1 -o cat -u {shlex.quote(unit)}")
            raise UnavailableError(
                f"{entry.name}: start {unit}: it has failed ({log.reason}); see `journalctl -u"
                f" {unit}` there, and run the command again"
            )


def _change(service: Service, found: Found) -> Change:
    files = {path: text for path, text in service.files.items() if found.files.get(path) != text}
    runs = service.unit in found.active
    is_outdated = bool(files) or service.unit in found.outdated
    start = "" if runs and not is_outdated else "restart" if runs else "start"
    folders = [folder for folder in service.folders if folder in found.missing_folders]
    return Change(service, folders, files, start)
