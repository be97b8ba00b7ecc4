"""The assembly of a program from the results of the compiler's stages."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_core.backend.runtime.program import Program, Stage
from thunder_core.frontend.acquire.assembly import Acquired
from thunder_core.frontend.acquire.codegen.shortfall import shortfalls
from thunder_core.frontend.acquire.outside.symbolic import Symbolic
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative


def assemble_program(
    acquired: Acquired,
    derivative: ProgramDerivative | None,
    why_recorded: str,
    symbolic: Symbolic,
    stages: Iterable[Stage],
    constant_because: str,
) -> Program:
    """Return a program with these acquired traces, this derivative and these compiled stages."""
    return Program(
        stages=tuple(stages),
        guards=acquired.guards,
        sharp_edges=acquired.sharp_edges,
        derivative=derivative,
        no_backward_reason=why_recorded,
        observed=acquired.observed,
        constant_because=constant_because,
        module_reads=acquired.module_reads,
        caught_lines=acquired.caught_lines,
        shortfalls=tuple(shortfalls(acquired.sizes, symbolic.named)) if acquired.sizes is not None else (),
    )
