"""The program and the traces of a compiled subject's latest call, and how its calls were served."""

from __future__ import annotations

from typing import Any

from thunder_core.backend.runtime.captured import CapturedSubject
from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.inner_generation import with_inner
from thunder_core.backend.runtime.module import Original
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import WrongInputs
from thunder_core.tracing.ir.trace import Trace


def specializations_of(compiled: Any) -> Specializations:
    """The cache behind a compiled function or module; `WrongInputs` for anything else."""
    specializations = getattr(compiled, "_thunder", None)
    if isinstance(specializations, CapturedSubject):
        raise WrongInputs(
            f"this function was traced by Dynamo into {len(specializations.graphs)} graphs, each with its own programs",
            fix="use each of thunder_core.graphs(compiled), or compile with jit for a single program",
        )
    if isinstance(specializations, Original):
        return specializations.compiled
    if not isinstance(specializations, Specializations):
        raise WrongInputs(f"{compiled!r:.80} was not compiled by thunder", fix="pass the result of jit or compile")
    return specializations


def every_specializations_of(compiled: Any) -> list[Specializations]:
    """The cache behind a compiled function or module, those of its methods, or those of graphs that Dynamo captured."""
    captured = getattr(compiled, "_thunder", None)
    if isinstance(captured, CapturedSubject):
        return captured.all_specializations
    specializations = specializations_of(compiled)
    forward = specializations.of_forward
    is_called_by_forward = forward is not None and forward.misses and not specializations.misses
    own = forward if forward is not None and is_called_by_forward else specializations
    return [own, *with_inner(specializations)[1:]]


def last_program(compiled: Any) -> Program:
    """The program that the latest call ran; `WrongInputs` before the first call.

    Of what Dynamo acquired, as one graph, it is that of the graph; `WrongInputs` where there are several graphs.
    """
    every = every_specializations_of(compiled)
    captured = isinstance(getattr(compiled, "_thunder", None), CapturedSubject)
    if captured and len(every) != 1:
        specializations_of(compiled)  # raises: each graph has a program of its own
    program = next((one.last for one in every if one.last is not None), None)
    if program is None:
        raise WrongInputs("nothing has been traced yet", fix="call the compiled function once")
    return program


def last_traces(compiled: Any) -> list[Trace]:
    """The computation of the latest call, stage by stage; the last one is what runs."""
    return last_program(compiled).traces("computation")


def last_prologue_traces(compiled: Any) -> list[Trace]:
    """The prologue of the latest call: guards and unpacking."""
    return last_program(compiled).traces("prologue")


def last_epilogue_traces(compiled: Any) -> list[Trace]:
    """The epilogue of the latest call: side effects and the result."""
    return last_program(compiled).traces("epilogue")


def last_backward_traces(compiled: Any) -> list[Trace]:
    """The backward of the latest call, stage by stage; empty where it has none, see `last_backward_reason`.

    A backward is compiled when it first runs, for the results that gradients are given for; before that there is the
    trace as it was derived, for gradients of all results. Each bound symbol is tagged with the line of the program
    that it differentiates.
    """
    return last_program(compiled).traces("backward")


def last_backward_reason(compiled: Any) -> str:
    """The reason why the latest call has no backward of its own, so that autograd records what it does; else empty.

    >>> import torch
    >>> from thunder_core import jit, last_backward_reason
    >>> spoiled = jit(lambda x: x.exp().add_(1))  # exp's derivative is its result, which is no more
    >>> _ = spoiled(torch.ones(2, requires_grad=True))
    >>> last_backward_reason(spoiled)
    '`torch.Tensor.add_`...: it writes to a tensor that needs a gradient'
    """
    return last_program(compiled).recorded


def cache_hits(compiled: Any) -> int:
    """The number of calls that were served by a program that was there; calls of each graph, where Dynamo made some."""
    return sum(one.hits for one in every_specializations_of(compiled))


def cache_misses(compiled: Any) -> int:
    """The number of calls that had to be traced; calls of each graph, where Dynamo made some."""
    return sum(one.misses for one in every_specializations_of(compiled))


def recompile_reasons(compiled: Any) -> list[str]:
    """The reason why calls were not served by programs that were there, the latest last: path, what it was, what it is.

    >>> import torch
    >>> from thunder_core import jit, recompile_reasons
    >>> double = jit(lambda x, factor: x * factor)
    >>> _ = double(torch.ones(2), 2), double(torch.ones(2), 3)
    >>> recompile_reasons(double)
    ['args[1]: was 2, is 3']
    """
    return [reason for one in every_specializations_of(compiled) for reason in one.reasons]
