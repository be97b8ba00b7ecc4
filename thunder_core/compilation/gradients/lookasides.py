"""Lookasides that record derivatives while a program is being traced.

They record ordinary bound symbols, so that a derivative can be differentiated again, and a fusion executor can fuse
its operations with others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from thunder_core.backend.functionalization.local import functionalize_local
from thunder_core.compilation.gradients import functions
from thunder_core.compilation.gradients.reverse import ALIAS, Pullback, Reverse, refuse_underivable
from thunder_core.compilation.gradients.subjects import Gradient, JvpFunction
from thunder_core.compilation.gradients.trees import (
    differentiable_leaves,
    indices_of,
    require_differentiable,
    require_same,
    require_scalar,
    require_tensors,
    split_aux,
)
from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.passes.autodiff.decompose_autocast import decompose_autocast, runs_under_autocast, with_autocast_off
from thunder_core.passes.autodiff.forward_mode import forward_sweep
from thunder_core.passes.autodiff.refusals import require_no_compiled_call
from thunder_core.passes.autodiff.segment import RecordedSegment, without_recorder


@lookaside(Gradient.call)
def gradient(run: TracedRun, gradient: Gradient, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call of the function, and then the bound symbols of its gradient, by reverse mode."""
    differentiated = run.machine.load_attr(gradient, "function")
    indices = indices_of(gradient.argnums, len(args), gradient.name)
    if _uses_torch_func(run):
        differentiable_leaves([args[index] for index in indices], gradient.name)
        return gradient.call_by(run.machine.call, differentiated, args, kwargs)
    reverse = Reverse(run, gradient.name, tuple(args[index] for index in indices))
    primals_by_index = dict(zip(indices, reverse.primals, strict=True))
    output = reverse.call(differentiated, [primals_by_index.get(index, arg) for index, arg in enumerate(args)], kwargs)
    where = run.location().source
    value, aux = split_aux(output, gradient.has_aux, gradient.name, where)
    scalar = require_scalar(value, gradient.name, where)
    reverse.derive([scalar])
    gradients = reverse.gradients([torch.ones((), dtype=scalar.dtype, device=scalar.device)])
    value, aux = reverse.with_arguments((value, aux))
    return gradient.result(gradients if isinstance(gradient.argnums, tuple) else gradients[0], value, aux)


@lookaside(functions.vjp)
def pull_back(
    run: TracedRun, /, function: Callable[..., Any], *primals: Any, has_aux: bool = False, executors: object = None
) -> Any:
    """Record a call of the function, and return its pullback, which records the backward when it is called.

    `executors` has no effect here, because the executors of the traced program run the derivative.
    """
    if _uses_torch_func(run):
        differentiable_leaves(primals, "vjp")
        return run.machine.call(torch.func.vjp, function, *primals, has_aux=has_aux)
    reverse = Reverse(run, "vjp", primals)
    output = reverse.call(function, reverse.primals, {})
    where = run.location().source
    output, aux = split_aux(output, has_aux, "vjp", where)
    reverse.derive(require_differentiable(tree_flatten(output)[0], "vjp", where))
    pullback = Pullback(reverse, output)
    output, aux = reverse.with_arguments((output, aux))
    return (output, pullback, aux) if has_aux else (output, pullback)


@lookaside(functions.jvp)
def push_forward(
    run: TracedRun,
    /,
    function: Callable[..., Any],
    primals: object,
    tangents: object,
    *,
    has_aux: bool = False,
    executors: object = None,
) -> Any:
    """Record a call of the function together with the tangents of its results. `executors` has no effect here."""
    return record_jvp(run, function, primals, tangents, has_aux)


@lookaside(JvpFunction.call)
def product(run: TracedRun, product: JvpFunction, /, primals: object, tangents: object) -> Any:
    """Record the call of a `JvpFunction`: the function of the user, together with the tangents of its results."""
    return record_jvp(run, run.machine.load_attr(product, "function"), primals, tangents, product.has_aux)


def record_jvp(run: TracedRun, function: Callable[..., Any], primals: object, tangents: object, has_aux: bool) -> Any:
    """Record the `jvp` of a function while a program is being traced."""
    run.outside.expand_whole((primals, tangents))
    leaves, structure = differentiable_leaves(primals, "jvp")
    directions = require_same(tangents, primals, ("the tangents", "the primals"), "jvp")
    if _uses_torch_func(run):
        return run.machine.call(torch.func.jvp, function, primals, tangents, has_aux=has_aux)
    starts = [ALIAS(leaf) for leaf in leaves]
    segment = RecordedSegment(run.recorder)
    output = run.machine.call(function, *tree_unflatten(starts, structure))
    segment.close()
    where = run.location().source
    output, aux = split_aux(output, has_aux, "jvp", where)
    results, shape = tree_flatten(output)
    require_tensors(results, "jvp", where)
    proxy = run.recorder.proxy_of
    names = {proxy(start).name: proxy(tangent) for start, tangent in zip(starts, directions, strict=True)}
    with refuse_underivable(run, "jvp", segment.writes), without_recorder():
        require_no_compiled_call(segment.bsyms)
        under_autocast = runs_under_autocast(segment.bsyms)
        if under_autocast:
            segment.replace_with(decompose_autocast(segment.bsyms))
        if segment.writes:
            segment.replace_with(functionalize_local(segment.bsyms, segment.names()))
        sweep = forward_sweep(segment.bsyms, names, segment.names())
        segment.replace_with(with_autocast_off(sweep.bsyms) if under_autocast else sweep.bsyms)
    tangents_out = [sweep.tangents.get(proxy(result).name) for result in results]
    result_tangents = [
        torch.zeros_like(result) if tangent is None else segment.tensor(tangent)
        for tangent, result in zip(tangents_out, results, strict=True)
    ]
    answer = (output, tree_unflatten(result_tangents, shape))
    return (*answer, aux) if has_aux else answer


def _uses_torch_func(run: TracedRun) -> bool:
    """Whether a derivative is that of `torch.func`: inside other transforms, or if an earlier run has required it."""
    return run.options.derives_by_torch_func or run.recorder.levels.depth > 0
