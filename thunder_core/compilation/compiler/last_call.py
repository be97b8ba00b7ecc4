"""The program and the traces of a compiled subject's latest call, and the cache statistics of its calls."""

from __future__ import annotations

from thunder_core.backend.runtime.attempt_log import TracingAttempt
from thunder_core.backend.runtime.captured import CapturedSubject
from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.inner_generation import with_inner
from thunder_core.backend.runtime.module import Original
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import WrongInputs
from thunder_core.tracing.ir.trace import Trace


def specializations_of(compiled: object) -> Specializations:
    """Return the cache of a compiled function or module; raise `WrongInputs` for anything else."""
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


def all_specializations_of(compiled: object) -> list[Specializations]:
    """Return the caches of a compiled function or module, of its methods, or of the graphs that Dynamo captured."""
    captured = getattr(compiled, "_thunder", None)
    if isinstance(captured, CapturedSubject):
        return captured.all_specializations
    specializations = specializations_of(compiled)
    forward = specializations.of_forward
    is_called_by_forward = forward is not None and forward.misses and not specializations.misses
    own = forward if forward is not None and is_called_by_forward else specializations
    return [own, *with_inner(specializations)[1:]]


def last_program(compiled: object) -> Program:
    """Return the program that the latest call ran; raise `WrongInputs` before the first call.

    If Dynamo captured the subject in one graph, the result is the program of the graph. `WrongInputs` is raised for
    several graphs.
    """
    caches = all_specializations_of(compiled)
    is_captured = isinstance(getattr(compiled, "_thunder", None), CapturedSubject)
    if is_captured and len(caches) != 1:
        specializations_of(compiled)  # raises the error, because each graph has a program of its own
    program = next((cache.last for cache in caches if cache.last is not None), None)
    if program is None:
        raise WrongInputs("nothing has been traced yet", fix="call the compiled function once")
    return program


def last_traces(compiled: object) -> list[Trace]:
    """Return the stages of the computation of the latest call, as traces. The call ran the last trace."""
    return last_program(compiled).traces("computation")


def last_prologue_traces(compiled: object) -> list[Trace]:
    """Return the stages of the prologue of the latest call, which checks guards and unpacks arguments."""
    return last_program(compiled).traces("prologue")


def last_epilogue_traces(compiled: object) -> list[Trace]:
    """Return the stages of the epilogue of the latest call, which has the side effects and builds the result."""
    return last_program(compiled).traces("epilogue")


def last_backward_traces(compiled: object) -> list[Trace]:
    """Return the stages of the backward of the latest call; an empty list if there is none (`last_backward_reason`).

    A backward is compiled when it first runs, for the results that have gradients. Before that, the list has only the
    derived trace for gradients of all results. Each bound symbol has the source line of the operation whose derivative
    it computes.
    """
    return last_program(compiled).traces("backward")


def last_backward_reason(compiled: object) -> str:
    """Return the reason why the latest call has no compiled backward; empty if it has one.

    >>> import torch
    >>> from thunder_core import jit, last_backward_reason
    >>> overwritten = jit(lambda x: x.exp().add_(1))  # the derivative of exp reads its result, which add_ overwrites
    >>> _ = overwritten(torch.ones(2, requires_grad=True))
    >>> last_backward_reason(overwritten)
    '`torch.Tensor.add_`...: it writes to a tensor that needs a gradient'
    """
    return last_program(compiled).no_backward_reason


def cache_hits(compiled: object) -> int:
    """Return the number of calls that an existing program served; with Dynamo, the sum over its graphs."""
    return sum(cache.hits for cache in all_specializations_of(compiled))


def cache_misses(compiled: object) -> int:
    """Return the number of calls that had to be traced; with Dynamo, the sum over its graphs."""
    return sum(cache.misses for cache in all_specializations_of(compiled))


def recompile_reasons(compiled: object) -> list[str]:
    """Return the reasons why calls had to be traced again, the latest last. A reason has the path and both values.

    >>> import torch
    >>> from thunder_core import jit, recompile_reasons
    >>> double = jit(lambda x, factor: x * factor)
    >>> _ = double(torch.ones(2), 2), double(torch.ones(2), 3)
    >>> recompile_reasons(double)
    ['args[1]: was 2, is 3']
    """
    return [reason for cache in all_specializations_of(compiled) for reason in cache.reasons]


def tracing_attempts(compiled: object) -> list[TracingAttempt]:
    """Return the attempts to trace the calls of a compiled function or module, the latest last, up to 1,000.

    A call is traced again with other options if an attempt fails. An attempt has the number of the `call`, a
    description of what was `tried`, and its `seconds`. If it failed, it has the `reason` and the source line `where` it
    failed. `str(attempt)` is a line of text.

    >>> import torch
    >>> from thunder_core import jit, tracing_attempts
    >>> def shift(x):
    ...     return x + 1 if x.sum() > 0 else x - 1
    >>> fast = jit(shift, cache="symbolic values")
    >>> _ = fast(torch.ones(2))
    >>> for attempt in tracing_attempts(fast):
    ...     print(attempt.reason or "succeeded")
    `torch.Tensor.__bool__` reads the value of a tensor, which is not known while tracing
    succeeded
    """
    return [attempt for cache in all_specializations_of(compiled) for attempt in list(cache.observed.log.attempts)]
