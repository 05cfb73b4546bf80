"""The checks of `ffrecord cluster up` on a host before it changes anything there."""

import base64
import re
import shlex
from dataclasses import dataclass, field

import ffrecord
from ffrecord._base import clock
from ffrecord._cli.host_files import Service, etcd_service, node_service
from ffrecord._cli.hosts_file import HostEntry, HostsFile
from ffrecord._cli.remote_host import Host

# Tokens and certificates have times; the answer of a slow host is not a wrong clock.
_CLOCK_S = 5.0
_LISTENING = "0A"


@dataclass(frozen=True)
class Found:
    """The state of a host. `services` are those that it should have: etcd first, then the node."""

    services: list[Service]
    files: dict[str, str] = field(default_factory=dict)  # Those that exist, of all services.
    missing_folders: list[str] = field(default_factory=list)
    active: set[str] = field(default_factory=set)  # Units that run.
    outdated: set[str] = field(default_factory=set)  # Changed, not restarted yet.
    problems: list[str] = field(default_factory=list)  # "HOST: STEP: what; remedy".


def examine(cluster: HostsFile, entry: HostEntry, host: Host) -> Found:
    """Look at a host, and change nothing.

    Raises:
        UnavailableError: It cannot be reached.
    """
    before = clock.calendar_now()
    programs = _lines(host, _programs_script(cluster, entry))
    offset_s = max(before - programs.time_s, programs.time_s - clock.calendar_now(), 0.0)
    problems = _check_programs(cluster, entry, programs, offset_s)
    services = [
        *([etcd_service(cluster, entry, programs.get("etcd") or "etcd")] if entry.etcd else []),
        node_service(cluster, entry, programs.get("daemon") or "ffrecordd"),
    ]
    state = _lines(host, _state_script(cluster, services))
    files = {
        path: base64.b64decode(text).decode("utf-8", "replace")
        for path, _, text in (one.partition(" ") for one in state.all("file"))
        if text
    }
    active = set(state.all("active"))
    problems += _check_folders(entry, services, state, files)
    problems += _check_members(entry, services, files)
    problems += _check_ports(services, active, state.all("tcp"))
    if programs.get("daemon"):
        problems += _check_settings(host, services[-1], programs.get("daemon"), cluster.insecure)
    named = [f"{entry.name}: {one}" for one in problems]
    outdated = set(state.all("outdated"))
    return Found(services, files, state.all("missing"), active, outdated, named)


@dataclass(frozen=True)
class _Lines:
    """The output of a script: a key and a value in each line."""

    pairs: list[tuple[str, str]]

    def all(self, key: str) -> list[str]:
        return [value for one, value in self.pairs if one == key]

    def get(self, key: str) -> str:
        return next(iter(self.all(key)), "")

    @property
    def time_s(self) -> float:
        text = self.get("time")
        return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


def _lines(host: Host, script: str) -> _Lines:
    output = host.run(script).output
    pairs = [line.partition(" ") for line in output.splitlines()]
    return _Lines([(key, value.strip()) for key, _, value in pairs])


def _programs_script(cluster: HostsFile, entry: HostEntry) -> str:
    daemon, etcd, user = map(shlex.quote, (cluster.daemon, cluster.etcd, cluster.user))
    lines = [
        'echo "time $(date +%s.%N)"',
        'echo "me $(id -u)"',
        f'echo "user $(id -u {user} 2>/dev/null)"',
        'echo "systemctl $(command -v systemctl)"',
        'echo "systemd $(systemctl is-system-running 2>/dev/null)"',
        f'echo "daemon $(command -v {daemon})"',
        f'echo "version $({daemon} --version 2>/dev/null)"',
    ]
    if entry.etcd:
        lines.append(f'echo "etcd $(command -v {etcd})"')
    return "\n".join(lines)


def _check_programs(
    cluster: HostsFile, entry: HostEntry, facts: _Lines, offset_s: float
) -> list[str]:
    problems = []
    if facts.get("me") != "0" and facts.get("me") != facts.get("user"):
        problems.append("user: ssh does not lead to root; set sudo = true, or ssh = root@...")
    if not facts.get("user"):
        problems.append(
            f"user: there is no user {cluster.user}; add it: useradd --system {cluster.user}"
        )
    if not facts.get("systemctl"):
        problems.append("systemd: systemctl is not in PATH; `up` needs a host with systemd")
    elif facts.get("systemd") in ("offline", ""):
        problems.append(
            "systemd: it does not run, as in a container; `up` needs a host that systemd has booted"
        )
    if not facts.get("daemon"):
        problems.append(f"ffrecordd: {cluster.daemon} is not in PATH; install it, or set `daemon`")
    elif facts.get("version") != f"ffrecordd {ffrecord.__version__}":
        problems.append(
            f"ffrecordd: {facts.get('daemon')} is {facts.get('version') or 'no ffrecordd'}, and"
            f" this command is of version {ffrecord.__version__}; install the same on all hosts"
        )
    if entry.etcd and not facts.get("etcd"):
        problems.append(
            f"etcd: {cluster.etcd} is not in PATH; install the package etcd-server, or set `etcd`"
        )
    if offset_s > _CLOCK_S:
        problems.append(f"clock: {offset_s:.0f} s from the clock here; run a time service on both")
    return problems


def _state_script(cluster: HostsFile, services: list[Service]) -> str:
    # As the user of the services, which is not root.
    as_user = f'[ "$(id -un)" = {cluster.user} ] || as="runuser -u {cluster.user} --"'
    lines = ["as=", as_user]
    for service in services:
        unit = shlex.quote(service.unit)
        lines.append(f'systemctl is-active --quiet {unit} && echo "active {service.unit}"')
        marker = shlex.quote(service.marker)
        lines.append(f'[ ! -e {marker} ] || echo "outdated {service.unit}"')
        for path in map(shlex.quote, service.files):
            lines.append(f'[ -f {path} ] && echo {path} "$(base64 -w0 {path})" | sed "s/^/file /"')
        for folder in map(shlex.quote, service.folders):
            lines += [
                f"if [ ! -e {folder} ]; then",
                f'  echo missing {folder}; [ -d "$(dirname {folder})" ] || echo no_parent {folder}',
                f"elif [ ! -d {folder} ]; then echo not_a_folder {folder}",
                f"elif ! $as test -w {folder}; then echo not_writable {folder}",
                f'elif [ -n "$(ls -A {folder})" ]; then echo full {folder}; fi',
            ]
    lines.append("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | sed 's/^ */tcp /'")
    return "\n".join(lines)


def _check_folders(
    entry: HostEntry, services: list[Service], state: _Lines, files: dict[str, str]
) -> list[str]:
    problems = [
        f"folder: {one} does not exist, nor the folder that it is in; mount the disk"
        for one in state.all("no_parent")
    ]
    problems += [f"folder: {one} is not a folder" for one in state.all("not_a_folder")]
    problems += [
        f"folder: the user of the service may not write {one}; chown it, or mount it writable"
        for one in state.all("not_writable")
    ]
    # A folder with data is this node's, if a file that `up` has written says so.
    known = {
        folder
        for service in services
        for folder in service.folders
        if any(f'"{folder}"' in text or f" {folder} " in text for text in _own(service, files))
    }
    problems += [
        f"folder: {one} has data, and nothing here says that it is {entry.name}'s; name an empty"
        " folder"
        for one in state.all("full")
        if one not in known
    ]
    return problems


def _own(service: Service, files: dict[str, str]) -> list[str]:
    return [files[path] for path in service.files if path in files]


def _check_members(entry: HostEntry, services: list[Service], files: dict[str, str]) -> list[str]:
    """A member of etcd that has data ignores other flags: it would not join the new ones."""
    changed = [
        path
        for service in services
        if entry.etcd and service is services[0]
        for path, text in service.files.items()
        if path in files and files[path] != text
    ]
    return [
        f"etcd: {path} would change, which members that have data ignore; change them with"
        " `etcdctl member`, and set `coordinator` in place of `etcd`"
        for path in changed
    ]


def _check_ports(services: list[Service], active: set[str], sockets: list[str]) -> list[str]:
    taken = set()
    for line in sockets:
        columns = line.split()
        if len(columns) > 3 and columns[3] == _LISTENING:
            taken.add(int(columns[1].rpartition(":")[2], 16))
    return [
        f"port: {port} is in use by another program; stop that, or set another port"
        for service in services
        if service.unit not in active
        for port in service.ports
        if port in taken
    ]


def _check_settings(host: Host, node: Service, program: str, insecure: bool) -> list[str]:
    """Have the daemon there check the settings, in a file that is gone afterwards."""
    text = next(iter(node.files.values()))
    flag = " --insecure" if insecure else ""
    done = host.run(
        f'file=$(mktemp) && cat > "$file" || exit 1\n'
        f'{shlex.quote(program)} --config "$file" --check-config{flag}\n'
        f'code=$?; rm -f "$file"; exit $code',
        text=text,
    )
    return [] if done.code == 0 else [f"settings: {done.reason}"]
