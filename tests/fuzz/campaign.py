"""Fuzz every target, together for an hour of the clock; print what was found.

    tests/fuzz/campaign                     all targets, an hour
    tests/fuzz/campaign --minutes 5 v2_file one of them, five minutes

Targets take turns of a minute, as many at a time as there are processors. Interrupted, the next run
goes on where this one stopped; --restart begins a new campaign. Corpus and findings stay in
build-clang. A target that has failed is left out of the rest. Exits 1 if anything was found.
"""

import argparse
import json
import os
import pathlib
import sys
import threading

import fuzzing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))
import builds  # noqa: E402  (the build folder is described there, once)

TURN_S = 60


class Campaign:
    """How long each target has run so far, kept in a file after each turn."""

    def __init__(self, path: pathlib.Path, restart: bool) -> None:
        """Go on with the campaign of that file, if there is one."""
        self.path = path
        self.lock = threading.Lock()
        self.seconds: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        if path.exists() and not restart:
            self.seconds = json.loads(path.read_text())

    def turn(self, target: fuzzing.Target, share_s: int) -> None:
        """Give a target its next turn, unless it has had its share or has failed."""
        turn = min(TURN_S, share_s - self.seconds.get(target.name, 0))
        if turn <= 0 or target.name in self.failed:
            return
        found = target.run(turn)
        with self.lock:
            self.seconds[target.name] = self.seconds.get(target.name, 0) + turn
            self.path.write_text(json.dumps(self.seconds))
            if found:
                self.failed[target.name] = found
            inputs = len(list(target.corpus.iterdir()))
            state = "FAILED" if found else f"{inputs} inputs"
            print(f"{target.name}: {self.seconds[target.name]} of {share_s} s, {state}", flush=True)


def main() -> int:
    """Build, run until every target has had its share, report; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests/fuzz/campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which; all by default")
    parser.add_argument("--minutes", type=float, default=60, help="of the clock, for all together")
    parser.add_argument("--restart", action="store_true", help="forget an interrupted campaign")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{builds.BIN}:{os.environ['PATH']}"
    if not builds.CLANG.make("fuzz-targets"):
        return 1
    build = ROOT / builds.CLANG.folder
    everything = fuzzing.targets(build)
    unknown = set(arguments.targets) - {target.name for target in everything}
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    chosen = [t for t in everything if not arguments.targets or t.name in arguments.targets]
    share_s = max(1, round(arguments.minutes * 60 * (os.cpu_count() or 1) / len(chosen)))

    campaign = Campaign(build / "campaign.json", arguments.restart)
    turns = -(-share_s // TURN_S)
    fuzzing.run_all(
        [target for _ in range(turns) for target in chosen],
        lambda target: campaign.turn(target, share_s),
    )
    campaign.path.unlink(missing_ok=True)
    for target in chosen:
        for path in sorted(target.findings.glob("*")):
            print(f"finding: {target.program} {path}")
        if target.name in campaign.failed:
            print(campaign.failed[target.name])
    print(f"{len(chosen)} targets, {share_s} s each, {len(campaign.failed)} failed")
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    sys.exit(main())
