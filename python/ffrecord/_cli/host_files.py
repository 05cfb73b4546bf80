"""The settings and systemd units that `ffrecord cluster up` writes on a host."""

import json
from dataclasses import dataclass, field

from ffrecord._cli.hosts_file import HostEntry, HostsFile

_NOTE = "# Written by `ffrecord cluster up`, which undoes changes that are made here.\n"


@dataclass(frozen=True)
class Service:
    """One unit of a host: its name, the files that it consists of, and its folders of data."""

    unit: str
    files: dict[str, str]  # Path -> text.
    folders: list[str]
    ports: list[int] = field(default_factory=list)

    @property
    def marker(self) -> str:
        """A file that is there while the unit may run without having read the others."""
        return f"{next(iter(self.files))}.restart"


def node_service(cluster: HostsFile, host: HostEntry, program: str) -> Service:
    """The daemon of a host; `program` is the full path of ffrecordd there."""
    unit = f"ffrecord-{cluster.cluster}-{host.name}.service"
    config = f"{cluster.config_folder}/{cluster.cluster}/{host.name}.toml"
    after = f" {_etcd_unit(cluster, host)}" if host.etcd else ""
    flags = " --insecure" if cluster.insecure else ""
    text = f"""{_NOTE}[Unit]
Description=FFRecord storage daemon, node {host.name} of cluster {cluster.cluster}
After=network-online.target{after}
Wants=network-online.target

[Service]
Type=notify
ExecStart={program} --config {config}{flags}
{_sandbox(cluster, host.data)}
LimitMEMLOCK=1G

[Install]
WantedBy=multi-user.target
"""
    files = {config: _settings_text(cluster, host), f"{cluster.unit_folder}/{unit}": text}
    ports = [_port(host.listen), *([_port(host.admin)] if host.admin else [])]
    return Service(unit, files, host.data, ports)


def etcd_service(cluster: HostsFile, host: HostEntry, program: str) -> Service:
    """The member of etcd on a host that has one; `program` is the full path of etcd there."""
    unit = _etcd_unit(cluster, host)
    client, peer = (f"http://{one}" for one in (host.etcd_client_address, host.etcd_peer_address))
    members = ",".join(f"{one.name}=http://{one.etcd_peer_address}" for one in cluster.members)
    text = f"""{_NOTE}[Unit]
Description=etcd of the FFRecord cluster {cluster.cluster}, member {host.name}
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
ExecStart={program} --name {host.name} --data-dir {host.etcd} \\
    --listen-client-urls {client} --advertise-client-urls {client} \\
    --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} \\
    --initial-cluster {members} \\
    --initial-cluster-token ffrecord-{cluster.cluster} --initial-cluster-state new
{_sandbox(cluster, [host.etcd])}

[Install]
WantedBy=multi-user.target
"""
    ports = [_port(host.etcd_client_address), _port(host.etcd_peer_address)]
    return Service(unit, {f"{cluster.unit_folder}/{unit}": text}, [host.etcd], ports)


def _etcd_unit(cluster: HostsFile, host: HostEntry) -> str:
    return f"ffrecord-{cluster.cluster}-{host.name}-etcd.service"


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _sandbox(cluster: HostsFile, folders: list[str]) -> str:
    """The lines that both kinds of units need, and nothing else."""
    return f"""User={cluster.user}
Restart=on-failure
RestartSec=1
TimeoutStopSec=10
UMask=0077
LimitNOFILE=1048576
LimitCORE=0
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={" ".join(folders)}
PrivateTmp=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
LockPersonality=yes"""


def _settings_text(cluster: HostsFile, host: HostEntry) -> str:
    settings = {
        "cluster": cluster.cluster,
        "coordinator": cluster.coordinator,
        "node": host.name,
        "domain": host.domain,
        "weight": host.weight,
        "data": host.data,
        "listen": host.listen,
        "advertise": host.advertise,
        "admin": host.admin,
        **cluster.settings,
    }
    # JSON's numbers, texts and lists of texts are TOML's too.
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items() if value != ""]
    return _NOTE + "".join(lines)
