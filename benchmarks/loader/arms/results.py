"""The outputs of a table: JSON, Markdown and a plot, in the folder of results."""

import json
import pathlib
import subprocess
from typing import Any

import harness

_HERE = pathlib.Path(__file__).resolve().parent


def publish(table: str, report: dict[str, Any], settings: harness.Settings) -> None:
    """Write the results of one table below the scratch folder."""
    folder = settings.scratch / "results"
    folder.mkdir(exist_ok=True)
    source = folder / f"loader-{table}.json"
    source.write_text(json.dumps(report, indent=2) + "\n")
    picture = folder / f"loader-{table}.svg"
    (folder / f"loader-{table}.md").write_text(markdown(report))
    python = settings.scratch / "peers" / "bin" / "python"
    subprocess.run([str(python), str(_HERE / "plot.py"), str(source), str(picture)], check=True)


def markdown(report: dict[str, Any]) -> str:
    """The tables for people."""
    lines = [f"| arm | {report['unit']} | IQR | |", "|---|---:|---:|---|"]
    for arm in report["arms"]:
        median, iqr = (harness.readable(arm[key]) for key in ("median", "iqr"))
        lines.append(f"| `{arm['name']}` | {median} | {iqr} | {arm['what']} |")
    lines += ["", "| key | median | IQR |", "|---|---:|---:|"]
    for kind in ("ratios", "figures"):
        for key, value in report[kind].items():
            iqr = harness.readable(report[f"{kind}_iqr"][key])
            lines.append(f"| `{key}` | {harness.readable(value)} | {iqr} |")
    lines += ["", *(f"- {note}" for note in report["notes"])]
    about = report["machine"]
    lines.append(
        f"- {about['cores']} cores of {about['cpu']}, {about['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {about['kernel']}, load {about['load']:.1f}"
    )
    return "\n".join(lines) + "\n"
