"""Truth of the model of adoption for names that belong together: runs, and lists of versions.

The steps of a run, and the list of the versions of a dataset, tell a history. The cluster takes a
history of the daemon as a whole, or nothing of it while it has another one of that name.
"""

import copy
import dataclasses

from daemons_truth import Content, Versions

RUN, DATASET = "run", "set"
_LIST, _DATA = f"{DATASET}/.catalogue/", f"{DATASET}/.versions/"


def step_of(run: str, number: int) -> str:
    """Return the name of a step of a run."""
    return f"{run}/step-{number:09}"


def history_of(name: str) -> str:
    """Return the prefix of the names with which this one belongs together."""
    return _LIST if name.startswith((_LIST, _DATA)) else name[: name.rindex("/") + 1]


@dataclasses.dataclass
class Histories:
    """Publications by number: of the daemon by itself (True), and of the cluster (False)."""

    names: dict[bool, dict[str, int]] = dataclasses.field(
        default_factory=lambda: {True: {}, False: {}}
    )
    taken: set[tuple[str, int]] = dataclasses.field(default_factory=set)
    contents: dict[int, Content | Versions] = dataclasses.field(default_factory=dict)

    def add(self, is_alone: bool, name: str, content: Content | Versions) -> None:
        """Take note of a publication."""
        number = len(self.contents)
        self.contents[number] = copy.copy(content)
        self.names[is_alone][name] = number

    def steps(self, is_alone: bool, run: str) -> list[str]:
        """Return the steps of a run, or of the list of versions, in order."""
        return sorted(each for each in self.names[is_alone] if each.startswith(f"{run}/step-"))

    def versions(self, is_alone: bool) -> Versions:
        """Return what the newest list of versions says."""
        if not (steps := self.steps(is_alone, _LIST[:-1])):
            return Versions()
        content = self.contents[self.names[is_alone][steps[-1]]]
        assert isinstance(content, Versions)
        return copy.deepcopy(content)

    def set_versions(self, is_alone: bool, versions: Versions) -> None:
        """Take note of a change of the list."""
        self.add(is_alone, step_of(_LIST[:-1], len(self.steps(is_alone, _LIST[:-1]))), versions)

    def add_version(self, is_alone: bool, version: str, content: Content) -> None:
        """Take note of a version."""
        known = self.versions(is_alone)
        known.there[version] = content
        self.add(is_alone, f"{_DATA}{version}", content)
        self.set_versions(is_alone, known)

    def remove_version(self, is_alone: bool, version: str) -> None:
        """Take note of the removal of a version."""
        known = self.versions(is_alone)
        known.remove(version)
        del self.names[is_alone][f"{_DATA}{version}"]
        self.set_versions(is_alone, known)

    def waiting(self) -> set[str]:
        """Return the daemon's names that the cluster does not take."""
        pending = self._pending()
        apart = {each for each in map(history_of, pending) if self._is_apart(each, pending)}
        return {each for each in pending if history_of(each) in apart or self._is_others(each)}

    def take_up(self) -> None:
        """The cluster has what it lacked of the daemon's names."""
        waiting = self.waiting()
        for name, number in self._pending().items():
            if name not in waiting:
                self.taken.add((name, number))
                self.names[False].setdefault(name, number)

    def _pending(self) -> dict[str, int]:
        own = self.names[True].items()
        return {name: number for name, number in own if (name, number) not in self.taken}

    def _is_others(self, name: str) -> bool:
        there = self.names[False].get(name)
        return there is not None and there != self.names[True][name]

    def _is_apart(self, history: str, pending: dict[str, int]) -> bool:
        """Whether the history of the cluster is another one than the daemon's."""
        own = sorted(each for each in pending if each.startswith(history))
        there = {
            name: number for name, number in self.names[False].items() if name.startswith(history)
        }
        if any(map(self._is_others, own)):
            return True
        if not there or any(
            each in self.taken or pending.get(each[0]) == each[1] for each in there.items()
        ):
            return False
        return bool(own) and own[-1] > min(there)
