"""A network as an SVG picture, links coloured by what they carry."""

from html import escape

from ffrecord.topology._network import Network

_WIDTH, _ROW, _MARGIN = 1200, 220, 60


def draw(
    network: Network, *, labels: dict[str, str] | None = None, loads: dict[str, int] | None = None
) -> str:
    """Return an SVG document.

    Args:
        network: to draw: hosts of odd layers above, the rest below their switches.
        labels: Text by host instead of its name, such as its rank.
        loads: Messages on the fullest lane by link name: 1 is green, more is red.
    """
    places = _places(network)
    labels, loads = labels or {}, loads or {}
    height = max(y for _, y in places.values()) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        'font-family="sans-serif" font-size="11">'
    ]
    names = {link.name for link in network.links}
    for link in network.links:
        (x1, y1), (x2, y2) = places[link.source], places[link.target]
        back = f"{link.target}->{link.source}"
        load = max(loads.get(link.name, 0), loads.get(back, 0))
        if link.source > link.target and back in names:
            continue  # One line for both directions.
        colour = "#c33" if load > 1 else "#2a7" if load == 1 else "#999"
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{1 + 0.5 * min(link.lanes, 8):.1f}"><title>{escape(link.name)}: {load}'
            "</title></line>"
        )
    hosts = set(network.hosts)
    for node, (x, y) in places.items():
        shape = "#eef" if node in hosts else "#ffd"
        text = labels.get(node, node)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{9 if node in hosts else 15}" fill="{shape}" '
            f'stroke="#333"/><text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{escape(text)}'
            "</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(network: Network) -> dict[str, tuple[float, float]]:
    """Rows: hosts of the upper layer, its switches, the lower switches, their hosts."""
    hosts = set(network.hosts)
    first = {host: network.switch_of(number) for number, host in enumerate(network.hosts)}
    leaves = list(dict.fromkeys(first.values()))
    others = sorted({link.source for link in network.links} - hosts - set(leaves))
    upper = [leaf for leaf in leaves if network.shape and leaf.startswith("U")] or others
    lower = [leaf for leaf in leaves if leaf not in upper]
    rows = [
        [host for host in network.hosts if first[host] in upper],
        upper,
        lower,
        [host for host in network.hosts if first[host] in lower],
    ]
    places = {}
    for number, row in enumerate(row for row in rows if row):
        for place, node in enumerate(row):
            x = _MARGIN + (_WIDTH - 2 * _MARGIN) * (place + 0.5) / len(row)
            places[node] = (x, _MARGIN + number * _ROW * 0.7)
    return places
