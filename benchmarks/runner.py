"""The one runner of all benchmarks: benchmarks/run NAME [--quick] [--json FILE] [--against TREE].

A benchmark is a module `benchmarks/<room>/<name>.py` with a docstring, whose first line describes
it, and a function `bench(settings) -> Outcome`; `add_options(parser)`, if it takes any of its own.
harness.py has what they share.
"""

import argparse
import importlib.util
import json
import pathlib
import sys
import types

import harness
import turns

HERE = pathlib.Path(__file__).resolve().parent
EXIT_USAGE, EXIT_ENVIRONMENT = 2, 4


def available() -> dict[str, pathlib.Path]:
    """Every benchmark by name."""
    return {path.stem: path for path in sorted(HERE.glob("*/*.py"))}


def load(path: pathlib.Path) -> types.ModuleType:
    """Import a benchmark from its file."""
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Run one benchmark, print its table, write its JSON; return the exit code."""
    names = available()
    parser = argparse.ArgumentParser(prog="benchmarks/run", description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=sorted(names), help="Benchmark to run.")
    parser.add_argument("--quick", action="store_true", help="Finish within about two minutes.")
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="Write the result to FILE."
    )
    parser.add_argument("--rounds", type=int, default=0, help="Rounds of each arm; at least 5.")
    turns.add_options(parser)
    name = parser.parse_known_args([word for word in sys.argv[1:] if word not in ("-h", "--help")])
    if module := load(names[name[0].name]) if name[0].name else None:
        getattr(module, "add_options", lambda _: None)(parser)
    arguments = parser.parse_args()
    if module is None:
        for name, path in names.items():
            print(f"{name:12} {(load(path).__doc__ or '').splitlines()[0]}")
        return EXIT_USAGE
    rounds = arguments.rounds or (5 if arguments.quick else 11)
    if rounds < harness.ROUNDS_MIN:
        parser.error(f"--rounds {rounds}: medians need {harness.ROUNDS_MIN} or more")
    if arguments.against:
        return turns.bench(HERE.parent, arguments)
    scratch = HERE.parent / "build" / "bench"
    scratch.mkdir(parents=True, exist_ok=True)
    programs = HERE.parent / "build-bench" / "benchmarks"
    settings = harness.Settings(arguments.quick, rounds, scratch, programs, arguments)
    try:
        outcome = module.bench(settings)
    except harness.Unable as error:
        print(f"benchmarks/run {arguments.name}: {error}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    report = harness.report(arguments.name, settings, outcome)
    print(harness.table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
