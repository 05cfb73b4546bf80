"""`ffrecord topology`: where ranks should run in a network, and the cost of a collective there."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ffrecord import topology as topo
from ffrecord._cli.console import EXIT_DAMAGE
from ffrecord._cli.units import Number, Size
from ffrecord.topology._network import GBIT
from ffrecord.topology._placement import given

MIB = 1 << 20
_F = TypeVar("_F", bound=Callable[..., Any])
_SHAPES: dict[str, Callable[..., topo.Network]] = {
    "bigraph": topo.bigraph,
    "fat-tree": topo.fat_tree,
    "rails": topo.rails,
}


@click.group()
def topology() -> None:
    """Plan the placement of ranks in a network; certify, simulate and draw it."""


def _number(
    flag: str, default: float, text: str, *, most: float = 1e9, min_open: bool = False
) -> Callable[[_F], _F]:
    """An option from 0 to `most`, without 0 if `min_open`."""
    bounds = Number(0, most, min_open=min_open)
    return click.option(flag, type=bounds, default=default, show_default=True, help=text)


_gbit = _number("--gbit", 100.0, "Rate of every cable, in Gbit/s.", most=1e6, min_open=True)
_broken = click.option("--break", "broken", multiple=True, metavar="A->B", help="Leave out a link.")


def _with_network(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command a `network`, made from the options that this adds."""

    @functools.wraps(command)
    def wrapped(
        *,
        bigraph: str | None,
        fat_tree: str | None,
        rails: str | None,
        cabling: Path | None,
        gbit: float,
        broken: tuple[str, ...],
        **others: object,
    ) -> None:
        shapes = {"bigraph": bigraph, "fat-tree": fat_tree, "rails": rails}
        wanted = {kind: text for kind, text in shapes.items() if text is not None}
        if len(wanted) + (cabling is not None) != 1:
            raise click.UsageError(
                "describe the network with exactly one of --bigraph, --fat-tree, --rails, --cabling"
            )
        if cabling is not None:
            network = topo.read_cabling(cabling)
        else:
            network = _shaped(*wanted.popitem(), gbit)
        command(network=network.without(broken) if broken else network, **others)

    for option in reversed(
        (
            click.option(
                "--bigraph", metavar="K,H,M", help="K switches per layer, H hosts per switch."
            ),
            click.option("--fat-tree", metavar="LEAVES,H,SPINES", help="H hosts per leaf."),
            click.option("--rails", metavar="NODES,CARDS,SPINES", help="Card i at switch i."),
            click.option(
                "--cabling",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help='JSON: {"hosts": [...], "cables": [{"a":, "b":, "count":, "gbit_s":}]}.',
            ),
            _gbit,
            _broken,
        )
    ):
        wrapped = option(wrapped)
    return wrapped


def _shaped(kind: str, text: str, gbit: float) -> topo.Network:
    try:
        one, two, three = (int(number) for number in text.split(","))
    except ValueError:
        raise click.UsageError(f"--{kind} {text}: write three numbers, such as 4,4,1") from None
    return _SHAPES[kind](one, two, three, rate=gbit * GBIT)


def _placed(
    network: topo.Network, rule: str, ranks: int, steps: list[topo.Step], seed: int
) -> topo.Placement:
    if rule != "best":
        return topo.place(rule, network, ranks, seed)
    try:
        return topo.place("hdrm", network, ranks)
    except ValueError:
        return topo.search(network, steps, ranks, seed=seed)


_ranks = click.option(
    "--ranks", type=click.IntRange(1), help="Number of ranks; one per host by default."
)
_rule = click.option(
    "--placement",
    "rule",
    type=click.Choice(["best", *topo.PLACEMENTS]),
    default="best",
    show_default=True,
    help="best: hdrm where it fits, else a search.",
)
_algorithm = click.option(
    "--algorithm",
    type=click.Choice(list(topo.ALGORITHMS)),
    default="halving-doubling",
    show_default=True,
    help="Algorithm of the all-reduce.",
)
_size = click.option(
    "--size",
    "size_bytes",
    type=Size(),
    default="100MiB",
    show_default=True,
    help="Size of the all-reduce, such as 64MiB.",
)
_seed = click.option("--seed", default=0, show_default=True, help="Seed of hashes and searches.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_storage = click.option(
    "--storage",
    multiple=True,
    metavar="HOST:HOST",
    help="Storage traffic from one host to another, placed together with the collective.",
)


def _storage_pairs(network: topo.Network, texts: tuple[str, ...]) -> list[tuple[int, int]]:
    numbers = {name: number for number, name in enumerate(network.hosts)}
    pairs = []
    for text in texts:
        source, _, target = text.partition(":")
        if source not in numbers or target not in numbers:
            raise click.UsageError(
                f"--storage {text}: write two hosts of the network, such as"
                f" {network.hosts[0]}:{network.hosts[-1]}"
            )
        pairs.append((numbers[source], numbers[target]))
    return pairs


@topology.command()
@_with_network
@_ranks
@_rule
@_algorithm
@_size
@_storage
@_seed
@_as_json
def plan(
    network: topo.Network,
    ranks: int | None,
    rule: str,
    algorithm: str,
    size_bytes: int,
    storage: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Print the host of each rank and the certificate of the placement."""
    count = _rank_count(network, ranks)
    steps = topo.collective(algorithm, count, size_bytes)
    placement = _placed(network, rule, count, steps, seed)
    _certify(network, placement, steps, storage, as_json)


@topology.command()
@click.argument("rank_map", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_with_network
@_algorithm
@_size
@_storage
@_as_json
def check(
    network: topo.Network,
    rank_map: Path,
    algorithm: str,
    size_bytes: int,
    storage: tuple[str, ...],
    as_json: bool,
) -> None:
    """Certify RANK_MAP: host names in rank order, one per line.

    Exits with status 3 if links are shared.
    """
    try:
        lines = rank_map.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{rank_map}: {error}") from None
    hosts = [line.strip() for line in lines if line.strip()]
    placement = given(hosts, network)
    steps = topo.collective(algorithm, len(hosts), size_bytes)
    if not _certify(network, placement, steps, storage, as_json).free_of_contention:
        raise click.exceptions.Exit(EXIT_DAMAGE)


def _rank_count(network: topo.Network, ranks: int | None) -> int:
    count = ranks or len(network.hosts)
    if count > len(network.hosts):
        raise click.UsageError(
            f"--ranks {count}: there are {len(network.hosts)} hosts, and a host takes one rank"
        )
    return count


def _certify(
    network: topo.Network,
    placement: topo.Placement,
    steps: list[topo.Step],
    storage: tuple[str, ...],
    as_json: bool,
) -> topo.Certificate:
    """Print the placement and its certificate, which is returned."""
    pairs = _storage_pairs(network, storage)
    certificate = topo.certify(network, placement, steps, storage=pairs)
    _print_plan(network, placement, certificate, as_json)
    return certificate


def _print_plan(
    network: topo.Network, placement: topo.Placement, certificate: topo.Certificate, as_json: bool
) -> None:
    offender = certificate.offender()
    verdict = (
        "free of contention: no two messages share a lane"
        if offender is None
        else f"contention: {offender.flows_max} messages share a lane of {offender.link}"
        f" in step {offender.name}"
    )
    rank_map = placement.rank_map(network)
    if as_json:
        steps = [vars(step) for step in certificate.steps]
        result = {"placement": placement.name, "hosts": list(rank_map.values()), "steps": steps}
        click.echo(json.dumps({**result, "free_of_contention": offender is None}))
        return
    click.echo("\n".join(rank_map.values()))
    click.echo(f"{'step':<14}{'times':>6}{'most on a lane':>16}  link", err=True)
    for step in certificate.steps:
        row = f"{step.name:<14}{step.repeat:>6}{step.flows_max:>16}  {step.link}"
        click.echo(row, err=True)
    click.echo(f"{placement.name}: {verdict}", err=True)


@topology.command()
@click.option("--ranks", default="8,64,512", show_default=True, help="Counts, powers of two.")
@_size
@_gbit
@_number("--compute-ms", 100.0, "Compute time of a training step, in ms.")
@click.option(
    "--buckets",
    type=click.IntRange(1, 4096),
    default=4,
    show_default=True,
    help="Number of equal gradient buckets.",
)
@_number("--start-up-us", 30.0, "Start-up time of each message, in us.")
@_number("--storage-gbit", 0.0, "Storage traffic to every host meanwhile, in Gbit/s.", most=1e6)
@_broken
@_seed
@_as_json
def simulate(
    ranks: str,
    size_bytes: int,
    gbit: float,
    compute_ms: float,
    buckets: int,
    start_up_us: float,
    storage_gbit: float,
    broken: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Print step times on BiGraphs by algorithm and placement.

    With --storage-gbit, the column "beside ms" is the step time while storage traffic uses the same
    links. Storage traffic that waits while a collective runs does not slow the step.
    """
    try:
        counts = [int(count) for count in ranks.split(",")]
    except ValueError:
        raise click.UsageError(f"--ranks {ranks}: write whole numbers, such as 8,64") from None
    rows = []
    for count in counts:
        network = topo.bigraph_for(count, rate=gbit * GBIT)
        network = network.without(broken) if broken else network
        rows += [
            _simulated(
                network,
                count,
                row,
                size_bytes,
                compute_ms,
                buckets,
                start_up_us,
                storage_gbit,
                seed,
            )
            for row in _ROWS
            if row[0] != "hierarchical" or count % 8 == 0
        ]
    if as_json:
        click.echo(json.dumps(rows))
        return
    click.echo(
        f"{'ranks':>6}  {'algorithm':<18}{'placement':<12}{'step ms':>9}{'exposed':>9}", nl=False
    )
    click.echo(f"{'efficiency':>12}" + (f"{'beside ms':>11}" if storage_gbit else ""))
    for row in rows:
        line = (
            f"{row['ranks']:>6}  {row['algorithm']:<18}{row['placement']:<12}{row['step_ms']:>9.1f}"
        )
        line += f"{row['exposed_ms']:>9.1f}{row['efficiency']:>12.3f}"
        click.echo(line + (f"{row['beside_ms']:>11.1f}" if storage_gbit else ""))


_ROWS = (
    ("ring", "sequential"),
    ("tree", "sequential"),
    ("hierarchical", "sequential"),
    ("halving-doubling", "random"),
    ("halving-doubling", "sequential"),
    ("halving-doubling", "hdrm"),
)


def _simulated(
    network: topo.Network,
    ranks: int,
    row: tuple[str, str],
    size_bytes: int,
    compute_ms: float,
    buckets: int,
    start_up_us: float,
    storage_gbit: float,
    seed: int,
) -> dict[str, Any]:
    algorithm, rule = row
    placement = topo.place(rule, network, ranks, seed)
    sizes = [size_bytes / buckets] * buckets
    training = topo.Training(compute_ms / 1e3, sizes)
    steps = topo.collective(algorithm, ranks, sizes[0])

    def step_of(storage: list[topo.Flow]) -> topo.StepTime:
        seconds = topo.collective_seconds(
            network, placement, steps, start_up_s=start_up_us / 1e6, storage=storage, seed=seed
        )
        return topo.training_step(training, [seconds] * buckets)

    alone = step_of([])
    result = {
        "ranks": ranks,
        "algorithm": algorithm,
        "placement": rule,
        "step_ms": alone.step_s * 1e3,
        "exposed_ms": alone.exposed_s * 1e3,
        "efficiency": alone.efficiency,
    }
    if storage_gbit:
        # As if storage were spread over all hosts: each one reads from another, drawn by the seed.
        rate = storage_gbit * GBIT
        order = topo.place("random", network, ranks, seed).hosts.tolist()
        flows = [topo.Flow(order[i - 1], order[i], rate) for i in range(ranks)]
        result["beside_ms"] = step_of(flows).step_s * 1e3
    return result


@topology.command()
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
@_with_network
@_ranks
@_rule
@_algorithm
@_seed
@_as_json
def draw(
    network: topo.Network,
    picture: Path,
    ranks: int | None,
    rule: str,
    algorithm: str,
    seed: int,
    as_json: bool,
) -> None:
    """Write PICTURE, an SVG file: hosts with their ranks, and links coloured by their load."""
    count = _rank_count(network, ranks)
    steps = topo.collective(algorithm, count, MIB)
    placement = _placed(network, rule, count, steps, seed)
    labels = {host: str(rank) for rank, host in placement.rank_map(network).items()}
    loads = topo.certify(network, placement, steps).loads
    picture.write_text(topo.draw(network, labels=labels, loads=loads))
    click.echo(json.dumps({"picture": str(picture)}) if as_json else f"wrote {picture}")
