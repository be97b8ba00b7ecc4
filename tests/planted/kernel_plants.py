"""Faults of kernels in the programs that the recipe `default` compiles, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from tests.planted.kernels import claimed_places, spoils_for, with_spoiled_line
from tests.planted.plant import Plant, names_line
from tests.planted.programs import with_claimed_trace
from tests.planted.subject import subject
from thunder_core.tracing.ir.printer import bound_symbol_text

RUNS = ((False, "computation"), (True, "computation"), (True, "backward"))


def kernel_plants(family: str) -> Iterator[Plant]:
    """Each result of each line of an executor, changed in each of the ways."""
    for train, name in RUNS:
        own = subject(family, train=train)
        trace = own.program.traces(name)[-2]
        kind = "kernel, backward" if name == "backward" else "kernel, forward"
        for place, proxy in claimed_places(trace):
            line = bound_symbol_text(trace.bound_symbols[place])
            for what, spoil in spoils_for(proxy).items():

                def planted(own=own, name=name, place=place, proxy=proxy, spoil=spoil):
                    return with_claimed_trace(
                        own.program, name, lambda one: with_spoiled_line(one, place, proxy, spoil)
                    )

                mode = "training" if train else "inference"
                yield Plant(kind, own, f"{what} in {proxy.name} of {mode}: {line}", planted, names_line(line))
