"""One page about a run, which needs nothing from elsewhere and has no script.

Names in a profile are a stranger's: text is escaped, and the page's own policy forbids scripts and
requests.
"""

import base64
import hashlib
import html

import numpy as np

from ffrecord._cli.data.page_style import STYLE
from ffrecord._profile.exports import KINDS
from ffrecord._profile.ranks import Rank
from ffrecord._profile.report import Run, notes, step_table, stragglers, time_table
from ffrecord._profile.steps import PHASES, Steps
from ffrecord._profile.timeline import LANES, MARKS, events_between, rows_by_work, usual_step
from ffrecord._profile.verdict import explained, seconds, sentence

_RANKS_MAX = 16
_STEPS_MAX = 400  # The last steps are in the chart of steps.
_SHOWN_STEPS = 3  # Steps in each timeline.
_RECTANGLES_MAX = 4000  # Rectangles in each timeline.
_WIDTH, _LANE, _LABEL = 1200, 14, 110
_COLOURS = {
    "data": "#d62728",
    "forward": "#1f77b4",
    "backward": "#17becf",
    "optimizer": "#2ca02c",
    "communication": "#ff7f0e",
    "checkpoint": "#9467bd",
    "other": "#7f7f7f",
}
_OWN_STYLE = (
    STYLE
    + """
svg { max-width: 100%; height: auto; font-size: 10px; }
svg text { fill: currentColor; }
pre { max-height: none; }
.key { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 1rem; }
"""
)


def page(run: Run, name: str) -> str:
    """The page about a run."""
    style = base64.b64encode(hashlib.sha256(_OWN_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style}'"
    steps = run.steps
    total = steps.seconds.max(axis=0)
    usual, longest = usual_step(steps), int(np.argmax(total))
    sections = [
        _section("Why", _paragraphs(run)),
        _section("Time of a step", _pre(step_table(steps))),
        _section("Steps", _key() + _chart(steps)),
        _section(f"Timeline: step {usual + 1}, a usual one", _timeline(steps, usual)),
        _section(f"Timeline: step {longest + 1}, the longest", _timeline(steps, longest)),
        _section("Effective training time", _pre(time_table(run))),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(name)}</title><style>{_OWN_STYLE}</style></head><body>"
        f"<header><h1>{_text(name)}</h1><p>{_text(sentence(run.findings))}</p></header><main>"
        + "\n".join(sections)
        + "</main></body></html>\n"
    )


def _text(text: str) -> str:
    return html.escape(text)


def _section(title: str, inner: str) -> str:
    return f"<h2>{_text(title)}</h2><section>{inner}</section>"


def _pre(lines: list[str]) -> str:
    return f"<pre>{_text(chr(10).join(lines))}</pre>"


def _paragraphs(run: Run) -> str:
    lists = []
    for cause in run.findings.causes:
        first, *others = explained(cause, run.findings)
        items = "".join(f"<li>{_text(line)}</li>" for line in others)
        lists.append(f"<p>{_text(first)}</p><ul>{items}</ul>")
    told = [line for line in [*stragglers(run.steps), *notes(run)] if line]
    return "".join(lists) + "".join(f"<p>{_text(line)}</p>" for line in told) or (
        "<p>No single cause takes 5 % of the time of steps.</p>"
    )


def _key() -> str:
    parts = [
        f'<svg class="key" viewBox="0 0 8 8"><rect width="8" height="8" fill="{_COLOURS[p]}"/>'
        f"</svg>{p}"
        for p in PHASES
    ]
    return f"<p>{''.join(parts)}</p>"


def _rectangle(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}" '
        f'fill="{fill}"><title>{_text(title)}</title></rect>'
    )


def _chart(steps: Steps) -> str:
    """Each step as a bar of its phases, on the rank with the most work of its own."""
    first = max(0, steps.count - _STEPS_MAX)
    shown = range(first, steps.count)
    own = steps.seconds - steps.phases["communication"]
    tallest = float(steps.seconds[:, first:].max()) or 1.0
    height, bar = 200.0, _WIDTH / max(len(shown), 1)
    parts = []
    for place, step in enumerate(shown):
        row, y = int(np.argmax(own[:, step])), height
        for phase in PHASES:
            value = float(steps.phases[phase][row, step])
            tall = value / tallest * height
            y -= tall
            if tall > 0.05:
                title = f"step {step + 1}, rank {steps.ranks[row].rank}: {phase} {seconds(value)}"
                parts.append(_rectangle(place * bar, y, bar * 0.9, tall, _COLOURS[phase], title))
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _timeline(steps: Steps, middle: int) -> str:
    """All events around a step, a group of lanes for each rank."""
    low = max(0, middle - _SHOWN_STEPS // 2)
    high = min(steps.count - 1, low + _SHOWN_STEPS - 1)
    begin, end = int(steps.begin_ns[:, low].min()), int(steps.end_ns[:, high].max())
    scale = (_WIDTH - _LABEL) / max(end - begin, 1)
    parts: list[str] = []
    rows = rows_by_work(steps, middle, _RANKS_MAX)
    for place, row in enumerate(rows):
        top = place * (_LANE * len(LANES) + 8)
        rank = steps.ranks[row]
        parts.append(f'<text x="0" y="{top + 11}">rank {rank.rank}</text>')
        parts += [
            f'<text x="44" y="{top + 11 + number * _LANE}">{lane}</text>'
            for number, lane in enumerate(LANES)
        ]
        room = _RECTANGLES_MAX // len(rows)
        parts += _events(rank, begin, end, scale, top, room)
    height = len(rows) * (_LANE * len(LANES) + 8)
    width = seconds((end - begin) / 1e9)
    parts.append(f'<text x="{_WIDTH - 90}" y="{height + 10}">width {width}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {height + 14}" role="img">{"".join(parts)}</svg>'


def _events(rank: Rank, begin: int, end: int, scale: float, top: int, count_max: int) -> list[str]:
    painted = events_between(rank, begin, end)
    longest = np.argsort(painted["begin_ns"] - painted["end_ns"])[:count_max]
    parts = []
    for event in painted[np.sort(longest)]:
        kind = int(event["kind"])
        mark = MARKS[kind]
        b, e = max(int(event["begin_ns"]), begin), min(int(event["end_ns"]), end)
        name = rank.names[int(event["name"])]
        title = f"{KINDS[kind]} {name}, {seconds((e - b) / 1e9)}"
        tall = _LANE - 3
        y = top + LANES.index(mark.lane) * _LANE + 2.0
        if mark.is_behind:  # A line, on which others stand.
            y, tall = y + tall / 3, tall // 3
        parts.append(
            _rectangle(
                _LABEL + (b - begin) * scale,
                y,
                (e - b) * scale,
                tall,
                _COLOURS[mark.phase],
                title,
            )
        )
    return parts
