"""All-reduce by Open MPI: its own ranks, started for each figure."""

import dataclasses
import pathlib
import subprocess

import harness

HERE = pathlib.Path(__file__).resolve().parent
WHAT = "Open MPI, its choices"
# Ranks share the processors here, which it cannot see: those that wait let others run.
COMMON = ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]


@dataclasses.dataclass(frozen=True)
class OpenMpi:
    """A command before which nothing and behind which bytes and repeats are missing."""

    command: list[str]

    def arm(self, name: str, size_bytes: int, repeats: int) -> harness.Arm:
        """Reduce so many bytes; kB/s by the slowest rank."""

        def once(number: int) -> float:
            del number
            found = harness.run_json(*self.command, size_bytes, repeats)
            return size_bytes / float(found["seconds"]) / 1e3

        return harness.Arm(name, WHAT, once)


def _program(scratch: pathlib.Path) -> tuple[str, str]:
    """Where mpirun is, and one rank's program, which is compiled."""
    compiler = harness.foreign("mpicc", "libopenmpi-dev")
    mpirun = harness.foreign("mpirun", "openmpi-bin")
    program = scratch / "mpi-arm"
    subprocess.run([compiler, "-O2", "-o", program, HERE.parent / "mpi_arm.c"], check=True)
    return mpirun, str(program)


def on_this_machine(scratch: pathlib.Path, ranks: int) -> OpenMpi:
    """Ranks that share memory."""
    mpirun, program = _program(scratch)
    return OpenMpi([mpirun, *COMMON, "-np", str(ranks), program])


def on_links(scratch: pathlib.Path, hosts: list[str], prefixes: list[list[str]]) -> OpenMpi:
    """A rank at each address, in the namespace that its prefix enters.

    Each namespace is a machine to it, which it enters as it enters others, by a shell: not by ssh
    but by `ip netns exec`.
    """
    mpirun, program = _program(scratch)
    # All have the same name, by which their folders would be the same.
    spaces = []
    for rank, prefix in enumerate(prefixes):
        folder = scratch / f"mpi-{rank}"
        folder.mkdir(exist_ok=True)
        spaces.append([*prefix, "env", f"TMPDIR={folder}"])
    shell = scratch / "mpi-shell"
    cases = [
        f'  {host}) exec {" ".join(space)} sh -c "$*" ;;'
        for host, space in zip(hosts, spaces, strict=True)
    ]
    shell.write_text("\n".join(["#!/bin/sh", "host=$1; shift", "case $host in", *cases, "esac\n"]))
    shell.chmod(0o700)
    chosen = {
        "plm_rsh_agent": shell,
        "plm_rsh_no_tree_spawn": 1,
        "routed": "direct",
        "btl": "tcp,self",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
    }
    words = [str(word) for name, value in chosen.items() for word in ("--mca", name, value)]
    places = ["--host", ",".join(hosts), "--map-by", "node", "-np", str(len(hosts))]
    return OpenMpi([*spaces[0], mpirun, *COMMON, *words, *places, program])
