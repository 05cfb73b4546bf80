"""The file that `ffrecord cluster up` reads: which hosts run which nodes of a cluster."""

import pathlib
import re
import tomllib
from dataclasses import dataclass, field, fields
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
# Characters to which neither systemd nor a shell gives a meaning.
_FOLDER = re.compile(r"(/[A-Za-z0-9._+@=-]+)+")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PORT_MAX = 65_535


@dataclass(frozen=True)
class HostEntry:
    """One host: one node of the cluster, and a member of etcd if `etcd` names a folder."""

    name: str
    ssh: str
    data: list[str]
    listen: str
    advertise: str = ""
    admin: str = "127.0.0.1:9401"
    domain: str = ""
    weight: int = 100
    etcd: str = ""
    etcd_client: str = ""
    etcd_peer: str = ""

    @property
    def address(self) -> str:
        """HOST:PORT at which clients and other nodes reach the daemon."""
        return self.advertise or self.listen

    @property
    def etcd_client_address(self) -> str:
        """HOST:PORT at which daemons reach this member of etcd."""
        return self.etcd_client or f"{self._host}:2379"

    @property
    def etcd_peer_address(self) -> str:
        """HOST:PORT at which the other members reach this one."""
        return self.etcd_peer or f"{self._host}:2380"

    @property
    def folders(self) -> list[str]:
        """All folders with data on this host."""
        return [*self.data, *([self.etcd] if self.etcd else [])]

    @property
    def _host(self) -> str:
        return self.address.rpartition(":")[0]


@dataclass(frozen=True)
class HostsFile:
    """A cluster: its hosts, in the order of the file, and what they have in common."""

    cluster: str
    hosts: list[HostEntry]
    coordinator: str
    user: str = "ffrecord"
    sudo: bool = False
    insecure: bool = False
    daemon: str = "ffrecordd"
    etcd: str = "etcd"
    config_folder: str = "/etc/ffrecord"
    unit_folder: str = "/etc/systemd/system"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> list[HostEntry]:
        """The hosts that run etcd; none if the coordinator is somebody else's."""
        return [host for host in self.hosts if host.etcd]


# Settings that follow from the rest of the file.
_OWN_SETTINGS = {"cluster", "coordinator", "node"} | {
    one.name for one in fields(HostEntry) if not one.name.startswith("etcd")
} - {"name", "ssh"}


def read_hosts_file(path: pathlib.Path) -> HostsFile:
    """Parse and check a file; docs/guides/cluster.md describes its keys.

    Raises:
        ValueError: It is not such a file; the message names the place and the remedy.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        return _parse(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parse(table: dict[str, Any]) -> HostsFile:
    known = {one.name: one.type for one in fields(HostsFile)}
    _check_keys(table, known, "the file")
    hosts = table.pop("hosts", None)
    if not isinstance(hosts, dict) or not hosts:
        raise ValueError("no hosts: add a table [hosts.NAME] for each node")
    entries = [_parse_host(name, one) for name, one in hosts.items()]
    _check_values(table, known, "the file")
    if "cluster" not in table:
        raise ValueError('`cluster` is missing: write cluster = "NAME"')
    parsed = HostsFile(**{"coordinator": "", **table}, hosts=entries)
    parsed = HostsFile(**{**vars(parsed), "coordinator": _coordinator_of(parsed)})
    _check_cluster(parsed)
    return parsed


def _parse_host(name: str, table: object) -> HostEntry:
    where = f"[hosts.{name}]"
    if not isinstance(table, dict):
        raise ValueError(f"{where} is not a table")
    if isinstance(table.get("data"), str):
        table["data"] = [table["data"]]
    known = {one.name: one.type for one in fields(HostEntry) if one.name != "name"}
    _check_keys(table, known, where)
    _check_values(table, known, where)
    missing = [key for key in ("ssh", "data", "listen") if not table.get(key)]
    if missing:
        raise ValueError(f"{where}: `{missing[0]}` is missing")
    host = HostEntry(name=name, **table)
    _check_host(host, where)
    return host


def _check_keys(table: dict[str, Any], known: dict[str, Any], where: str) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{where} has an unknown key `{key}`; known are {', '.join(known)}")


def _check_values(table: dict[str, Any], known: dict[str, Any], where: str) -> None:
    for key, value in table.items():
        wanted = known[key]
        fits = (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
            if wanted == list[str]
            else isinstance(value, dict)
            if wanted == dict[str, Any]
            else type(value) is wanted
        )
        if not fits:
            raise ValueError(f"{where}: `{key}` is of the wrong type")


def _check_host(host: HostEntry, where: str) -> None:
    if not _NAME.fullmatch(host.name):
        raise ValueError(f"{where}: the name of a node is letters, digits, `.`, `_` and `-`")
    if host.ssh.startswith("-") or not host.ssh.isprintable():
        raise ValueError(f"{where}: `ssh` is not a target of ssh, such as root@host1")
    for folder in host.folders:
        if not _FOLDER.fullmatch(folder) or "/../" in f"{folder}/":
            raise ValueError(
                f"{where}: {folder!r} is not the full path of a folder, of letters, digits and"
                " . _ + @ = -"
            )
    for key in ("listen", "advertise", "admin", "etcd_client", "etcd_peer"):
        value = getattr(host, key)
        if value:
            _check_address(value, f"{where}: `{key}`")
    if host.address.startswith(("0.0.0.0:", "[::]:")):
        raise ValueError(f"{where}: other hosts cannot reach {host.address}: set `advertise`")
    if not 1 <= host.weight <= 1_000_000:
        raise ValueError(f"{where}: `weight` is a number above 0")


def _check_address(text: str, what: str) -> None:
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[2]) <= _PORT_MAX:
        raise ValueError(f"{what}: {text!r} is not HOST:PORT")


def _check_cluster(parsed: HostsFile) -> None:
    if not _NAME.fullmatch(parsed.cluster):
        raise ValueError("`cluster`: a name is letters, digits, `.`, `_` and `-`")
    if not _USER.fullmatch(parsed.user):
        raise ValueError("`user` is not the name of a user")
    for key in ("config_folder", "unit_folder"):
        if not _FOLDER.fullmatch(getattr(parsed, key)):
            raise ValueError(f"`{key}` is not the full path of a folder")
    for key in ("daemon", "etcd"):
        program = getattr(parsed, key)
        if not _FOLDER.fullmatch(program) and not _NAME.fullmatch(program):
            raise ValueError(f"`{key}` is not the name or the full path of a program")
    for key, value in parsed.settings.items():
        if key in _OWN_SETTINGS:
            raise ValueError(f"[settings]: `{key}` follows from the hosts; leave it out")
        if not isinstance(value, str | int) or (isinstance(value, str) and not value.isprintable()):
            raise ValueError(f"[settings]: `{key}` is neither a number nor a line of text")
    _check_distinct(parsed)
    replicas = parsed.settings.get("replicas", 2)
    domains = {host.domain or host.name for host in parsed.hosts}
    if isinstance(replicas, int) and len(domains) < replicas:
        raise ValueError(
            f"{replicas} replicas need as many failure domains, and there are {len(domains)}:"
            " add hosts, or lower `replicas` in [settings]"
        )


def _check_distinct(parsed: HostsFile) -> None:
    """No two nodes have one address, or one folder of one machine."""
    users: dict[str, str] = {}
    for host in parsed.hosts:
        own = [host.address, *(f"{host.ssh}:{folder}" for folder in host.folders)]
        own += [f"{host.ssh} {host.admin}", f"{host.ssh} {host.listen}"]
        if host.etcd:
            own += [host.etcd_client_address, host.etcd_peer_address]
        for one in dict.fromkeys(own):
            if one in users and users[one] != host.name:
                raise ValueError(f"{users[one]} and {host.name} both have {one.rsplit(':', 1)[-1]}")
            users[one] = host.name
        if len(set(host.folders)) != len(host.folders):
            raise ValueError(f"[hosts.{host.name}]: a folder is given twice")


def _coordinator_of(parsed: HostsFile) -> str:
    if parsed.coordinator and parsed.members:
        raise ValueError(
            "either `coordinator` names an etcd that runs, or hosts have `etcd` folders, not both"
        )
    if parsed.coordinator:
        return parsed.coordinator
    if not parsed.members:
        raise ValueError(
            "no etcd: set `coordinator` to one that runs, or give an odd number of hosts a folder"
            " with `etcd`"
        )
    if len(parsed.members) % 2 == 0:
        raise ValueError(
            f"{len(parsed.members)} hosts run etcd: take an odd number, 3 or 5; another member"
            " adds no safety"
        )
    return "etcd:" + ",".join(f"http://{host.etcd_client_address}" for host in parsed.members)
