"""The name of a save that has succeeded."""

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Commit:
    """A committed checkpoint.

    Attributes:
        step: as it was saved.
        attempt: 32 hex digits, unique to this save.
        size_bytes: of all ranks' tensors.
        damage: in a list, why this step cannot be loaded; empty if its manifests are whole. The
            attempt of a step whose root manifest is damaged is empty.
        given_up: in a list, whether training went back behind this step and went on from there.
    """

    step: int
    attempt: str
    size_bytes: int
    damage: str = ""
    given_up: bool = dataclasses.field(default=False, compare=False)
