"""Before and after: `--against TREE` runs a benchmark in two checkouts of the project by turns.

Each tree builds and runs its own benchmark, with the same options, and keeps its own files. The
comparison has the keys that both trees report; the value of a key in a turn is the median of the
rounds of that turn. The two trees take turns at being the first.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import harness

Values = dict[str, list[float]]  # By key, one for each turn.

_OWN = {"--against", "--turns", "--limit-s", "--json"}  # Each with a value.


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take --against and what belongs to it."""
    parser.add_argument(
        "--against",
        type=pathlib.Path,
        metavar="TREE",
        help="Compare with this checkout: run the benchmark there and here by turns.",
    )
    parser.add_argument("--turns", type=int, default=3, help="Turns of --against; at least 2.")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=0,
        help="With --against: begin no turn that would end after that.",
    )


def words_of(arguments: list[str]) -> list[str]:
    """Return the words for a tree: all but those for the program that compares."""
    words, is_value = [], False
    for word in arguments:
        name, equals, _ = word.partition("=")
        if not is_value and name not in _OWN:
            words.append(word)
        is_value = not is_value and name in _OWN and not equals
    return words


def bench(root: pathlib.Path, arguments: argparse.Namespace) -> int:
    """Run both trees, print both beside each other, write JSON; return the exit code."""
    trees = {"before": arguments.against.resolve(), "after": root}
    if arguments.turns < 2:
        print(f"benchmarks/run: --turns {arguments.turns}: at least 2", file=sys.stderr)
        return 2
    if not (trees["before"] / "benchmarks" / "run").exists():
        print(f"benchmarks/run: {trees['before']} has no benchmarks/run", file=sys.stderr)
        return 2
    found: dict[str, Values] = {"before": {}, "after": {}}
    began = time.monotonic()
    done = 0
    for turn in range(arguments.turns):
        spent = time.monotonic() - began
        if arguments.limit_s and done and spent + spent / done > arguments.limit_s:
            break
        for name in sorted(trees, reverse=turn % 2 == 0):  # "before" begins.
            print(f"turn {turn + 1}/{arguments.turns}: {name}", file=sys.stderr)
            try:
                values = run(trees[name], words_of(sys.argv[1:]))
            except harness.Unable as error:
                print(f"benchmarks/run: {error}", file=sys.stderr)
                return 4
            for key, value in values.items():
                found[name].setdefault(key, []).append(value)
        done += 1
    report = compare(arguments.name, trees, found, done)
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def run(tree: pathlib.Path, words: list[str]) -> dict[str, float]:
    """One run of a tree: the medians of its keys.

    Raises:
        Unable: it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "found.json"
        command = [str(tree / "benchmarks" / "run"), *words, "--json", str(path)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise harness.Unable(f"{tree}: the benchmark ended with {done.returncode}")
        return keys_of(json.loads(path.read_text()))


def keys_of(report: dict[str, object]) -> dict[str, float]:
    """Ratios and figures, and the medians of the arms."""
    keys: dict[str, float] = {}
    for kind in ("ratios", "figures"):
        part = report.get(kind)
        keys |= part if isinstance(part, dict) else {}
    arms = report.get("arms")
    for arm in arms if isinstance(arms, list) else []:
        keys[f"arm {arm['name']}"] = arm["median"]
    return keys


def compare(
    name: str, trees: dict[str, pathlib.Path], found: dict[str, Values], count: int
) -> dict[str, object]:
    """Put together what --json writes. A turn's ratio is that of two runs next to each other."""
    keys = {}
    for key, before in found["before"].items():
        after = found["after"].get(key, [])
        if len(before) != count or len(after) != count:
            continue  # An arm was lost on the way.
        ratios = [b / a for a, b in zip(before, after, strict=True) if a]
        keys[key] = {
            "before": statistics.median(before),
            "after": statistics.median(after),
            "after_over_before": statistics.median(ratios) if ratios else None,
            "ratio_min": min(ratios, default=None),
            "ratio_max": max(ratios, default=None),
        }
    return {
        "bench": name,
        "turns": count,
        "trees": {which: commit(tree) for which, tree in trees.items()},
        "keys": keys,
        "machine": harness.machine(),
    }


def commit(tree: pathlib.Path) -> str:
    """Name the commit that is checked out in `tree`, and whether files have changed since."""
    words = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def table(report: dict[str, object]) -> str:
    """Format it for people."""
    rows = [("key", "before", "after", "after / before")]
    keys = report["keys"]
    assert isinstance(keys, dict)
    for key, values in keys.items():
        ratio = values["after_over_before"]
        spread = f" ({values['ratio_min']:.2f} to {values['ratio_max']:.2f})" if ratio else ""
        shown = f"{ratio:.2f}{spread}" if ratio else "-"
        rows.append(
            (key, harness.readable(values["before"]), harness.readable(values["after"]), shown)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}"
        for row in rows
    ]
    return "\n".join([*lines, "", f"{report['turns']} turns: {report['trees']}"])
