"""Findings as sentences."""

from ffrecord._profile.causes import EXPLAINS, Cause, Findings

_STAGES = {
    "disk": "the disks of the daemon",
    "queue": "the queue of the daemon",
    "network": "the network between daemon and rank",
    "storage": "storage",
    "check": "verifying and expanding records",
    "order": "computing the order and submitting reads",
    "decode": "decoding and transforms",
    "collate": "collating",
    "transfer": "passing batches on",
    "stage": "copying tensors before the save",
    "write": "writing and committing",
    "load": "loading",
}
_NEXT = {
    "disk": "spread the dataset over more disks or daemons; `ffrecord top` shows their load",
    "queue": "the daemon has more work than it can do: add daemons, or give this job more weight",
    "network": "`ffrecord doctor` measures the link to the daemon",
    "storage": "raise num_workers, so that more reads overlap; `ffrecord doctor` measures the disk",
    "check": "raise num_workers while there are free cores",
    "order": "use ffrecord.torch.Sampler, and larger batches",
    "decode": "raise num_workers, or make the transform cheaper",
    "collate": "raise num_workers, or select only the needed columns=",
    "transfer": "mode='threads' passes batches without copying them",
    "stage": "raise stage_bytes_max only as far as memory allows; save less often",
    "write": "use async_save, or save less often",
    "load": "load before training begins",
}
_NEXT_OF_KIND = {
    "data": "raise num_workers; `ffrecord doctor` measures storage",
    "compute": "look at this rank's machine: other processes, its clock rate, its device",
    "communication": "fewer bytes (wire=torch.float16), larger buckets, or a faster network",
    "checkpoint": "use async_save, or save less often",
    "other": "look at what the program does between two steps: logging, evaluation, metrics",
}


def headline(findings: Findings) -> str:
    """One sentence: what is wrong, and how much of the time it takes."""
    if not findings.causes:
        return (
            f"healthy: a step takes {seconds(findings.step_s)}, and no single cause takes 5 % of "
            f"it ({findings.steps} steps)"
        )
    causes = findings.causes
    parts = [f"{_what(cause)} ({cause.saving:.0%})" for cause in causes]
    named = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return f"{findings.level}: a step takes {seconds(findings.step_s)}, held up by {named}"


def explained(cause: Cause, findings: Findings) -> list[str]:
    """Sentences about one cause: why, how often, what it costs, what to do next."""
    lines = [f"{_what(cause)}: {cause.saving:.0%} of the time of steps"]
    if cause.stages:
        shares = list(cause.stages.items())[:3]
        told = ", ".join(f"{_STAGES[name]} {share:.0%}" for name, share in shares)
        lines.append(f"why: {told}")
        if not cause.stage and shares[0][1] < EXPLAINS:
            lines[-1] += "; no single part explains 80 %"
    lines.append(f"how often: {_often(cause, findings.steps)}")
    lines.append(f"without it: a step would take {seconds(cause.without_s)}")
    lines.append(f"next: {_NEXT.get(cause.stage) or _NEXT_OF_KIND[cause.kind]}")
    return lines


def sentence(findings: Findings) -> str:
    """The verdict: one sentence with what, why, how often, what to do."""
    text = headline(findings)
    if findings.causes:
        cause = findings.causes[0]
        todo = _NEXT.get(cause.stage) or _NEXT_OF_KIND[cause.kind]
        text += (
            f"; {_often(cause, findings.steps)}; without it a step would take "
            f"{seconds(cause.without_s)}; next: {todo}"
        )
    return text + "."


def seconds(value: float) -> str:
    """A duration with three digits."""
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def _what(cause: Cause) -> str:
    where = "" if cause.rank is None else f" of rank {cause.rank}"
    if cause.rank is not None and cause.host:
        where += f" on {cause.host}"
    if cause.kind == "data":
        by = f": {_STAGES[cause.stage]}" if cause.stage else ""
        if cause.stage == "disk" and cause.place and cause.disk:
            by = f": disk {cause.disk} of the daemon"
        at = (
            f" {cause.place}" if cause.place and cause.stage in ("disk", "queue", "network") else ""
        )
        under = f" under {cause.place}" if cause.place and cause.stage == "storage" else ""
        return f"the data loader{where}{by}{at}{under}"
    if cause.kind == "compute":
        return f"slower computation{where}"
    if cause.kind == "checkpoint":
        by = f": {_STAGES[cause.stage]}" if cause.stage else ""
        return f"checkpoints{where}{by}"
    if cause.kind == "communication":
        return "communication that no computation hides"
    return f"work{where} outside of forward, backward and optimizer"


def _often(cause: Cause, steps: int) -> str:
    if cause.when:
        named = ", ".join(str(step + 1) for step in cause.when[:5])
        few = "step" if len(cause.when) == 1 else "steps"
        return f"not chronic: only in {few} {named} of {steps}"
    often = "chronic" if 2 * cause.steps >= steps else "again and again"
    return f"{often}: in {cause.steps} of {steps} steps"
