"""Where the ranks of a collective should run in a network, and what the collective will cost.

A `Network` is hosts, switches and cables; a `Placement` says which host each rank runs on.
`certify` counts what every link carries in every step of a collective; `collective_seconds` and
`training_step` say how long it takes. Needs no hardware, no root and no torch.
"""

from ffrecord.topology._certificate import Certificate, StepLoad, certify
from ffrecord.topology._network import (
    Cable,
    Network,
    bigraph,
    bigraph_for,
    fat_tree,
    rails,
    read_cabling,
)
from ffrecord.topology._patterns import ALGORITHMS, Step, collective
from ffrecord.topology._picture import draw
from ffrecord.topology._placement import PLACEMENTS, Placement, place
from ffrecord.topology._search import search
from ffrecord.topology._simulation import (
    Flow,
    StepTime,
    Training,
    collective_seconds,
    training_step,
)

__all__ = [
    "ALGORITHMS",
    "PLACEMENTS",
    "Cable",
    "Certificate",
    "Flow",
    "Network",
    "Placement",
    "Step",
    "StepLoad",
    "StepTime",
    "Training",
    "bigraph",
    "bigraph_for",
    "certify",
    "collective",
    "collective_seconds",
    "draw",
    "fat_tree",
    "place",
    "rails",
    "read_cabling",
    "search",
    "training_step",
]
