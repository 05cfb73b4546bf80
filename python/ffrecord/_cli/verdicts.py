"""The meaning of the findings of `ffrecord doctor`: a sentence each, with what to do."""

from typing import Any

from ffrecord._cli.units import show_size

Facts = dict[str, Any]

# Above this, a daemon is in another building: one read at a time waits for the way there.
_FAR_US = 1000
# Rates differ from run to run: one that is higher by this factor is said to be faster.
_CLEARLY = 1.25


def of_host(facts: Facts, rdma: Facts) -> list[str]:
    """The verdicts on the memory, the processors, and RDMA."""
    return [of_memory(facts), of_processors(facts), of_rdma(rdma)]


def of_memory(facts: Facts) -> str:
    """How much is left, and whether batches fit into it."""
    free, cap = facts["memory_free_bytes"], facts["batch_memory_max_bytes"]
    limit = facts["memory_limit_bytes"]
    if limit is None:
        line = f"memory: {show_size(free)} are free, and no control group limits it"
    else:
        line = f"memory: {show_size(free)} are free; the control group allows {show_size(limit)}"
    if free >= cap:
        return f"{line}; batches take at most {show_size(cap)}"
    return (
        f"{line}; batches may take more, up to {show_size(cap)}: lower memory_limit_bytes= of the"
        " loader, or stop what else uses memory"
        + ("" if limit is None else ", or raise the limit, such as --memory of a container")
    )


def of_processors(facts: Facts) -> str:
    """How many there are, and how many threads are of use."""
    count, limit = facts["cpus"], facts["cpu_limit"]
    if limit is None or limit >= count:
        return f"processors: {count}, all of which may be used"
    return (
        f"processors: the control group allows the time of {limit:g} of {count}: more than"
        f" {max(1, round(limit))} threads or workers of a loader wait for each other"
    )


def of_rdma(findings: Facts) -> str:
    """Whether daemons and other ranks are reached by it."""
    instead = "other machines are reached by TCP"
    count = len(findings["ports"])
    if not count:
        why = findings["why_absent"] or "the kernel lists no device"
        return f"RDMA: not available ({why}); {instead}"
    if findings["rails"] is None:
        return f"RDMA: none of {count} ports can be used, see ffrecord doctor rdma; {instead}"
    return (
        f"RDMA: can be used through {findings['rails']}; ffrecord net check on both machines"
        " measures it"
    )


def of_accelerator(facts: Facts) -> str:
    """Whether there is one, and how batches should reach it."""
    if facts["accelerator"] is None:
        return f"accelerator: {facts['accelerator_reason']}; batches stay where they are"
    pinned, pageable = facts["copy_pinned_bytes_per_s"], facts["copy_pageable_bytes_per_s"]
    line = (
        f"accelerator: {facts['accelerator']} takes batches at {show_size(pinned)}/s from"
        f" page-locked memory, at {show_size(pageable)}/s from other memory"
    )
    if not facts["copies_overlap"]:
        return f"{line}; its copies do not run beside kernels"
    if pinned > _CLEARLY * pageable:
        return f"{line}: use device= and pin_memory=True"
    return f"{line}: use device=, and pin_memory=True so that copies run beside kernels"


def of_daemon(facts: Facts) -> str:
    """How it is reached."""
    took_us = facts["round_trip_us"]
    line = (
        f"daemon: answers in {took_us} us over {facts['transport']}, because"
        f" {facts['transport_reason']}"
    )
    if took_us < _FAR_US:
        return line
    return f"{line}; that is far: read whole batches, and several ahead, as a loader does"


def of_dataset(facts: Facts) -> str:
    """How fast it is read."""
    rate = facts["dataset_read_bytes_per_s"]
    if rate is None:
        return "dataset: it has no records"
    return f"dataset: random records are read at {show_size(rate)}/s"


def of_store(facts: Facts) -> str:
    """How it answers."""
    if not facts["store_read_records"]:
        return "store: the files have no records"
    line = (
        f"store: {facts['store_read_records']} records came in {facts['store_read_ms']} ms, after"
        f" {facts['store_open_ms']} ms to open the files"
    )
    if repeated := facts.get("store_retries", 0):
        return f"{line}; {repeated} requests were repeated: the store fails or is overloaded"
    return f"{line}; with cache= later epochs are read from a local disk"
