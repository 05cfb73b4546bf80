"""The output of the demo: a summary for the terminal, and one HTML page that needs nothing else."""

import base64
import html as markup
import io
import itertools
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from charts import Line, Mark, Span, bars, curve, lanes
from PIL import Image

import ffrecord

TIMES = "\u00d7"
TILE = 56
TILES_OF_A_TOPIC = 3


class RunLike(Protocol):
    """The facts about a training run for the report."""

    def events(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        """All events of one kind."""


def columns_of(reader: ffrecord.Reader) -> tuple[str, str]:
    """Names of the picture's and the label's column in a packed folder."""
    schema = reader.schema
    image = next(name for name, kind in schema.items() if kind == "bytes")
    label = next(name for name, kind in schema.items() if kind == "i64")
    return image, label


def timeline(whole: RunLike, killed: RunLike, resumed: RunLike) -> dict[str, Any]:
    """Say when each run was at which step: seconds since its start; the resumed run's clock
    is the killed one's.
    """  # noqa: D205 - one sentence
    origins = {"whole": whole, "killed": killed, "resumed": killed}
    runs: dict[str, Any] = {}
    for name, run in (("whole", whole), ("killed", killed), ("resumed", resumed)):
        zero = origins[name].events("start")[0]["time"]
        runs[name] = {
            "start": run.events("start")[0]["time"] - zero,
            "steps": [[e["time"] - zero, e["step"]] for e in run.events("step")],
            "checkpoints": [[e["time"] - zero, e["step"]] for e in run.events("checkpoint")],
            "epochs": [[e["time"] - zero, e["step"], e["epoch"]] for e in run.events("epoch")],
        }
    runs["resumed_from_step"] = resumed.events("resume")[0]["step"]
    return runs


def stalls(run: RunLike) -> dict[str, Any]:
    """Say how long checkpoints kept training, and how long a step takes; medians."""
    times = [event["time"] for event in run.events("step")]
    seconds = [event["seconds"] for event in run.events("stall")]
    return {
        "checkpoints": len(seconds),
        "stall_ms": statistics.median(seconds) * 1000,
        "step_ms": statistics.median(b - a for a, b in itertools.pairwise(times)) * 1000,
    }


def overlap(run: RunLike, world_size: int) -> dict[str, Any]:
    """Say how much of the gradients' way went on behind backward; times of one step, in ms.

    A rank's backward computes until its last bucket is full, and waits from then on: for the other
    ranks until theirs are full, and then for gradients alone. All ranks have one clock here.
    """
    phases = [
        {event["step"]: event["phases_ns"] for event in run.events("step", rank)}
        for rank in range(world_size)
    ]
    moves = [run.events("end", rank)[0]["transfers"] for rank in range(world_size)]

    def buckets(rank: int, step: int) -> list[list[int]]:
        _, backward, after, _ = phases[rank][step]
        return [move for move in moves[rank] if backward <= move[2] <= after]

    def full(rank: int, step: int) -> int:
        return max(submitted for _, _, submitted, _, _ in buckets(rank, step))

    on_its_way = exposed = 0
    for step in phases[0]:
        last = max(full(rank, step) for rank in range(world_size))
        for _, _, _, began, ended in buckets(0, step):
            on_its_way += ended - began
            exposed += max(0, ended - max(began, last))
    by_length = sorted(phases[0], key=lambda step: phases[0][step][3] - phases[0][step][0])
    shown = by_length[len(by_length) // 2]
    zero = min(phases[rank][shown][0] for rank in range(world_size))

    def at(time_ns: int) -> float:
        return (time_ns - zero) / 1e6

    def compute(rank: int) -> list[float]:
        begin, backward, after, end = phases[rank][shown]
        return [at(moment) for moment in (begin, backward, full(rank, shown), after, end)]

    return {
        "hidden": 1 - exposed / on_its_way,
        "step": shown,
        "compute_ms": [compute(rank) for rank in range(world_size)],
        "buckets_ms": [
            [bucket, size, at(began), at(ended)]
            for bucket, size, _, began, ended in buckets(0, shown)
        ],
    }


def count(value: float) -> str:
    """Format a number of things for people: 6,900 or 81,000."""
    if value >= 10_000:
        digits = 10 ** (math.floor(math.log10(value)) - 2)
        value = round(value / digits) * digits
    return f"{value:,.0f}"


def mebibytes(size_bytes: float) -> str:
    """Format a size."""
    return f"{size_bytes / 2**20:.0f} MiB"


def summary(found: dict[str, Any], folder: pathlib.Path) -> str:
    """Sum the demo up in about fifteen lines, and show a step and the verdict on it."""
    resume, speed = found["resume"], found["throughput"]
    rate, training = speed["images_per_s"], found["training_images_per_s"]
    seconds = found["seconds"]

    def yes(check: str) -> str:
        return "same" if resume[check] else "DIFFERENT"

    lines = [
        f"pictures       {count(found['pictures'])} PNG files of {len(found['topics'])} topics, "
        f"{mebibytes(found['pictures_bytes'])}",
        f"packed         one file, {mebibytes(found['packed_bytes'])}, every record verified",
        f"training       {found['world_size']} ranks, {resume['steps']} steps in two epochs; "
        f"{found['left_out_of_training']} pictures above 8 megapixels left out",
        f"  from file    {count(training['embedded'])} images/s, decoding included",
        f"  from daemon  {count(training['daemon'])} images/s, decoding included",
        f"loss           {found['loss'][0][1]:.4f} -> {resume['final_loss_uninterrupted']:.4f}",
        f"checkpoints    {found['stalls']['checkpoints']}, saved beside training; each kept it for "
        f"{found['stalls']['stall_ms']:.1f} ms, a step takes {found['stalls']['step_ms']:.0f} ms",
        f"gradients      {100 * found['overlap']['hidden']:.0f} % of their way between the ranks "
        "went on while backward computed",
        f"kill           SIGKILL after step {resume['killed_after_step']}, resumed from the "
        f"checkpoint of step {resume['resumed_from_step']}",
        f"  samples      {yes('same_samples')} sequence as in the uninterrupted run",
        f"  losses       {yes('same_losses')} at every step, to the last bit",
        f"  parameters   {yes('same_parameters')} bits at the end, "
        f"sha256 {resume['parameters_sha256'][:16]}",
        f"random reads   warm {count(rate['ffrecord_warm'])} images/s, "
        f"{speed['warm_vs_folder']:.1f} x one file at a time ({count(rate['folder_warm'])})",
        f"               cold {count(rate['ffrecord_cold'])} images/s, "
        f"{speed['cold_vs_folder']:.1f} x one file at a time ({count(rate['folder_cold'])})",
        f"               daemon {count(rate['daemon_warm'])} images/s on this machine",
        f"took           {seconds['all']:.0f} s",
        f"report         {folder / 'report.html'}",
        "",
        "a profiled run that saves beside its collectives:",
        *found["profile"],
        f"its page       {folder / 'profile.html'}",
    ]
    return "\n".join(lines)


def strip(packed: pathlib.Path, topics: Sequence[str]) -> str:
    """Show some pictures of each topic, from the packed file, inside the page."""
    reader = ffrecord.open(packed)
    image, label = columns_of(reader)
    chosen: dict[int, list[str]] = {}
    for batch in reader.batches(256):
        for picture, topic in zip(batch[image], batch[label].tolist(), strict=True):
            tiles = chosen.setdefault(topic, [])
            if len(tiles) < TILES_OF_A_TOPIC and 1500 < picture.nbytes < 40_000:
                tiles.append(tile(picture.tobytes()))
    cells = [
        f'<figure><div class="tiles">{"".join(tiles)}</div>'
        f"<figcaption>{markup.escape(topics[topic].replace('_', ' '))}</figcaption></figure>"
        for topic, tiles in sorted(chosen.items())
        if tiles
    ]
    return f'<div class="topics">{"".join(cells)}</div>'


def tile(png: bytes) -> str:
    """Shrink a picture and put it into an img element."""
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    picture.thumbnail((TILE, TILE))
    out = io.BytesIO()
    picture.quantize(64).save(out, "PNG", optimize=True)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'


def smooth(points: list[list[float]]) -> list[tuple[float, float]]:
    """Average the loss over its neighbours, so that the trend shows."""
    reach = max(1, len(points) // 24)
    return [
        (
            points[i][0],
            sum(p[1] for p in points[max(0, i - reach) : i + reach + 1])
            / len(points[max(0, i - reach) : i + reach + 1]),
        )
        for i in range(len(points))
    ]


def loss_chart(found: dict[str, Any]) -> str:
    """Draw the loss of the uninterrupted run."""
    points = [(step, loss) for step, loss in found["loss"]]
    epochs = [step for _, step, _ in found["timeline"]["whole"]["epochs"]][1:]
    return curve(
        [Line(points, "faint", "each step"), Line(smooth(found["loss"]), "first", "smoothed")],
        x_name="step",
        y_name="loss",
        rules=[(step, "from here on: from the daemon") for step in epochs],
    )


def resume_chart(found: dict[str, Any]) -> str:
    """Draw how far each run was at which time."""
    runs = found["timeline"]

    def track(name: str, first: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return first + [(at, step) for at, step in runs[name]["steps"]]

    back = float(runs["resumed_from_step"])
    whole = track("whole", [(0.0, 0.0)])
    killed = track("killed", [(0.0, 0.0)])
    resumed = track("resumed", [(runs["resumed"]["start"], back)])
    died_at, died_step = killed[-1]
    saved = runs["killed"]["checkpoints"] + runs["resumed"]["checkpoints"]
    return curve(
        [
            Line(whole, "faint", "uninterrupted"),
            Line(killed, "bad", "killed"),
            Line([(died_at, died_step), (resumed[0][0], back)], "gap", ""),
            Line(resumed, "first", "resumed"),
        ],
        x_name="seconds",
        y_name="step",
        marks=[
            *(Mark(at, step, "dot", f"checkpoint, step {step}") for at, step in saved),
            Mark(died_at, died_step, "cross", f"SIGKILL after step {died_step:.0f}"),
        ],
        labels=[
            (died_at, died_step, -12, f"SIGKILL after step {died_step:.0f}"),
            (resumed[0][0], back, 20, f"resumed from step {back:.0f}"),
        ],
    )


def overlap_chart(found: dict[str, Any]) -> str:
    """Draw one step: what was computed, and which gradients were on their way meanwhile."""
    rows = {}
    for rank, (begin, backward, full, after, end) in enumerate(found["overlap"]["compute_ms"]):
        rows[f"rank {rank}"] = [
            Span(begin, backward, "other", "forward"),
            Span(backward, full, "first", "backward"),
            Span(full, after, "faint", "waits"),
            Span(after, end, "other", "optimizer"),
        ]
    rows["gradients"] = [
        Span(began, ended, "second", f"bucket {bucket}, {size / 1024:.0f} KiB")
        for bucket, size, began, ended in found["overlap"]["buckets_ms"]
    ]
    return lanes(rows, x_name="milliseconds")


def throughput_chart(found: dict[str, Any]) -> str:
    """Draw pictures a second of each way of reading, warm and cold."""
    rate = found["throughput"]["images_per_s"]
    training = found["training_images_per_s"]
    return bars(
        {
            "random batches, warm": [
                ("FFRecord, file", rate["ffrecord_warm"], "first"),
                ("FFRecord, daemon", rate["daemon_warm"], "second"),
                ("folder of files", rate["folder_warm"], "other"),
            ],
            "random batches, cold": [
                ("FFRecord, file", rate["ffrecord_cold"], "first"),
                ("folder of files", rate["folder_cold"], "other"),
            ],
            "training, decoding included": [
                ("from the file", training["embedded"], "first"),
                ("from the daemon", training["daemon"], "second"),
            ],
        },
        unit="images/s",
    )


def table(found: dict[str, Any]) -> str:
    """List what was checked and how long each part took."""
    names = {
        "same_samples": "sequence of samples",
        "same_losses": "loss of every step",
        "same_parameters": "bits of all parameters",
        "samples_each_once_an_epoch": "no sample twice in an epoch",
    }
    rows = [
        f'<tr><td>{what}</td><td class="{"good" if found["resume"][key] else "bad"}">'
        f"{'equal' if found['resume'][key] else 'DIFFERENT'}</td></tr>"
        for key, what in names.items()
    ]
    same = found["throughput"]["same_bytes"]
    rows.append(
        "<tr><td>bytes of all pictures, packed and in the folder</td>"
        f'<td class="{"good" if same else "bad"}">{"equal" if same else "DIFFERENT"}</td></tr>'
    )
    times = [
        f"<tr><td>{markup.escape(what)}</td><td>{value:.1f} s</td></tr>"
        for what, value in found["seconds"].items()
    ]
    return (
        f'<div class="two"><table><caption>Checked</caption>{"".join(rows)}</table>'
        f"<table><caption>Time taken</caption>{''.join(times)}</table></div>"
    )


def cards(found: dict[str, Any]) -> str:
    """The four figures to take home."""
    resume, speed = found["resume"], found["throughput"]
    items = [
        (count(found["pictures"]), "pictures in one file", mebibytes(found["packed_bytes"])),
        (
            f"{speed['warm_vs_folder']:.1f}{TIMES}",
            "a folder of files, warm",
            f"{count(speed['images_per_s']['ffrecord_warm'])} images/s",
        ),
        (
            f"{speed['cold_vs_folder']:.1f}{TIMES}",
            "a folder of files, cold",
            f"{count(speed['images_per_s']['ffrecord_cold'])} images/s",
        ),
        (
            "exact" if resume["exact"] else "NOT EXACT",
            "resume after SIGKILL",
            f"final loss {resume['final_loss_resumed']:.6f}",
        ),
    ]
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><div class="big">{big}</div><div>{what}</div>'
            f'<div class="muted">{more}</div></div>'
            for big, what, more in items
        )
        + "</div>"
    )


def html(found: dict[str, Any], packed: pathlib.Path) -> str:
    """Make the page."""
    style = (pathlib.Path(__file__).with_name("report.css")).read_text()
    resume = found["resume"]
    parts = itertools.chain(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>FFRecord demo</title><style>{style}</style></head><body><main>",
            "<h1>FFRecord, end to end</h1>",
            f'<p class="lead">{count(found["pictures"])} pictures of {len(found["topics"])} topics '
            f"were packed into one file, learned by {found['world_size']} ranks, half from the "
            "file and half from a daemon; one run was killed and went on as if it had not been."
            "</p>",
            cards(found),
        ],
        section(
            "Kill and resume",
            f"Both ranks were killed with SIGKILL after step {resume['killed_after_step']} and "
            f"started again. They continued from the checkpoint of step "
            f"{resume['resumed_from_step']}, saw the same samples in the same order as a run that "
            "nobody touched, and ended with the same bits. Dots are checkpoints, saved beside "
            f"training: each kept it for {found['stalls']['stall_ms']:.1f} ms, where a step "
            f"takes {found['stalls']['step_ms']:.0f} ms.",
            resume_chart(found),
        ),
        section(
            "Loss",
            "Cross-entropy over the topics, mean of both ranks. Gradients were reduced by "
            "FFRecord's ring.",
            loss_chart(found),
        ),
        section(
            "Overlap",
            f"Step {found['overlap']['step']}, the one of median length. A bucket of gradients "
            "leaves as soon as backward has filled it: over the whole run, "
            f"{100 * found['overlap']['hidden']:.0f} % of the time that gradients were on their "
            "way lay before the slower rank had computed its last one. A rank that waits longer "
            "waits for the other to compute.",
            overlap_chart(found),
        ),
        section(
            "Profile of a step",
            "A short run under ffrecord prof: records come from the daemon, saves go to it, and "
            "pacing keeps their bytes in the gaps between the collectives. "
            '<a href="profile.html">Its page</a> has the whole timeline.',
            f"<pre>{markup.escape(chr(10).join(found['profile']))}</pre>",
        ),
        section(
            "Throughput",
            "One pass of random batches of 128 over all pictures, every checksum verified, "
            "against opening and reading the same files one by one; median of "
            f"{len(next(iter(found['throughput']['rounds'].values())))} rounds. Each group has a "
            "scale of its own.",
            throughput_chart(found),
        ),
        section("The pictures", "Drawn from the packed file.", strip(packed, found["topics"])),
        section("Details", "", table(found)),
        ["</main></body></html>\n"],
    )
    return "\n".join(parts)


def section(title: str, text: str, body: str) -> list[str]:
    """Put a part of the page together."""
    return [f"<section><h2>{title}</h2>", f"<p>{text}</p>" if text else "", body, "</section>"]
