"""Curves through points with two measures, as an SVG document."""

import html
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 40, 50
COLOURS = ("#475569", "#c2410c", "#0e7490", "#7c3aed")
_STEP = 0.5  # Between two lines of the grid, above 1.

Point = tuple[float, float]


def draw(title: str, across: str, curves: Mapping[str, Sequence[Point]]) -> str:
    """Draw each curve through its points, in their order.

    Args:
        title: Stands above, and names what goes up; from 1.
        across: Names what goes from left to right; from 0 to 1.
        curves: The points of each, (across, up).
    """
    top = max(2.0, *(up for points in curves.values() for _, up in points)) * 1.05

    def x(value: float) -> float:
        return LEFT + value * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - 1) / (top - 1) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#0f172a">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{html.escape(title)}</text>',
        f'<text x="{x(0.5):.1f}" y="{HEIGHT - 12}" text-anchor="middle">'
        f"{html.escape(across)}</text>",
    ]
    for number in range(int((top - 1) / _STEP) + 1):
        level = 1 + number * _STEP
        colour = "#0f172a" if number == 0 else "#cbd5e1"
        parts.append(f'<path d="M{LEFT} {y(level):.1f}H{WIDTH - RIGHT}" stroke="{colour}"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{level:.1f}</text>'
        )
    for quarter in range(5):
        place = f'x="{x(quarter / 4):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text {place} text-anchor="middle">{quarter / 4:.2f}</text>')
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [(x(one), y(other)) for one, other in points]
        path = "L".join(f"{one:.1f} {other:.1f}" for one, other in places)
        parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        parts += [
            f'<circle cx="{one:.1f}" cy="{other:.1f}" r="4" fill="{colour}"/>'
            for one, other in places
        ]
        down = TOP + 20 * number
        parts.append(f'<circle cx="{WIDTH - RIGHT + 16}" cy="{down}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 28}" y="{down + 4}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
