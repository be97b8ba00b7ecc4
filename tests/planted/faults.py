"""All faults that can be planted, by kind, and a sample of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping

from tests.planted.epilogues import epilogue_plants
from tests.planted.guards import guard_plants
from tests.planted.kernel_plants import kernel_plants
from tests.planted.plant import Outcome, Plant
from tests.planted.transform_plants import derivative_plants, transform_plants
from tests.planted.unpacking import unpacking_plants

KINDS: Mapping[str, Callable[[str], Iterator[Plant]]] = {
    "kernel": kernel_plants,
    "transform": transform_plants,
    "derivative": derivative_plants,
    "guard": guard_plants,
    "epilogue": epilogue_plants,
    "unpacking": unpacking_plants,
}


def outcomes(families: Iterable[str], kinds: Iterable[str], *, every: int = 1) -> Iterator[Outcome]:
    """Plant every n-th fault of these kinds into these families."""
    for family in families:
        for kind in kinds:
            yield from (plant.outcome() for plant in list(KINDS[kind](family))[::every])


def plant_sample(family: str, counts: Mapping[str, int], seed: int) -> Iterator[Outcome]:
    """Plant a seeded random sample of faults of each kind into a family."""
    for kind, count in counts.items():
        plants = list(KINDS[kind](family))
        drawn = random.Random(f"{seed}:{family}:{kind}").sample(plants, min(count, len(plants)))
        yield from (plant.outcome() for plant in drawn)
