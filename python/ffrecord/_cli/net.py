"""`ffrecord net`: the network between the ranks of a run."""

import dataclasses
import datetime
import json
import os
from typing import TYPE_CHECKING

import click

from ffrecord._cli.console import EXIT_DAMAGE
from ffrecord._cli.units import Size, Timeout

if TYPE_CHECKING:
    from ffrecord.distributed.net_check import Report

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@click.group()
def net() -> None:
    """Test the network between ranks."""


@net.command()
@click.option(
    "--size",
    "size_bytes",
    type=Size(),
    default="8MiB",
    show_default=True,
    help="Size of the arrays.",
)
@click.option(
    "--repeats", type=click.IntRange(1), default=5, help="Repetitions; the median counts."
)
@click.option(
    "--timeout", "timeout_s", type=Timeout(), default=30.0, help="Seconds for each exchange."
)
@click.option("--listen", "listen_host", help="The address at which other machines reach this one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    size_bytes: int, repeats: int, timeout_s: float, listen_host: str | None, as_json: bool
) -> None:
    """Stress every pair of ranks and every collective; name slow links and faulty ranks.

    Run it as each rank, such as `torchrun --nproc-per-node 8 --no-python ffrecord net check`. The
    first rank prints. The exit code is 3 on all ranks if anything is slow or wrong.
    """
    if missing := [name for name in _LAUNCHED if name not in os.environ]:
        raise click.UsageError(
            f"{', '.join(missing)} not set: run this as each rank, such as"
            " torchrun --nproc-per-node 2 --no-python ffrecord net check"
        )
    import torch.distributed as dist

    from ffrecord.distributed import net_check

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=max(60.0, 4 * timeout_s)))
    try:
        report = net_check.check(
            size_bytes=size_bytes, repeats=repeats, timeout_s=timeout_s, listen_host=listen_host
        )
        if dist.get_rank() == 0:
            click.echo(json.dumps(dataclasses.asdict(report)) if as_json else _shown(report))
    finally:
        dist.destroy_process_group()
    if report.slow or report.wrong:
        raise click.exceptions.Exit(EXIT_DAMAGE)


def _shown(report: "Report") -> str:
    lines = [f"{report.world_size} ranks, arrays of {report.size_bytes >> 10} KiB"]
    for kind, shares_memory in (("network", False), ("shared memory", True)):
        pairs = [p for p in report.pairs if p.shares_memory == shares_memory and not p.error]
        if pairs:
            speeds = sorted(p.mbyte_s for p in pairs)
            latencies = sorted(p.latency_us for p in pairs)
            lines.append(
                f"{len(pairs)} pairs over {kind}: {speeds[0]:.0f} to {speeds[-1]:.0f} MB/s each"
                f" way, {latencies[0]:.0f} to {latencies[-1]:.0f} us"
            )
    lines += [f"{each.name}: {each.ms:.2f} ms" for each in report.collectives if not each.error]
    lines += [f"slow: {line}" for line in report.slow]
    lines += [f"wrong: {line}" for line in report.wrong]
    return "\n".join([*lines, "no problems found"] if not (report.slow or report.wrong) else lines)
