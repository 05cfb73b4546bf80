"""What becomes of a table: JSON, Markdown, a plot; with --docs, a part of performance.md."""

import json
import pathlib
import re
import subprocess
from typing import Any

import harness

_HERE = pathlib.Path(__file__).resolve().parent
_DOCS = _HERE.parents[2] / "docs" / "internals"


def publish(table: str, report: dict[str, Any], settings: harness.Settings) -> None:
    """Write the results of one table below the scratch folder, and into the docs if wanted."""
    folder = settings.scratch / "results"
    folder.mkdir(exist_ok=True)
    source = folder / f"loader-{table}.json"
    source.write_text(json.dumps(report, indent=2) + "\n")
    picture = folder / f"loader-{table}.svg"
    text = markdown(report)
    (folder / f"loader-{table}.md").write_text(text)
    python = settings.scratch / "peers" / "bin" / "python"
    subprocess.run([str(python), str(_HERE / "plot.py"), str(source), str(picture)], check=True)
    if settings.options.docs:
        name = f"loader-{table}"
        (_DOCS / f"{name}.svg").write_text(picture.read_text())
        alternative = f"![{report['bench']}: {report['unit']} of each arm]({name}.svg)"
        replace(_DOCS / "performance.md", name, f"{alternative}\n\n{text}")


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


def replace(page: pathlib.Path, name: str, text: str) -> None:
    """Put text between the marks of that name."""
    before = page.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(before):
        raise harness.Unable(f"{page} has no marks {begin.strip()}")
    page.write_text(pattern.sub(lambda _: f"{begin}{text}{end}", before))
