"""The features of this machine that the library can use, and how to get more."""

import importlib.metadata
import multiprocessing
import os
import platform
import re
import resource
import shutil
from pathlib import Path
from typing import Any

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._base.addresses import STORES
from ffrecord._cli import verdicts
from ffrecord._cli.features import absences
from ffrecord._cli.limits import cpu_limit
from ffrecord._cli.measure import examine_dataset, examine_place, show_rate
from ffrecord._cli.tls import examine_tls
from ffrecord._cli.units import show_size
from ffrecord._read.locations import is_file_system
from ffrecord._read.reader import Reader
from ffrecord.errors import CorruptionError

# Below this many descriptors, many files and workers at once run out of them.
_DESCRIPTORS_ENOUGH = 4096
# Below this much, some hundreds of RDMA connections are refused.
_LOCKED_ENOUGH_BYTES = 64 << 20
# The default of containers; torch's own workers fill it.
_SHARED_TOO_LITTLE_BYTES = 64 << 20
# So many records are read from a store, spread over its files.
_SAMPLE = 64


def examine(
    address: str | None = None,
    timeout_s: float = 30.0,
    tls_folder: str | None = None,
    *,
    seconds: float = 3.0,
    may_write: bool = False,
) -> dict[str, Any]:
    """Return the facts, and advice about those that should be different.

    Args:
        address: a daemon to contact, `ffrecord://host[:port]`, or a dataset of it to read from;
            record files at an object store, such as `s3://bucket/x`, to read from; a local file
            or folder to measure. Adds what is found to the facts.
        timeout_s: for that daemon or store.
        tls_folder: certificates to check, beside those that the address names.
        seconds: to measure a file, a folder or a dataset.
        may_write: measure a folder by a temporary file.

    Raises:
        ConnectionError: the daemon or store does not answer.
        OSError: the store refuses, or the file cannot be read.
        ValueError: the transport that the address requires is not available, or the folder has no
            file.
    """
    engine, reason = _ffrecord.probe_io_engine()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    memory = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    free, limit = _ffrecord.memory_room()
    facts: dict[str, Any] = {
        "ffrecord": _version("ffrecord"),
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "torch": _version("torch"),
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_limit": cpu_limit(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "memory_free_bytes": free,
        "memory_limit_bytes": limit,
        "batch_memory_max_bytes": _ffrecord.memory_cap_bytes(),
        "start_method": multiprocessing.get_start_method(allow_none=True) or "default",
        "io_engine": engine,
        "io_engine_reason": reason,
        "open_files_limit": soft,
        "locked_memory_limit_bytes": None if locked == resource.RLIM_INFINITY else locked,
        "shared_memory_bytes": memory.total if memory else 0,
        "shared_memory_free_bytes": memory.free if memory else 0,
        "features": absences(),
    }
    advice = []
    if address is not None and (address.startswith(STORES) or is_file_system(address)):
        facts |= _examine_store(address, timeout_s)
    elif address is not None and "://" in address:
        found, trouble = _examine_daemon(address, timeout_s, seconds)
        facts |= found
        advice += trouble
    elif address is not None:
        facts |= examine_place(address, seconds, may_write=may_write)
    named = re.search(r"[?&]tls=([^&]+)", address or "")
    if folder := tls_folder or (named and named[1]):
        found, trouble = examine_tls(folder)
        facts |= found
        advice += trouble
    if engine != "io_uring":
        advice.append(advice_on_threads(reason))
    if soft < _DESCRIPTORS_ENOUGH:
        advice.append(advice_on_files(soft, hard))
    if facts["shared_memory_bytes"] <= _SHARED_TOO_LITTLE_BYTES:
        advice.append(
            f"/dev/shm has {show_size(facts['shared_memory_bytes'])}: ffrecord uses none of it, but"
            " workers of torch's own DataLoader do; start a container with --shm-size=1g"
        )
    if facts["torch"] is None:
        advice.append("torch is not installed, and ffrecord.torch needs it: run pip install torch")
    said = [*facts.pop("verdicts", []), *verdicts.of_host(facts, examine_rdma())]
    return {**facts, "verdicts": said, "advice": advice}


def _examine_daemon(
    address: str, timeout_s: float, seconds: float
) -> tuple[dict[str, Any], list[str]]:
    transport, reason, round_trip_s = _ffrecord.probe_daemon(address, timeout_s=timeout_s)
    facts: dict[str, Any] = {
        "daemon": address,
        "transport": transport,
        "transport_reason": reason,
        "round_trip_us": round(round_trip_s * 1e6),
    }
    facts["verdicts"] = [verdicts.of_daemon(facts)]
    if not re.match(r"\w+://[^/?]+/[^?]", address):
        return facts, []
    try:
        facts |= examine_dataset(address, seconds / 3, timeout_s)
        facts["verdicts"].append(verdicts.of_dataset(facts))
        return facts, []
    except (OSError, CorruptionError) as error:  # The daemon itself answers.
        return facts, [f"{address} cannot be read: {error}"]


def advice_on_threads(
    reason: str, setting: Path = Path("/proc/sys/kernel/io_uring_disabled")
) -> str:
    """How to get io_uring, by the reason that it is not available and the kernel's setting."""
    threads = f"reads use a pool of threads, because {reason}"
    disabled = setting.read_text().strip() if setting.exists() else "0"
    if "this build has no" in reason:
        return threads
    if disabled != "0":
        return f"{threads}; run sysctl kernel.io_uring_disabled=0, which is {disabled}"
    if "not permitted" in reason or "not implemented" in reason:
        return (
            f"{threads}; in a container, allow the calls io_uring_setup, io_uring_enter and "
            "io_uring_register in its seccomp profile"
        )
    return threads


def advice_on_files(soft: int, hard: int) -> str:
    """How to get more descriptors than `soft`; the user may have `hard` of them."""
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_ENOUGH:
        how = (
            f"the hard limit is {hard}: root raises it, in /etc/security/limits.conf, with "
            "LimitNOFILE= of a service, or with --ulimit nofile= of a container"
        )
    else:
        how = f"run ulimit -n {_DESCRIPTORS_ENOUGH if hard == resource.RLIM_INFINITY else hard}"
    return f"at most {soft} files can be open at once: {how}"


def _examine_store(address: str, timeout_s: float) -> dict[str, Any]:
    with Reader(address, timeout_s=timeout_s) as reader:
        start = clock.now()
        count = len(reader)
        opened = clock.now()
        sample = range(0, count, max(1, count // _SAMPLE))[:_SAMPLE]
        reader.read(sample)
        read = clock.now()
        stats = {name: n for name, n in reader.stats().items() if name.startswith("store_")}
    facts = {
        "store": address,
        "store_records": count,
        "store_open_ms": round((opened - start) * 1e3, 1),
        "store_read_records": len(sample),
        "store_read_ms": round((read - opened) * 1e3, 1),
        **stats,
    }
    return {**facts, "verdicts": [verdicts.of_store(facts)]}


def examine_rdma() -> dict[str, Any]:
    """The RDMA ports of this machine, which of them are used, and why others are not."""
    why_absent, found = _ffrecord.probe_rdma()
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    ports = [
        {"device": device, "port": number, "address": address, "mtu": mtu, "skipped": skipped}
        for device, number, address, mtu, skipped in found
    ]
    usable = [port for port in ports if not port["skipped"]]
    advice = []
    if why_absent:
        advice.append(f"RDMA is not available: {why_absent}")
    elif not ports:
        advice.append(
            "the kernel lists no RDMA device: check that there is one and that its driver is loaded"
        )
    elif not usable:
        advice.append("no RDMA port can be used; the list of ports gives the reasons")
    if usable and 0 <= locked < _LOCKED_ENOUGH_BYTES:
        advice.append(
            f"only {show_size(locked)} of memory may be locked, and every RDMA connection locks "
            "some: run ulimit -l unlimited, or set LimitMEMLOCK=infinity for a service"
        )
    facts: dict[str, Any] = {
        "rails": ", ".join(f"{port['device']}:{port['port']}" for port in usable) or None,
        "why_absent": why_absent,
        "ports": ports,
        "locked_memory_limit_bytes": None if locked == resource.RLIM_INFINITY else locked,
    }
    return {**facts, "verdicts": [verdicts.of_rdma(facts)], "advice": advice}


def show_rdma(findings: dict[str, Any]) -> str:
    """For people: one port per line, then the rest."""
    lines = []
    for port in findings["ports"]:
        state = (
            f"skipped: {port['skipped']}"
            if port["skipped"]
            else f"address {port['address']}, MTU {port['mtu']}"
        )
        lines.append(f"{port['device']} port {port['port']}: {state}")
    rest = {name: value for name, value in findings.items() if name not in ("ports", "why_absent")}
    return "\n".join([*lines, show_findings(rest)])


def show_findings(findings: dict[str, Any]) -> str:
    """For people: one fact per line, then the advice."""
    lines = []
    for name, value in findings.items():
        if value is None and "_limit" in name:
            value = "unlimited"
        elif name.endswith("_bytes"):
            value = show_size(value)
        elif name.endswith("_bytes_per_s") and value is not None:
            value = f"{show_size(value)}/s"
        elif name.endswith("_share") and value is not None:
            value = f"{value:.0%}"
        if name == "features":
            lines += [f"feature {each:<22}{why or 'present'}" for each, why in value.items()]
        elif name == "rates":
            lines += [show_rate(rate) for rate in value]
        elif name not in ("advice", "verdicts") and value != "":
            label = name.removesuffix("_per_s").removesuffix("_bytes").replace("_", " ")
            lines.append(f"{label:<21} {value}")
    lines += findings.get("verdicts", [])
    lines += [f"advice: {line}" for line in findings["advice"]] or ["no problems found"]
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
