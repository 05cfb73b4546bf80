"""A run as a trace for Perfetto, and as text for Prometheus."""

from typing import Any

from ffrecord._base import recording
from ffrecord._profile.ranks import latest
from ffrecord._profile.report import Run, spent
from ffrecord._profile.steps import PHASES

KINDS = {
    recording.WAIT: "wait for a batch",
    recording.BACKWARD: "backward",
    recording.OPTIMIZER: "optimizer",
    recording.SAVE: "blocked by a save",
    recording.COMMIT: "save: write and commit",
    recording.LOAD: "load a checkpoint",
    recording.COLLECTIVE: "collective",
    recording.SOURCE: "loader begins",
    recording.READ: "read",
    recording.DAEMON_READ: "read at a daemon",
    recording.DECODE: "decode",
    recording.COLLATE: "collate",
    recording.FETCH: "fetch",
    recording.TRANSFER: "transfer",
    recording.STAGE: "save: copy tensors",
    recording.SUBMIT: "submit reads",
    recording.UPLOAD: "upload",
}


def trace(run: Run) -> dict[str, Any]:
    """All events, for https://ui.perfetto.dev and tools that read the traces of torch's profiler.

    A process is a rank. Times are microseconds from the begin of the run.
    """
    ranks = latest(run.ranks)
    start = min(rank.begin_ns for rank in ranks)
    rows: list[dict[str, Any]] = []
    for rank in ranks:
        title = f"rank {rank.rank} ({rank.host})"
        rows.append({"name": "process_name", "ph": "M", "pid": rank.rank, "args": {"name": title}})
        for event in rank.events:
            kind = int(event["kind"])
            args = {name: int(event[name]) for name in ("size_bytes", "detail", "first", "second")}
            rows.append(
                {
                    "name": KINDS.get(kind, f"kind {kind}"),
                    "cat": "ffrecord",
                    "ph": "X",
                    "ts": (int(event["begin_ns"]) - start) / 1e3,
                    "dur": (int(event["end_ns"]) - int(event["begin_ns"])) / 1e3,
                    "pid": rank.rank,
                    "tid": int(event["thread"]),
                    "args": {"name": rank.names[int(event["name"])], **args},
                }
            )
    rows += _step_rows(run, start)
    about = {"backend": "ffrecord", "rank": ranks[0].rank, "world_size": len(ranks)}
    return {"traceEvents": rows, "displayTimeUnit": "ms", "distributedInfo": about}


def _step_rows(run: Run, start: int) -> list[dict[str, Any]]:
    steps = run.steps
    return [
        {
            "name": f"step {number + 1}",
            "cat": "ffrecord",
            "ph": "X",
            "ts": (int(steps.begin_ns[row, number]) - start) / 1e3,
            "dur": int(steps.end_ns[row, number] - steps.begin_ns[row, number]) / 1e3,
            "pid": rank.rank,
            "tid": "steps",
        }
        for row, rank in enumerate(steps.ranks)
        for number in range(steps.count)
    ]


def prometheus(run: Run) -> str:
    """The figures of a run as text that Prometheus's node exporter and push gateway take."""
    steps, findings = run.steps, run.findings
    lines = ["# TYPE ffrecord_step_seconds gauge"]
    for row, rank in enumerate(steps.ranks):
        for phase in PHASES:
            value = float(steps.phases[phase][row].mean())
            lines.append(f'ffrecord_step_seconds{{rank="{rank.rank}",phase="{phase}"}} {value:.9f}')
    lines.append("# TYPE ffrecord_profiled_steps gauge")
    lines.append(f"ffrecord_profiled_steps {steps.count}")
    lines.append("# TYPE ffrecord_came_last_total counter")
    for row, rank in enumerate(steps.ranks):
        came = int((steps.last == row).sum())
        lines.append(f'ffrecord_came_last_total{{rank="{rank.rank}"}} {came}')
    lines.append("# TYPE ffrecord_cause_ratio gauge")
    for cause in findings.causes:
        where = "all" if cause.rank is None else str(cause.rank)
        labels = f'kind="{cause.kind}",stage="{cause.stage}",rank="{where}"'
        lines.append(f"ffrecord_cause_ratio{{{labels}}} {cause.saving:.6f}")
    lines.append("# TYPE ffrecord_run_seconds gauge")
    lines += [
        f'ffrecord_run_seconds{{part="{part}"}} {value:.6f}' for part, value in spent(run).items()
    ]
    return "\n".join(lines) + "\n"
