"""Charts as SVG text: curves with axes, and groups of bars. Colours come from the page's style."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 840, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 30, 44


class Line(NamedTuple):
    """A curve: points in data coordinates, a style's name, and a name for the legend."""

    points: Sequence[tuple[float, float]]
    style: str
    name: str


class Mark(NamedTuple):
    """A dot or a cross at a point, with a text that shows when pointed at."""

    x: float
    y: float
    shape: str
    tip: str


class Span(NamedTuple):
    """A bar from `begin` to `end` in a lane of a timeline, with a text and a style's name."""

    begin: float
    end: float
    style: str
    name: str


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round values that cover [low, high] in about `count` steps."""
    raw = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Format a tick."""
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.1f}"


def curve(
    lines: Sequence[Line],
    *,
    x_name: str,
    y_name: str,
    rules: Sequence[tuple[float, str]] = (),
    marks: Sequence[Mark] = (),
    labels: Sequence[tuple[float, float, int, str]] = (),
) -> str:
    """Draw curves over common axes.

    `rules` are vertical lines; `labels` are texts some pixels down from a point, or up and to the
    left of it where that is negative.
    """
    points = [point for line in lines for point in line.points]
    x_high = max(x for x, _ in points)
    y_high = max(y for _, y in points) * 1.04

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / x_high * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / y_high * (HEIGHT - TOP - BOTTOM),
        )

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{y_name} by {x_name}">']
    for value in ticks(0, y_high, 5):
        _, y = at(0, value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{number(value)}</text>'
        )
    for value in ticks(0, x_high, 8):
        x, y = at(value, 0)
        parts.append(
            f'<text class="tick middle" x="{x:.1f}" y="{y + 18:.1f}">{number(value)}</text>'
        )
    parts.append(
        f'<text class="name middle" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">'
        f"{html.escape(x_name)}</text>"
    )
    parts.append(f'<text class="name" x="{LEFT - 40}" y="{TOP - 12}">{html.escape(y_name)}</text>')
    for value, text in rules:
        x, _ = at(value, 0)
        parts.append(f'<path class="rule" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text class="note" x="{x + 6:.1f}" y="{TOP + 12}">{html.escape(text)}</text>'
        )
    for line in lines:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in line.points))
        parts.append(f'<path class="line {line.style}" d="M{path}"/>')
    for mark in marks:
        x, y = at(mark.x, mark.y)
        shape = (
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
            if mark.shape == "dot"
            else f'<path class="cross" d="M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12">'
        )
        end = "</circle>" if mark.shape == "dot" else "</path>"
        parts.append(f"{shape}<title>{html.escape(mark.tip)}</title>{end}")
    for x_value, y_value, down, text in labels:
        x, y = at(x_value, y_value)
        side = " end" if down < 0 else ""
        parts.append(
            f'<text class="note{side}" x="{x:.1f}" y="{y + down:.1f}">{html.escape(text)}</text>'
        )
    parts.append(legend([line for line in lines if line.name]))
    return "".join([*parts, "</svg>"])


def legend(lines: Sequence[Line]) -> str:
    """Name the curves, from the right, above the chart."""
    parts = []
    x = WIDTH - RIGHT
    for line in reversed(lines):
        x -= 7.2 * len(line.name)
        parts.append(
            f'<text class="name" x="{x:.0f}" y="{TOP - 12}">{html.escape(line.name)}</text>'
        )
        parts.append(f'<path class="line {line.style}" d="M{x - 24:.0f} {TOP - 16}h18"/>')
        x -= 40
    return "".join(parts)


def bars(groups: Mapping[str, Sequence[tuple[str, float, str]]], *, unit: str) -> str:
    """Draw groups of horizontal bars; each group has its own scale."""
    row, gap, name_width, value_width = 26, 40, 170, 130
    height = sum(gap + row * len(group) for group in groups.values())
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="throughput">']
    y = 0.0
    for title, group in groups.items():
        parts.append(f'<text class="title" x="0" y="{y + 22:.0f}">{html.escape(title)}</text>')
        y += gap - 6
        high = max(value for _, value, _ in group)
        for name, value, style in group:
            width = max(2.0, value / high * (WIDTH - name_width - value_width))
            parts.append(
                f'<text class="name end" x="{name_width - 10}" y="{y + 15:.0f}">'
                f"{html.escape(name)}</text>"
                f'<rect class="bar {style}" x="{name_width}" y="{y:.0f}" width="{width:.1f}" '
                f'height="{row - 6}" rx="3"/>'
                f'<text class="value" x="{name_width + width + 8:.1f}" y="{y + 15:.0f}">'
                f"{value:,.0f} {html.escape(unit)}</text>"
            )
            y += row
        y += 6
    return "".join([*parts, "</svg>"])


def lanes(rows: Mapping[str, Sequence[Span]], *, x_name: str) -> str:
    """Draw a timeline: rows of spans over one axis, which begins at 0."""
    row, left = 44, 110
    x_high = max(span.end for spans in rows.values() for span in spans)
    bottom = TOP + row * len(rows)

    def at(x: float) -> float:
        return left + x / x_high * (WIDTH - left - RIGHT)

    parts = [f'<svg viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" aria-label="timeline">']
    for value in ticks(0, x_high, 8):
        x = at(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
        parts.append(
            f'<text class="tick middle" x="{x:.1f}" y="{bottom + 18}">{number(value)}</text>'
        )
    parts.append(
        f'<text class="name middle" x="{(left + WIDTH - RIGHT) / 2}" y="{bottom + 38}">'
        f"{html.escape(x_name)}</text>"
    )
    for place, (title, spans) in enumerate(rows.items()):
        y = TOP + row * place
        parts.append(
            f'<text class="name end" x="{left - 10}" y="{y + 26}">{html.escape(title)}</text>'
        )
        for span in spans:
            width = max(1.5, at(span.end) - at(span.begin))
            parts.append(
                f'<rect class="bar {span.style}" x="{at(span.begin):.1f}" y="{y + 8}" '
                f'width="{width:.1f}" height="{row - 16}" rx="3">'
                f"<title>{html.escape(span.name)}</title></rect>"
            )
            if width > 7.5 * len(span.name):
                parts.append(
                    f'<text class="inside middle" x="{at(span.begin) + width / 2:.1f}" '
                    f'y="{y + 27}">{html.escape(span.name)}</text>'
                )
    return "".join([*parts, "</svg>"])
