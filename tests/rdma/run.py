"""Run programs in a virtual machine that has an RDMA device, where this one has none.

Its kernel can encipher TLS as well.

    tests/rdma/run                      the tests of the build folder that want one
    tests/rdma/run --demo               two machines: one stores, the other trains (guest/demo)
    tests/rdma/run -- COMMAND ...       a command, its paths as here

Debian's own kernel is fetched into the build folder and booted in QEMU, in pure emulation; it
makes a soft-RoCE device (rdma_rxe) and sees the files of this machine, so the programs run as they
were built. That proves what is right, and says nothing about speed. With two machines the devices
are on the link between them. Exits with 0 if all went well, 1 if a program failed, 4 if a guest
ended early, 77 if it cannot run here.
"""

import argparse
import contextlib
import dataclasses
import gzip
import lzma
import os
import pathlib
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUEST = ROOT / "tests" / "rdma" / "guest"
# What the guest needs before it can see the host's files.
FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
# Under emulation, checksum and copy instructions that are meant to be fast are the slow ones.
PROCESSOR = "max,la57=off,pclmulqdq=off,erms=off,fsrm=off,smap=off,smep=off"
EXIT_FAILED, EXIT_ENDED_EARLY, EXIT_SKIP = 1, 4, 77
# A guest is up after 5 to 30 s; one in some hundreds never is. The last limit is for a machine that
# is so busy that the first two were too short.
START_LIMITS_S = (40.0, 80.0, 160.0)
CONSOLE_LINES = 20
# Programs of the build folder, each with the tests that are for the guest; without those that move
# hundreds of megabytes, which take it a minute and are the same over any transport.
PROGRAMS = (
    ("tests/conformance/conformance-net_endpoint", "*/rdma"),
    ("tests/unit/net_rdma-test", "*"),
    ("tests/unit/net_rdma_device-test", "*"),
    ("tests/unit/client_dataset-test", "*/rdma:-*CrossExtents*:*AnUploadGoesOn*"),
    ("tests/unit/client_access-test", "*/rdma"),
    ("tests/unit/client_rdma-test", "*"),
    ("tests/unit/client_rdma_rails-test", "*:-*TakenAway*"),
    ("tests/unit/client_rdma_rails-test", "*ADeviceThatIsTakenAway*"),
    ("tests/unit/client_rdma_rails-test", "*CostsItsShare*"),
    ("tests/unit/client_rdma_rails-test", "*LetGoOf*"),
    ("tests/unit/client_collective_rdma-test", "*"),
    # And what wants a kernel that enciphers.
    ("tests/unit/net_tls-test", "*KernelThatCan"),
    ("tests/unit/client_tls-test", "*PublishedAndRead*"),
)


class CannotRun(Exception):
    """Something that the guest is made of cannot be had here; says what."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package."""

    folder: pathlib.Path
    version: str

    @property
    def image(self) -> pathlib.Path:
        """What QEMU boots."""
        return self.folder / "boot" / f"vmlinuz-{self.version}"

    @property
    def modules(self) -> pathlib.Path:
        """The folder that is /lib/modules in the guest."""
        return self.folder / "lib" / "modules"


@dataclasses.dataclass(frozen=True)
class Job:
    """A command for the guest, and how it ended there: no code if it never did."""

    words: Sequence[str]
    code: int | None = None
    seconds: int = 0
    log: str = ""

    def __str__(self) -> str:
        ended = f"exit code {self.code} ({self.seconds} s)"
        return f"{shlex.join(self.words)}: {'did not end' if self.code is None else ended}"


def output_of(*words: str | pathlib.Path, folder: pathlib.Path | None = None) -> str:
    """Run a command and return what it prints; CannotRun with its last line if it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in words], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise CannotRun(f"{words[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise CannotRun(f"{words[0]} failed: {said[-1]}")
    return done.stdout


def tool(name: str, package: str) -> str:
    """Path of a program of the host."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not found:
        raise CannotRun(f"{name} is missing: apt-get install --no-install-recommends {package}")
    return found


def fetch_kernel(work: pathlib.Path) -> Kernel:
    """Unpack Debian's generic kernel below `work`, unless it is there: 71 MB, nothing installed.

    Not the cloud kernel, which has neither soft-RoCE nor 9p.
    """
    depends = output_of(tool("apt-cache", "apt"), "depends", "linux-image-amd64")
    packages = [line.split()[-1] for line in depends.splitlines() if "Depends:" in line]
    if not packages:
        raise CannotRun("linux-image-amd64 is unknown here: apt-get update")
    version = packages[0].removeprefix("linux-image-")
    kernel = Kernel(work / version, version)
    if not kernel.folder.is_dir():
        half = work / f"{version}.half"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        output_of(tool("apt-get", "apt"), "download", packages[0], folder=half)
        (archive,) = half.glob("*.deb")
        output_of(tool("dpkg", "dpkg"), "-x", archive, half)
        archive.unlink()
        output_of(tool("depmod", "kmod"), "-b", half, version)
        half.rename(kernel.folder)
    return kernel


def modules_in_order(kernel: Kernel) -> Iterator[pathlib.Path]:
    """Files of FIRST_MODULES and of what they need, in the order of loading."""
    seen = set()
    for module in FIRST_MODULES:
        words = ("-d", kernel.folder, "-S", kernel.version, "--show-depends", module)
        for line in output_of(tool("modprobe", "kmod"), *words).splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod" and path not in seen:
                seen.add(path)
                yield pathlib.Path(path.strip())


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """An archive of `files`, name to mode and content, in the form that the kernel unpacks."""
    parts = []
    for number, (name, (mode, content)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))]):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        for part in (head, content):
            parts += [part, b"\0" * (-len(part) % 4)]
    return b"".join(parts)


def make_initrd(kernel: Kernel, path: pathlib.Path) -> None:
    """Write the guest's first file system: busybox, a few modules, guest/init."""
    folder, program = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755
    busybox = pathlib.Path(tool("busybox", "busybox-static"))
    files = {
        "bin": (folder, b""),
        "bin/busybox": (program, busybox.read_bytes()),
        "init": (program, (GUEST / "init").read_bytes()),
        "modules": (folder, b""),
    }
    order = []
    for module in modules_in_order(kernel):
        content = module.read_bytes()
        order.append(module.name.removesuffix(".xz"))
        is_packed = module.suffix == ".xz"
        files[f"modules/{order[-1]}"] = (
            program,
            lzma.decompress(content) if is_packed else content,
        )
    files["modules/order"] = (program, "\n".join(order).encode())
    path.write_bytes(gzip.compress(cpio(files), compresslevel=1))


def guest_words(
    kernel: Kernel, initrd: pathlib.Path, out: pathlib.Path, number: int, link: Sequence[str]
) -> list[str]:
    """Say how QEMU is started for guest `number`; `link` joins it to another, if there is one."""
    words = [
        *(
            tool("setpriv", "util-linux"),
            "--pdeathsig",
            "KILL",
        ),  # It does not outlive this program.
        tool("qemu-system-x86_64", "qemu-system-x86"),
        *("-M", "q35", "-smp", "1" if link else "2", "-m", "1536", "-cpu", PROCESSOR),
        *("-accel", "tcg,thread=multi"),  # A /dev/kvm that is there need not work.
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", "stdio", "-device", "virtio-rng-pci"),
        *("-kernel", kernel.image, "-initrd", initrd),
        *("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=host"),
        *("-fsdev", f"local,id=out,path={out},security_model=none"),
        *("-device", "virtio-9p-pci,fsdev=out,mount_tag=out"),
        *link,
        "-append",
        "console=ttyS0 loglevel=7 panic=-1 mitigations=off nokaslr audit=0 tsc=reliable "
        "random.trust_cpu=on no_timer_check net.ifnames=0 "
        f"guest={number} session={GUEST / 'session'} modules={kernel.modules}",
    ]
    return [str(word) for word in words]


def link_words(count: int, number: int, socket: pathlib.Path) -> list[str]:
    """Say how guest `number` is joined to the other, if there is one: by a socket of this machine.

    Not by TCP, which costs 44 ms for each round trip.
    """
    if count == 1:
        return []
    side = "on" if number == 0 else "off"
    stream = f"stream,id=link,server={side},addr.type=unix,addr.path={socket}"
    card = f"virtio-net-pci,netdev=link,host_mtu=9000,mac=52:54:00:00:00:{number + 1:02x}"
    return ["-netdev", stream, "-device", card]


@contextlib.contextmanager
def started(
    kernel: Kernel, initrd: pathlib.Path, out: pathlib.Path, count: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Guests that run, until the block's end at the latest; `out` has what their consoles say."""
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        socket = pathlib.Path(folder) / "link"
        for number in range(count):
            words = guest_words(kernel, initrd, out, number, link_words(count, number, socket))
            while number > 0 and not socket.exists() and running[0].poll() is None:
                time.sleep(0.05)
            (out / f"up-{number}").unlink(missing_ok=True)
            log = stack.enter_context((out / f"console-{number}.log").open("wb"))
            running.append(
                subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
            )
            stack.callback(running[-1].wait)
            stack.callback(running[-1].kill)
        yield running


def are_up(running: Sequence[subprocess.Popen[bytes]], out: pathlib.Path, limit_s: float) -> bool:
    """Wait until each guest has a device that works, or has ended; False after `limit_s`."""
    end = time.monotonic() + limit_s
    for number, guest in enumerate(running):
        while not (out / f"up-{number}").exists() and guest.poll() is None:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
    return True


def consoles(out: pathlib.Path) -> str:
    """What the guests' consoles said last, and what making their devices did."""
    logs = [*sorted(out.glob("console-*.log")), *sorted(out.glob("device-*.log"))]
    said = ((log, log.read_text(errors="replace").splitlines()) for log in logs)
    return "".join(
        f"{log.name}: {line}\n" for log, lines in said for line in lines[-CONSOLE_LINES:]
    )


def boot(
    kernel: Kernel, initrd: pathlib.Path, out: pathlib.Path, count: int, timeout_s: float
) -> None:
    """Run guests until they power themselves off, for `timeout_s` from when they are up.

    Guests that do not come up are started anew: a hang of the emulator or of its kernel before
    any command of ours has run is not what is tested here.
    """
    for limit_s in START_LIMITS_S:
        with started(kernel, initrd, out, count) as running:
            if are_up(running, out, limit_s):
                end = time.monotonic() + timeout_s
                for guest in running:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        guest.wait(max(end - time.monotonic(), 0))
                return
        print(f"rdma: not up after {limit_s:.0f} s:\n{consoles(out)}", end="", flush=True)


def run_in_guests(
    jobs: Sequence[Sequence[Sequence[str]]], work: pathlib.Path, timeout_s: float
) -> list[Job]:
    """Run the commands of each guest one after the other, and return how each ended.

    One guest has a link of its own, two are joined: 10.77.0.1 and 10.77.0.2. The logs, and files
    that the commands write to /mnt/out, which is the same for all, are left in `work`/out.
    """
    if os.uname().machine != "x86_64":
        raise CannotRun("the guest is an x86-64 machine and runs programs of its own kind")
    kernel = fetch_kernel(work / "kernel")
    initrd = work / "initrd.gz"
    make_initrd(kernel, initrd)
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    named = {
        f"{guest}-{number:03}": words
        for guest, commands in enumerate(jobs)
        for number, words in enumerate(commands)
    }
    for name, words in named.items():
        (out / f"{name}.job").write_text(f"exec timeout {timeout_s:.0f} {shlex.join(words)}\n")
    boot(kernel, initrd, out, len(jobs), timeout_s)

    return [
        ended(words, out / f"{name}.code", out / f"{name}.log") for name, words in named.items()
    ]


def ended(words: Sequence[str], code: pathlib.Path, log: pathlib.Path) -> Job:
    """Read how a command ended."""
    said = log.read_text(errors="replace") if log.exists() else ""
    numbers = [int(word) for word in code.read_text().split()] if code.exists() else []
    return Job(words, *numbers, log=said) if numbers else Job(words, log=said)


def test_jobs(build: pathlib.Path) -> list[list[str]]:
    """Commands for the tests of a build folder."""
    jobs = []
    seed = os.environ.get("FFRECORD_TEST_SEED")
    given = ["env", f"FFRECORD_TEST_SEED={seed}"] if seed else []
    for number, (name, tests) in enumerate(PROGRAMS):
        program = build / name
        if not program.exists():
            raise CannotRun(f"{program} is not built: libibverbs-dev may be missing")
        report = f"--gtest_output=xml:/mnt/out/{number}-{program.name}.junit.xml"
        options = ["--gtest_brief=1", f"--gtest_filter={tests}", report]
        jobs.append([*given, str(program), *options])
    return jobs


def demo_jobs(build: pathlib.Path) -> list[list[list[str]]]:
    """Commands of two guests: one stores, the other trains."""
    python = ROOT / ".venv" / "bin" / "python"
    words = [str(GUEST / "demo"), str(build), str(python if python.exists() else sys.executable)]
    return [[["bash", *words, side]] for side in ("store", "train")]


def main() -> int:
    """Run what was asked for; print logs of what failed; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="tests/rdma/run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", metavar="FOLDER")
    parser.add_argument(
        "--timeout", type=float, default=240.0, metavar="S", help="once they are up"
    )
    parser.add_argument("--demo", action="store_true", help="of two machines, instead of the tests")
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    try:
        if arguments.demo:
            jobs = demo_jobs(build)
        else:
            jobs = [[arguments.command] if arguments.command else test_jobs(build)]
        done = run_in_guests(jobs, build / "rdma", arguments.timeout)
    except CannotRun as reason:
        print(f"skipped: {reason}")
        return EXIT_SKIP
    for job in done:
        if job.code != 0 or arguments.command or arguments.demo:
            print(job.log, end="")
        print(f"rdma: {job}", flush=True)
    if any(job.code is None for job in done):
        print(f"a guest ended early, or time was up:\n{consoles(build / 'rdma' / 'out')}")
        return EXIT_ENDED_EARLY
    return EXIT_FAILED if any(job.code for job in done) else 0


if __name__ == "__main__":
    sys.exit(main())
