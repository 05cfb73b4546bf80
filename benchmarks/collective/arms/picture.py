"""Curves as an SVG document: what each arm reached in each of some cases."""

import html
import statistics
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 130, 40, 46
COLOURS = {"ours": "#c2410c", "gloo": "#475569", "openmpi": "#0e7490"}
GRID = 0.25


def draw(title: str, cases: Sequence[str], curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """A curve for each arm through the medians of the cases, with a bar from least to most.

    Args:
        title: Stands above.
        cases: Names, from left to right.
        curves: For each arm, and each case, the rounds' shares of the bound.
    """
    top = max(1.0, *(max(rounds) for curve in curves.values() for rounds in curve)) * 1.05

    def x(case: int) -> float:
        return LEFT + (case + 0.5) * (WIDTH - LEFT - RIGHT) / len(cases)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - share / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#0f172a">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{html.escape(title)}</text>',
    ]
    for step in range(int(top / GRID) + 1):
        level = y(step * GRID)
        colour = "#0f172a" if step * GRID in (0, 1) else "#cbd5e1"
        parts.append(f'<path d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{step * GRID:.2f}</text>'
        )
    parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y(1) + 4:.1f}">bound</text>')
    for number, case in enumerate(cases):
        place = f'x="{x(number):.1f}" y="{HEIGHT - BOTTOM + 20}"'
        parts.append(f'<text {place} text-anchor="middle">{html.escape(case)}</text>')
    for number, (arm, curve) in enumerate(curves.items()):
        colour = COLOURS[arm]
        points = [(x(case), y(statistics.median(rounds))) for case, rounds in enumerate(curve)]
        path = "L".join(f"{across:.1f} {down:.1f}" for across, down in points)
        parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        for (across, down), rounds in zip(points, curve, strict=True):
            bar = f"M{across:.1f} {y(max(rounds)):.1f}V{y(min(rounds)):.1f}"
            parts.append(f'<path d="{bar}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3.5" fill="{colour}"/>')
        down = HEIGHT - BOTTOM - 60 + 20 * number
        parts.append(f'<path d="M{WIDTH - RIGHT + 8} {down}h18" stroke="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 32}" y="{down + 4}">{arm}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
