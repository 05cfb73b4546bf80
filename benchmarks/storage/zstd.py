"""Text records of 1 KiB, compressed with a trained dictionary: size, and random batches on a core.

Records are lines of JSON as services write them. Every arm runs warm, with every checksum verified;
a second is one of processor time, of all threads. `limit` is zstd alone, over frames in memory,
with a dictionary of the same size.
"""

import harness

COUNT = 200_000
BATCH = 4096
KINDS = {
    "dictionary": "RecordReader, zstd level 3 with a trained dictionary",
    "plain": "RecordReader, zstd level 3",
    "raw": "RecordReader, not compressed",
}


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare files of the same records."""
    program = harness.program(settings, "zstd-arm")
    batches = 30 if settings.quick else 100
    paths = {kind: settings.scratch / f"zstd-{kind}.ffr" for kind in KINDS}
    made = {
        kind: harness.run_json(program, "make", kind, path, COUNT) for kind, path in paths.items()
    }

    def read(kind: str) -> harness.Arm:
        def run(number: int) -> float:
            harness.make_warm(paths[kind])
            done = harness.run_json(program, "read", paths[kind], BATCH, batches, number)
            return float(done["records"] / done["seconds"])

        return harness.Arm(kind, KINDS[kind], run)

    def limit(number: int) -> float:
        count = COUNT // 4  # Frames that a processor's cache does not hold, and no more.
        done = harness.run_json(program, "limit", count, BATCH * batches, number)
        return float(done["records"] / done["seconds"])

    arms = [read(kind) for kind in KINDS]
    arms.append(harness.Arm("limit", "zstd alone, frames in memory, same dictionary size", limit))
    values = harness.interleave(arms, settings.rounds)
    for path in paths.values():
        path.unlink()
    raw = made["raw"]["raw_bytes"]
    figures = {
        "zstd_ratio": [raw / made["dictionary"]["file_bytes"]] * settings.rounds,
        "zstd_plain_ratio": [raw / made["plain"]["file_bytes"]] * settings.rounds,
        "zstd_mrps": [value / 1e6 for value in values["dictionary"]],
    }
    return harness.Outcome(
        unit="records/s of a core",
        arms=arms,
        values=values,
        ratios={
            "zstd_vs_limit": ("dictionary", "limit"),
            "zstd_vs_raw": ("dictionary", "raw"),
        },
        figures=figures,
        notes=[
            f"{COUNT:,} records, batches of {BATCH}; zstd_ratio is raw bytes over the whole file, "
            f"index and dictionary of {made['dictionary']['dictionary_bytes']:,} bytes included"
        ],
    )
