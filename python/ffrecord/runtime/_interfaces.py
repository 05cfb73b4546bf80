"""Signals for programs that signal nothing: the counters of the network interfaces."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord.runtime._phases import PacerSignals, Signals

_KIND = "collective"
_NETWORK, _INFINIBAND = "class/net", "class/infiniband"
_INFINIBAND_UNIT = 4  # Its counters count words.
_JOIN_S = 10.0
# A phase ends after so many quiet looks: a collective pauses between two of its messages.
_QUIET_LOOKS = 2
_BITS_PER_MEGABIT = 1_000_000
_RATE_UNKNOWN = 125_000_000.0  # In bytes/s: what 1 Gbit/s carries.


class InterfaceWatch:
    """Signals a phase while interfaces carry more than this process's storage traffic.

    A thread reads the counters every `interval_s`. Begin and end come late by up to three looks,
    and nothing tells where a step ends, so that gaps are not predicted. Prefer `attach`.
    """

    def __init__(
        self,
        counters: Sequence["Counter"],
        *,
        busy_bytes_per_s: float,
        interval_s: float,
        own_bytes: Callable[[], int],
        signals: Signals,
    ) -> None:
        """Start to watch."""
        self._counters = counters
        self._busy_bytes_per_s = busy_bytes_per_s
        self._interval_s = interval_s
        self._own_bytes = own_bytes
        self._signals = signals
        self._is_open = False
        self._quiet_looks = 0
        self._owner = os.getpid()
        self._stopped = threading.Event()
        self._seen, self._seen_at = self._foreign_bytes(), clock.now()
        self._thread = threading.Thread(target=self._run, name="ffrecord-interfaces", daemon=True)
        self._thread.start()

    def detach(self) -> None:
        """Stop; end an open phase. May be called again."""
        if os.getpid() != self._owner:
            return  # A forked child has no thread.
        self._stopped.set()
        if self._thread is not threading.current_thread():
            clock.join(self._thread, _JOIN_S)

    def __enter__(self) -> "InterfaceWatch":
        """Return the watch."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.detach()

    def _foreign_bytes(self) -> int:
        """Carried by the interfaces, without what this process's storage has moved."""
        return sum(counter.read() for counter in self._counters) - self._own_bytes()

    def _run(self) -> None:
        while not clock.wait(self._stopped.wait, self._interval_s):
            self._look()
        if self._is_open:
            self._signals.phase_end(_KIND)
        for counter in self._counters:
            counter.close()

    def _look(self) -> None:
        now, foreign = clock.now(), self._foreign_bytes()
        carried, self._seen = foreign - self._seen, foreign
        elapsed_s, self._seen_at = now - self._seen_at, now
        is_busy = carried > self._busy_bytes_per_s * elapsed_s
        self._quiet_looks = 0 if is_busy else self._quiet_looks + 1
        if is_busy and not self._is_open:
            self._is_open = True
            self._signals.phase_begin(_KIND, 0)
        elif self._is_open and self._quiet_looks >= _QUIET_LOOKS:
            self._is_open = False
            self._signals.phase_end(_KIND)


class Counter:
    """A file of the kernel with one number, which stays open."""

    def __init__(self, path: Path, unit: int) -> None:
        """Open it; `unit` is how many bytes it counts as 1."""
        self._unit = unit
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int:
        """In bytes; 0 once the interface is gone."""
        try:
            return int(os.pread(self._descriptor, 32, 0)) * self._unit
        except (OSError, ValueError):
            return 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def watch_interfaces(
    interfaces: Sequence[str] | None = None,
    *,
    busy_share: float = 0.1,
    interval_s: float = 0.004,
    signals: Signals | None = None,
    root: str | os.PathLike[str] = "/sys",
) -> InterfaceWatch:
    """Signal phases while network interfaces are busy with the traffic of others.

    For a process that moves data beside a training that it cannot attach to, such as a program in
    another language.

    Args:
        interfaces: names, as in `/sys/class/net` or `/sys/class/infiniband`; all adapters that are
            up by default. Name the one that both kinds of traffic share.
        busy_share: of the interfaces' rate; more traffic than this counts as a phase.
        interval_s: between two looks; 1 to 5 ms.
        signals: the receiver; the pacer of this process by default.
        root: where the kernel's counters are.

    Returns:
        The watch; call its `detach()`, or use it in a `with` block.

    Raises:
        ValueError: an interface is not there, or none is up.
    """
    found = _found(Path(root), interfaces)
    if not found:
        raise ValueError(f"no network interface is up below {root}: name one in interfaces=[...]")
    rate = sum(rate for _, rate in found)
    counters = [Counter(*place) for places, _ in found for place in places]
    return InterfaceWatch(
        counters,
        busy_bytes_per_s=busy_share * rate,
        interval_s=interval_s,
        own_bytes=_paced_bytes,
        signals=PacerSignals() if signals is None else signals,
    )


# Where counters of an interface are, with their units, and what it carries in bytes/s.
_Interface = tuple[list[tuple[Path, int]], float]


def _found(root: Path, names: Sequence[str] | None) -> list[_Interface]:
    """The interfaces of these names, or all that are up."""
    if names is None:
        ports = sorted(root.glob(f"{_INFINIBAND}/*"))
        cards = [each for each in sorted(root.glob(f"{_NETWORK}/*")) if _is_up_adapter(each)]
        return [_infiniband(each) for each in ports] or [_card(each) for each in cards]
    return [_named(root, name) for name in names]


def _named(root: Path, name: str) -> _Interface:
    for kind, make in ((_INFINIBAND, _infiniband), (_NETWORK, _card)):
        folder = root / kind / name
        if "/" not in name and folder.is_dir():
            return make(folder)
    there = sorted(each.name for kind in (_NETWORK, _INFINIBAND) for each in root.glob(f"{kind}/*"))
    raise ValueError(f"there is no network interface {name!r}; there are {', '.join(there)}")


def _is_up_adapter(card: Path) -> bool:
    """Not the loopback, nor bridges and the like, which carry what an adapter carries."""
    return (card / "device").exists() and _text(card / "operstate") == "up"


def _card(card: Path) -> _Interface:
    places = [(card / "statistics" / f"{way}_bytes", 1) for way in ("tx", "rx")]
    megabits = _text(card / "speed")
    is_known = megabits.isdigit() and int(megabits) > 0
    rate = int(megabits) * _BITS_PER_MEGABIT / 8 if is_known else _RATE_UNKNOWN
    return places, rate


def _infiniband(adapter: Path) -> _Interface:
    names = ("port_xmit_data", "port_rcv_data")
    ports = sorted(adapter.glob("ports/*/counters"))
    places = [(port / name, _INFINIBAND_UNIT) for port in ports for name in names]
    # Such as "100 Gb/sec (4X EDR)".
    gigabits = [_text(port.parent / "rate").partition(" ")[0] for port in ports]
    known = [float(each) for each in gigabits if each.replace(".", "", 1).isdigit()]
    return places, sum(known) * 1000 * _BITS_PER_MEGABIT / 8 or _RATE_UNKNOWN


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # Some drivers answer some of these with an error.
        return ""


def _paced_bytes() -> int:
    """Bytes that the storage of this process has moved while pacing was on."""
    counters = _ffrecord.pacing_counters()
    return sum(each["size_bytes"] for each in counters["classes"].values())
