"""Draws a report of the runner: `plot.py REPORT.json PICTURE.svg`. Needs matplotlib."""

import json
import pathlib
import sys

import matplotlib
from matplotlib import pyplot


def main() -> None:
    """Draw a bar for each arm, ours in another colour, with the quartiles' distance."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ffrecord"  # The same picture for the same report.
    source, picture = map(pathlib.Path, sys.argv[1:])
    report = json.loads(source.read_text())
    arms = sorted(report["arms"], key=lambda arm: arm["median"])
    names = [arm["name"] for arm in arms]
    colours = ["#c2410c" if "ours" in name else "#64748b" for name in names]
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.3 * len(arms)), layout="constrained")
    axes.barh(
        names,
        [arm["median"] for arm in arms],
        xerr=[arm["iqr"] / 2 for arm in arms],
        color=colours,
        ecolor="#0f172a",
        capsize=2,
    )
    axes.set_xlabel(f"{report['unit']}, median of {len(arms[0]['rounds'])} rounds, IQR")
    axes.set_title(report["bench"])
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
