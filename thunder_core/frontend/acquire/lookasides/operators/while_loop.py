"""`torch.while_loop`: its condition and its body become sub-traces of one bound symbol.

Loops that carry Python numbers run in Python, iteration by iteration. Within `torch.vmap`, a loop runs while its
condition holds for any element of the batch, and changes only the elements for which the condition holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from thunder_core.frontend.acquire.lookasides.operators.control_flow import (
    FlatteningFunction,
    are_tracked,
    check_carried,
)
from thunder_core.frontend.acquire.lookasides.operators.higher_order import higher_order
from thunder_core.frontend.acquire.subtraces import SubtraceRecording, Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.library.control_flow import while_loop


@higher_order("while_loop")
def loop(
    run: TracedRun,
    condition: Callable[..., Any],
    body: Callable[..., Any],
    carried: tuple[Any, ...],
    additional: tuple[Any, ...] = (),
) -> Any:
    """Record the condition and the body, and a loop that runs while the condition holds for the carried tensors."""
    subtraces = Subtraces(run, "torch.while_loop")
    flat_body = FlatteningFunction(run, body)
    if not all(isinstance(value, torch.Tensor) for value in carried):
        return loop_in_python(subtraces, condition, body, flat_body, carried, additional)
    recorder, batches = subtraces.recorder, subtraces.batches
    proxies = [recorder.proxy_of(batches.physical(value)) for value in carried]
    placeholders = [subtraces.placeholder(proxy) for proxy in proxies]
    inputs = subtraces.to_program(placeholders)

    def run_body() -> list[torch.Tensor]:
        results = [
            batches.physical(leaf) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in flat_body(*inputs, *additional)
        ]
        check_carried(subtraces, results, placeholders, "body_fn_output", "carried_inputs")
        if not batches.dimensions:
            return results
        # Elements for which the condition no longer holds keep their values.
        predicate = batches.physical_predicate(run.machine.call(condition, *inputs, *additional))
        return [batches.where(predicate, *pair) for pair in zip(results, placeholders, strict=True)]

    condition_recording = record_condition(subtraces, condition, placeholders, additional)
    if condition_recording is None:
        return carried
    recordings = {"condition": condition_recording, "body": subtraces.record(body, run_body, placeholders)}
    results = emit_while_loop(subtraces, recordings, proxies, placeholders)
    return tree_unflatten(list(subtraces.to_program(results)), flat_body.structure)


def emit_while_loop(
    subtraces: Subtraces,
    recordings: Mapping[str, SubtraceRecording],
    carried: Sequence[TensorProxy],
    placeholders: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Emit a loop of a recorded condition and body over the carried tensors, and return its results."""
    read = subtraces.operands(tuple(recordings.values()), placeholders)
    names = [subtraces.recorder.proxy_of(tensor) for tensor in placeholders]
    traces = [subtraces.trace(recording, name, names, read) for name, recording in recordings.items()]
    tracked = are_tracked(subtraces, (*carried, *read))
    results = [subtraces.like(result, requires_grad=tracked) for result in recordings["body"].results]
    subtraces.emit(while_loop, (*traces, tuple(carried), read), results)
    return results


def record_condition(
    subtraces: Subtraces, condition: Callable[..., Any], placeholders: Sequence[torch.Tensor], additional: Sequence[Any]
) -> SubtraceRecording | None:
    """Record the condition; return None if the condition is a constant that is false, so that the loop never runs.

    Raises `RuntimeError`, as PyTorch does, for a constant that is true, and for a tensor that is not a boolean scalar.
    """
    call, batches = subtraces.run.machine.call, subtraces.batches
    constants: list[Any] = []

    def test() -> list[torch.Tensor]:
        predicate = call(condition, *subtraces.to_program(placeholders), *additional)
        if not isinstance(predicate, torch.Tensor):
            constants.append(predicate)
            return []
        require_predicate(predicate)
        return [call(torch.any, batches.physical_predicate(predicate)) if batches.dimensions else predicate]

    recording = subtraces.record(condition, test, placeholders)
    if not constants:
        return recording
    if call(bool, constants[0]):
        require_predicate(constants[0])
        raise RuntimeError("Infinite loop detected because while_loop's cond_fn always returns the same value")
    return None


def require_predicate(predicate: object) -> None:
    """Raise PyTorch's `RuntimeError` for a condition's result that is neither a boolean scalar tensor nor a boolean."""
    if isinstance(predicate, bool | torch.SymBool):
        return
    if not isinstance(predicate, torch.Tensor):
        raise RuntimeError(f"cond_fn must return a boolean scalar tensor or a boolean but got {type(predicate)}")
    if predicate.dtype != torch.bool or predicate.dim() != 0:
        raise RuntimeError(
            f"Expected cond_fn to return a boolean scalar tensor or a boolean but got a tensor of {predicate.dtype} "
            f"and shape {tuple(predicate.shape)}."
        )


def loop_in_python(
    subtraces: Subtraces,
    condition: Callable[..., Any],
    body: Callable[..., Any],
    flat_body: FlatteningFunction,
    carried: Sequence[Any],
    additional: Sequence[Any],
) -> Any:
    """Run a loop in Python while it is traced, and guard the condition's decisions. `flat_body` calls the body.

    If the condition never holds, the results are copies, in the structure that the body would have returned.
    """
    call = subtraces.run.machine.call

    def holds() -> bool:
        predicate = call(condition, *carried, *additional)
        require_predicate(predicate)
        return bool(call(bool, predicate))

    while holds():
        results = flat_body(*carried, *additional)
        check_carried(subtraces, results, carried, "body_fn_output", "carried_inputs")
        carried = results
    if flat_body.structure is None:
        subtraces.record(body, lambda: (flat_body(*carried, *additional), [])[1], ())
        carried = [call(torch.clone, leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in carried]
    return tree_unflatten(list(carried), flat_body.structure)
