"""The state of a daemon from its admin port: `ffrecord status` and `ffrecord top`."""

import http.client
import itertools
import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from ffrecord._base import clock
from ffrecord._base.addresses import WEB
from ffrecord._cli.units import show_size

# (family, its labels in the order of their names) -> value.
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
_Read = TypeVar("_Read")

_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# An admin port is in the same network: a proxy for the Internet would get its token, or no answer.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ANSWER_BYTES_MAX = 1 << 23  # 4,096 slots with as many nodes each as there may be.
_USED = "ffrecord_quota_used_bytes"


@dataclass(frozen=True)
class Metrics:
    """The values of all counters and gauges at one time."""

    time_s: float  # Time of a clock that only goes forward.
    samples: Samples = field(repr=False)

    def get(self, family: str, **labels: str) -> float:
        """One value; 0 if there is none."""
        return self.samples.get((family, tuple(sorted(labels.items()))), 0.0)

    def sum(self, family: str, **labels: str) -> float:
        """The sum over all that have these labels, and others."""
        return sum(
            value
            for (name, has), value in self.samples.items()
            if name == family and set(labels.items()) <= set(has)
        )

    def labels(self, family: str) -> dict[str, str]:
        """The labels of a family of one."""
        return next((dict(has) for name, has in self.samples if name == family), {})

    def nonzero(self, family: str, label: str) -> dict[str, int]:
        """The values that are not 0, by one label."""
        return {
            dict(has)[label]: int(value)
            for (name, has), value in self.samples.items()
            if name == family and value
        }


def fetch(address: str, timeout_s: float, token_file: str | None = None) -> Metrics:
    """Ask the admin port at `address`, http://host:port, with the token in a file if it needs one.

    Raises:
        ValueError: the address is not one of HTTP.
        PermissionError: it needs a token, or another one.
        ConnectionError: nothing answers there, or something other than a daemon.
    """
    samples = _ask(address, "metrics", _parse, timeout_s, token_file)
    if not any(name == "ffrecord_build_info" for name, _ in samples):
        raise ConnectionError(
            None, f"the server at {address} is not ffrecordd; give the address of its --admin port"
        )
    return Metrics(clock.now(), samples)


def fetch_cluster(
    address: str, timeout_s: float, token_file: str | None = None, page: str = ""
) -> dict[str, Any]:
    """The cluster as the daemon whose admin port is at `address` knows it.

    `page`: "" for the state of the node, "/slots", "/lost", or "/plan" with its query.

    Raises:
        PermissionError, ConnectionError: as `fetch`; or it is of no cluster.
    """
    facts: dict[str, Any] = _ask(address, f"cluster{page}", json.loads, timeout_s, token_file)
    return facts


def check_one_cluster(places: Iterable[tuple[str, str]]) -> None:
    """Check that all answers are of one cluster: (address, id of its cluster) of each.

    A node that has not found its cluster yet, whose id is zeros, may be of any.

    Raises:
        ValueError: two are not; it names both.
    """
    found = [place for place in places if place[1].strip("0")]
    for first, other in itertools.pairwise(found):
        if other[1] != first[1]:
            raise ValueError(
                f"{first[0]} is of cluster {first[1]}, and {other[0]} of cluster {other[1]}: give"
                " addresses of one cluster"
            )


def _ask(
    address: str,
    page: str,
    read: Callable[[str], _Read],
    timeout_s: float,
    token_file: str | None,
) -> _Read:
    """One page of an admin port, read by `read`, which may raise ValueError."""
    url = address if "://" in address else f"http://{address}"
    if not url.startswith(WEB):
        raise ValueError(f"{address} is no address of an admin port; write http://HOST:PORT")
    token = "" if token_file is None else _read_token(token_file)
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/{page}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with _DIRECT.open(request, timeout=timeout_s) as answer:
            return read(answer.read(_ANSWER_BYTES_MAX).decode())
    except (OSError, ValueError, http.client.HTTPException) as error:
        code = error.code if isinstance(error, urllib.error.HTTPError) else None
        if code == HTTPStatus.UNAUTHORIZED:
            raise PermissionError(
                None, f"{url} requires its admin token; name its file with --token-file"
            ) from error
        if code == HTTPStatus.NOT_FOUND:
            raise ConnectionError(None, f"{url} is not a daemon that has a {page} page") from error
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ConnectionError(
            None, f"no admin port answers at {url} ({reason}); start ffrecordd with --admin"
        ) from error


def _read_token(path: str) -> str:
    """The first line of a file.

    Raises:
        ValueError: it is not a token.
    """
    token = Path(path).read_bytes().partition(b"\n")[0].strip()
    if not re.fullmatch(rb"[!-~]+", token):
        raise ValueError(f"{path} holds no token: its first line must be ASCII without spaces")
    return token.decode()


def _parse(text: str) -> Samples:
    """The samples of an answer.

    Raises:
        ValueError: a number is invalid, or not finite.
    """
    samples: Samples = {}
    for line in text.splitlines():
        if match := _SAMPLE.fullmatch(line):
            labels = tuple(sorted(_LABEL.findall(match[2] or "")))
            value, _ = float(match[3]), float(dict(labels).get("le", 0))
            if not math.isfinite(value):
                raise ValueError(f"{match[1]} is {value}")
            samples[match[1], labels] = value
    return samples


def status(metrics: Metrics) -> dict[str, Any]:
    """The facts of now, and the counts since the start."""
    info = metrics.labels("ffrecord_build_info")
    errors = {
        f"reads_{name}": count
        for name, count in metrics.nonzero("ffrecord_entries_total", "status").items()
        if name != "ok"
    }
    errors |= metrics.nonzero("ffrecord_errors_total", "code")
    for name in ("connections_refused", "connection_faults", "tokens_refused"):
        if count := int(metrics.get(f"ffrecord_{name}_total")):
            errors[name] = count
    if busy := int(metrics.sum("ffrecord_busy_total")):
        errors["busy"] = busy
    return {
        "state": next(iter(metrics.nonzero("ffrecord_state", "state")), "unknown"),
        "version": info.get("version", ""),
        "engine": info.get("engine", ""),
        "auth": info.get("auth", ""),
        "uptime_s": int(metrics.get("ffrecord_uptime_seconds")),
        "connections": {
            name: int(metrics.get("ffrecord_connections", transport=name))
            for name in ("tcp", "tls", "shm", "rdma")
        },
        "datasets": int(metrics.get("ffrecord_datasets")),
        "extents": int(metrics.get("ffrecord_extents")),
        "extent_bytes": int(metrics.get("ffrecord_extent_bytes")),
        "bad_extents": int(metrics.get("ffrecord_extents_bad")),
        "scrub_age_s": int(metrics.get("ffrecord_scrub_age_seconds")),
        "writes": next(iter(metrics.nonzero("ffrecord_read_only", "reason")), "good"),
        "quotas": {
            dict(has)["prefix"]: f"{show_size(metrics.samples[_USED, has])} of {show_size(limit)}"
            for (name, has), limit in metrics.samples.items()
            if name == "ffrecord_quota_bytes"
        },
        "tenant_weights": {
            dict(has)["prefix"] or "others": f"{int(weight)}, used "
            f"{metrics.samples['ffrecord_tenant_disk_seconds_total', has]:.1f} s"
            for (name, has), weight in metrics.samples.items()
            if name == "ffrecord_tenant_weight"
        },
        "disk_free_bytes": int(metrics.get("ffrecord_disk_free_bytes")),
        "missing_disks": int(metrics.get("ffrecord_disks_missing")),
        "disks": _disks(metrics),
        "reads": int(metrics.get("ffrecord_entries_total", status="ok")),
        "read_bytes": int(metrics.sum("ffrecord_read_bytes_total")),
        "written_bytes": int(metrics.get("ffrecord_written_bytes_total")),
        "errors": errors,
    }


def _disks(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """The facts of each disk, by its folder."""
    states = {
        dict(has)["disk"]: dict(has)["state"]
        for (name, has), value in metrics.samples.items()
        if name == "ffrecord_disk_state" and value
    }
    return {
        disk: {
            "state": state,
            "extents": int(metrics.get("ffrecord_data_extents", disk=disk)),
            "free_bytes": int(metrics.get("ffrecord_data_free_bytes", disk=disk)),
            "bad_extents": int(metrics.get("ffrecord_data_extents_bad", disk=disk)),
            "read_errors": int(metrics.get("ffrecord_data_read_errors_total", disk=disk)),
            "slow": int(metrics.get("ffrecord_data_slow_total", disk=disk)),
        }
        for disk, state in states.items()
    }


def show_status(facts: dict[str, Any]) -> str:
    """For people: one fact per line."""
    lines = []
    for name, value in facts.items():
        if name.endswith("_bytes"):
            value = show_size(value)
        elif isinstance(value, dict):
            value = ", ".join(f"{key} {_shown(count)}" for key, count in value.items()) or "none"
        lines.append(f"{name.removesuffix('_bytes').replace('_', ' '):<16}{value}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    """Return only the parts of a disk that are to be looked at."""
    if not isinstance(value, dict):
        return str(value)
    counts = [f"{value[name]} {name.replace('_', ' ')}" for name in ("bad_extents", "read_errors")]
    notes = [value["state"], f"{show_size(value['free_bytes'])} free"]
    return " ".join(notes + [count for count in counts if not count.startswith("0 ")])


def activity(before: Metrics, now: Metrics) -> dict[str, float]:
    """Activity between two readings: rates per second, times in seconds."""
    span_s = max(now.time_s - before.time_s, 1e-9)

    def gained(family: str, **labels: str) -> float:
        return max(now.sum(family, **labels) - before.sum(family, **labels), 0.0)

    rates = {
        "tcp_bytes_per_s": sum(
            gained("ffrecord_read_bytes_total", transport=name) for name in ("tcp", "tls")
        )
        / span_s,
        "shm_bytes_per_s": gained("ffrecord_read_bytes_total", transport="shm") / span_s,
        "rdma_bytes_per_s": gained("ffrecord_read_bytes_total", transport="rdma") / span_s,
        "written_bytes_per_s": gained("ffrecord_written_bytes_total") / span_s,
        "reads_per_s": gained("ffrecord_entries_total", status="ok") / span_s,
        "failed_per_s": (
            gained("ffrecord_entries_total") - gained("ffrecord_entries_total", status="ok")
        )
        / span_s,
        "batch_p50_s": _quantile(before, now, 0.5),
        "batch_p99_s": _quantile(before, now, 0.99),
    }
    for stage in ("queue", "disk", "grant", "network"):
        rates[f"{stage}_s_per_s"] = (
            gained("ffrecord_stage_seconds_sum", request="read", stage=stage) / span_s
        )
    for queue in ("batches", "disk_reads", "jobs"):
        rates[queue] = now.get("ffrecord_queue_depth", queue=queue)
    rates["connections"] = now.sum("ffrecord_connections")
    return rates


def _quantile(before: Metrics, now: Metrics, part: float) -> float:
    """The time under which `part` of the batches stayed: the bound of a bucket. 0 if none ended."""
    bounds = sorted(
        (float(dict(has)["le"]), value - before.samples.get((name, has), 0.0))
        for (name, has), value in now.samples.items()
        if name == "ffrecord_request_seconds_bucket" and ("request", "read") in has
    )
    count = bounds[-1][1] if bounds else 0.0
    if count <= 0:
        return 0.0
    finite = [bound for bound, gained in bounds if gained < part * count]
    at = min(len(finite), len(bounds) - 2)
    return bounds[at][0]


def show_activity(rates: dict[str, float]) -> str:
    """For people: a few lines that keep their places."""
    stages = "  ".join(
        f"{stage} {rates[f'{stage}_s_per_s']:6.2f}"
        for stage in ("queue", "disk", "grant", "network")
    )
    return "\n".join(
        (
            f"read       tcp {show_size(rates['tcp_bytes_per_s']):>9}/s   "
            f"shm {show_size(rates['shm_bytes_per_s']):>9}/s   "
            f"rdma {show_size(rates['rdma_bytes_per_s']):>9}/s   "
            f"written {show_size(rates['written_bytes_per_s']):>9}/s",
            f"reads      {rates['reads_per_s']:12,.0f}/s   failed {rates['failed_per_s']:10,.0f}/s",
            f"a batch    p50 <= {rates['batch_p50_s'] * 1e3:10.3f} ms   "
            f"p99 <= {rates['batch_p99_s'] * 1e3:10.3f} ms",
            f"its time   {stages}   (s/s, all batches)",
            f"queues     batches {rates['batches']:5.0f}   disk reads {rates['disk_reads']:5.0f}   "
            f"jobs {rates['jobs']:5.0f}   connections {rates['connections']:5.0f}",
        )
    )
