"""Loops over a symbolic number of iterations, recorded as one `scan` for all numbers.

A lookaside of `range` or `unbind` records the loop around the call if its body is a function (`loop_bodies`). It then
sets the variables to their values after the loop, and returns an empty range. If recording the body fails, the program
is traced again with this loop unrolled. The number of iterations is then a constant, and its constraint states the
reason.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves

from thunder_core.foundation.errors import OperationFailed
from thunder_core.foundation.errors.tree import message_line
from thunder_core.frontend.acquire.lookasides.operators.control_flow import Flattened, over_slices
from thunder_core.frontend.acquire.lookasides.operators.joined_rows import Rows
from thunder_core.frontend.acquire.lookasides.operators.loop_bodies import LoopBody, loop_body
from thunder_core.frontend.acquire.lookasides.operators.loop_gradients import detach_unreached
from thunder_core.frontend.acquire.lookasides.operators.loop_values import (
    Unchanged,
    Unsteady,
    require_known,
    require_own_memory,
    require_own_rows,
    require_same_gradients,
    require_same_metadata,
    require_unwritten_operands,
)
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.subtraces import Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.sequences import is_number, range_of
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.ir.retrace import UnrollsLoop
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.library.control_flow import map_slices, scan

MIN_ITERATIONS = 1  # iterations of a recorded loop: a loop without iterations has a program of its own
LOOP = "a loop"


@dataclass(frozen=True)
class Iterations:
    """The indices of a loop: `count` of them from `first` on, in reversed order if `is_reversed`."""

    first: Any
    count: Any
    is_reversed: bool


@lookaside(range)
def roll(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Record the loop over a range of symbolic length, if its body is a function, and return an empty range."""
    if kwargs or not any(map(is_symbolic, args)) or run.machine.frame is None:
        return NOT_TAKEN
    iterations = iterations_of(run, *args)
    if iterations is not None and not is_symbolic(iterations.count):
        return NOT_TAKEN
    return range(0) if try_to_record(run, iterations, args) else symbolic_range(run, *args)


def symbolic_range(run: TracedRun, *args: Any) -> Any:
    """Return a range of symbolic length, which is not taken if its numbers are known, or its length is zero."""
    args = run.recorder.numbers.simplify_number(args)
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    if type(step) is not int or not step or not any(map(is_symbolic, args)):
        return NOT_TAKEN
    symbolic = range_of(start, stop, step) if all(is_number(number) for number in (start, stop)) else None
    return NOT_TAKEN if symbolic is None else symbolic


def unbind_in_loop(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the loop over the slices of a tensor along a symbolic dimension, and return no slices."""
    if getattr(function, "__name__", "") != "unbind":
        return NOT_TAKEN
    owner = getattr(function, "__self__", None)
    operands = (owner, *args) if isinstance(owner, torch.Tensor) else args
    frame = run.machine.frame
    if frame is None or not operands or len(operands) > 2 or kwargs or not isinstance(operands[0], torch.Tensor):
        return NOT_TAKEN
    tensor, dimension = operands[0], operands[1] if len(operands) > 1 else 0
    if type(dimension) is not int or not -tensor.dim() <= dimension < tensor.dim():
        return NOT_TAKEN
    dimension %= tensor.dim()
    count = run.machine.call(torch.Tensor.size, tensor, dimension)
    if not is_symbolic(count):
        return NOT_TAKEN
    return () if try_to_record(run, Iterations(0, count, False), (count,), (tensor, dimension)) else NOT_TAKEN


def is_symbolic(value: object) -> bool:
    """Whether a value is a symbolic integer that the prologue computes."""
    return isinstance(value, SymbolicNumber) and value.size is not None


def iterations_of(run: TracedRun, *args: Any) -> Iterations | None:
    """Return the indices of a range; None for a step other than 1 and -1."""
    call = run.machine.call
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    if type(step) is not int or step not in (1, -1):
        return None
    if step == 1:
        return Iterations(start, call(operator.sub, stop, start), False)
    return Iterations(call(operator.add, stop, 1), call(operator.sub, start, stop), True)


def try_to_record(
    run: TracedRun, iterations: Iterations | None, numbers: Sequence[Any], item: tuple[torch.Tensor, int] | None = None
) -> bool:
    """Record the loop around the current call, and return True. If that fails, guard the `numbers` and return False.

    The iterations are None if they are not contiguous.
    """
    frame: Any = run.machine.frame
    loop = frame.code, frame.program.offsets[frame.pc]
    body: LoopBody | str | None = run.unrolled_loops.get(loop) or loop_body(*loop)
    if body is None:
        return False
    reason = "the step of its range is neither 1 nor -1" if iterations is None else reason_to_unroll(frame, body)
    if isinstance(body, str) or iterations is None or reason:
        guard_with_reason(run, frame, reason, numbers)
        return False
    if not run.machine.call(operator.ge, iterations.count, MIN_ITERATIONS):
        return False
    try:
        record(run, frame, body, iterations, item)
    except Exception as error:
        raise run.retrace(UnrollsLoop(*loop, reason_of(error))) from error
    return True


def reason_to_unroll(frame: Frame, body: LoopBody | str) -> str:
    """Return the reason in a loop's source or variables why it cannot be recorded; empty if there is none."""
    if isinstance(body, str):
        return body
    try:
        require_known(frame, body)
    except Unsteady as error:
        return str(error)
    return ""


def guard_with_reason(run: TracedRun, frame: Frame, reason: str, numbers: Sequence[Any]) -> None:
    """Guard the values of the numbers that a loop iterates over, with the reason why the loop is unrolled."""
    source = run.location().source
    if source is None or source.filename != frame.filename:
        return
    origin = f"needed at {source}, because this loop is unrolled: {reason}"
    for number in filter(is_symbolic, numbers):
        with number.sizes.environment.deciding_for(origin):
            number.concretize()


def reason_of(error: Exception) -> str:
    """Return why a loop could not be recorded, in words."""
    if isinstance(error, OperationFailed):
        return error.what.replace(f"a function passed to `{LOOP}`", "its body")
    return (
        str(error) if isinstance(error, Unsteady) else f"its body raises {type(error).__name__}: {message_line(error)}"
    )


def record(
    run: TracedRun, frame: Frame, body: LoopBody, iterations: Iterations, item: tuple[torch.Tensor, int] | None
) -> None:
    """Record a loop, and set the variables of its frame."""
    call, values = run.machine.call, frame.bound_locals()
    order = Iterations(iterations.first, iterations.count, iterations.is_reversed != body.source.is_reversed)
    selections = [(values[name], dimension, offset) for name, dimension, offset in (*body.slices, *body.buffers)]
    selections += [(*item, 0)] if item else []
    pairs = [(narrow(run, selection, order), selection) for selection in selections]
    subtraces = Subtraces(run, LOOP)
    initial = [with_result_layout(subtraces, values[name]) for name in body.carried]
    same = [values[name] for name in body.same]
    function = FunctionType(body.code, frame.globals, body.code.co_name)
    bound_function = functools.partial(function, *same, *(frame.globals.get(name) for name in body.globals))
    require_own_memory(subtraces, body, values, item)
    unchanged = Unchanged(
        run, bound_function, [*initial, *(value for value in same if isinstance(value, torch.Tensor))]
    )
    flat = Flattened(run, function)

    def iterate(*args: Any) -> list[Any]:
        flat(*args)
        carried, rows = flat.results
        require_same_metadata(subtraces.fake, body, args[: len(initial)], carried)
        require_own_rows(subtraces, body, carried, rows)
        return [*carried, *(call(torch.Tensor.clone, row) for row in rows)]

    slices = [in_loop_order(run, call(torch.movedim, tensor, selection[1], 0), order) for tensor, selection in pairs]
    with entered_codes(run) as codes:
        target = scan if initial else map_slices
        results = over_slices(subtraces, target, bound_function, iterate, initial, slices, same, detach_unreached)
    unchanged.require(codes - {body.code})
    require_unwritten_operands(subtraces, body, values)
    require_same_gradients(tree_leaves(flat.results), results)
    store(run, frame, body, results, order)


def with_result_layout(subtraces: Subtraces, tensor: torch.Tensor) -> torch.Tensor:
    """Return a carried tensor as operations would return it: contiguous if it is a slice that leaves out elements."""
    fake = subtraces.fake(tensor)
    with without_our_functions():  # Thunder reads these sizes, not the program
        sizes, strides = fake.shape, fake.stride()
    sizes, strides = ([hint_of(extent) for extent in extents] for extents in (sizes, strides))
    dense = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    if sorted(strides, reverse=True) != strides or strides == dense:
        return tensor
    copy: torch.Tensor = subtraces.run.machine.call(torch.Tensor.clone, tensor, memory_format=torch.contiguous_format)
    return copy


@contextmanager
def entered_codes(run: TracedRun) -> Iterator[set[CodeType]]:
    """Yield a set that receives each code object that is interpreted during the block."""
    before, run.entered_codes = run.entered_codes, set()
    try:
        yield run.entered_codes
    finally:
        run.entered_codes = before if before is None else before | run.entered_codes


def narrow(run: TracedRun, selection: tuple[torch.Tensor, int, int], order: Iterations) -> torch.Tensor:
    """Return the slices of a tensor that the iterations read or write, in the order of the indices.

    Raises `Unsteady` for indices that the tensor does not have, or that count from its end.
    """
    tensor, dimension, offset = selection
    call = run.machine.call
    first = call(operator.add, order.first, offset) if offset else order.first
    size = call(torch.Tensor.size, tensor, dimension)
    if type(first) is int and not first and is_same(size, order.count):
        return tensor
    end = call(operator.add, first, order.count)
    if not call(operator.ge, first, 0) or not call(operator.le, end, size):
        raise Unsteady("it reads or writes a slice before the first or after the last one")
    return call(torch.narrow, tensor, dimension, first, order.count)  # type: ignore[no-any-return]


def is_same(size: Any, count: Any) -> bool:
    """Whether a size and a symbolic number are equal for all their values."""
    return is_symbolic(size) and statically_known_true(size.size == count.size)


def in_loop_order(run: TracedRun, slices: torch.Tensor, order: Iterations) -> torch.Tensor:
    """Return slices in the order of the iterations; applied twice, the slices are in the order of the indices again."""
    return run.machine.call(torch.flip, slices, (0,)) if order.is_reversed else slices


def store(run: TracedRun, frame: Frame, body: LoopBody, results: Sequence[torch.Tensor], order: Iterations) -> None:
    """Set variables to their values after the loop: carried tensors, lists of rows, and buffers with their rows."""
    call, values, names = run.machine.call, frame.bound_locals(), frame.program.names
    count = len(body.carried)
    for name, value in zip(body.carried, results, strict=False):
        if name in body.updated:
            call(torch.Tensor.copy_, values[name], value)
        else:
            frame.fast[names.index(name)] = value
    for name, stack in zip(body.lists, results[count:], strict=False):
        frame.fast[names.index(name)] = Rows(stack)
    for (name, dimension, offset), stack in zip(body.buffers, results[count + len(body.lists) :], strict=True):
        rows = narrow(run, (values[name], dimension, offset), order)
        call(torch.Tensor.copy_, rows, call(torch.movedim, in_loop_order(run, stack, order), 0, dimension))
