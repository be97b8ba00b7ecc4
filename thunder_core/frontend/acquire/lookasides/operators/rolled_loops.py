"""Loops over a symbolic number of iterations, recorded as one `scan` or `map_slices` for all numbers of iterations.

A lookaside of `range` or `unbind` records the loop around the call if the loop's body can be rewritten to a function
(`loop_bodies`). The lookaside then sets the variables to their values after the loop, and returns an empty range or
tuple, so that the interpreted loop does nothing. If recording fails, the program is traced again with this loop
unrolled. The number of iterations is then a constant, and its constraint states the reason.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves

from thunder_core.foundation.errors import OperationFailed
from thunder_core.foundation.errors.tree import message_line
from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.operators.control_flow import FlatteningFunction, record_over_slices
from thunder_core.frontend.acquire.lookasides.operators.joined_rows import Rows
from thunder_core.frontend.acquire.lookasides.operators.loop_bodies import LoopBody, rewrite_loop_body
from thunder_core.frontend.acquire.lookasides.operators.loop_gradients import detach_unreached
from thunder_core.frontend.acquire.lookasides.operators.loop_values import (
    LoopNotRecordable,
    UnchangedStateCheck,
    require_consistent_gradients,
    require_operands_not_written,
    require_recordable_variables,
    require_same_metadata,
    require_unshared_memory,
    require_unshared_rows,
)
from thunder_core.frontend.acquire.subtraces import Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.sequences import is_number, range_of
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.ir.retrace import UnrollsLoop
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.library.control_flow import map_slices, scan

MIN_ITERATIONS = 1  # a loop without iterations is not recorded, and has a program of its own
LOOP = "a loop"


@dataclass(frozen=True)
class Iterations:
    """The contiguous indices of a loop. `first` is the smallest of `count` indices, even if the order `is_reversed`."""

    first: Any
    count: Any
    is_reversed: bool


@lookaside(range)
def record_loop_over_range(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Record the loop over a range of symbolic length, and return an empty range for the interpreted loop.

    If the loop is not recorded, the result is a `SymbolicRange` or `NOT_TAKEN`.
    """
    if kwargs or not any(map(is_symbolic, args)) or run.machine.frame is None:
        return NOT_TAKEN
    iterations = indices_of_range(run, *args)
    if iterations is not None and not is_symbolic(iterations.count):
        return NOT_TAKEN
    return range(0) if try_to_record(run, iterations, args) else symbolic_range(run, *args)


def symbolic_range(run: TracedRun, *args: Any) -> Any:
    """Return a `SymbolicRange`; `NOT_TAKEN` if the numbers are known, the length is zero, or the step is symbolic."""
    args = run.recorder.numbers.simplify_number(args)
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    if type(step) is not int or not step or not any(map(is_symbolic, args)):
        return NOT_TAKEN
    symbolic = range_of(start, stop, step) if all(is_number(number) for number in (start, stop)) else None
    return NOT_TAKEN if symbolic is None else symbolic


def record_loop_over_unbind(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the loop over `unbind` along a symbolic dimension, and return an empty tuple for the interpreted loop.

    Returns `NOT_TAKEN` for other calls, and if the loop is not recorded.
    """
    if callable_name(function) != "unbind":
        return NOT_TAKEN
    owner = callable_attribute(function, "__self__")
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


def indices_of_range(run: TracedRun, *args: Any) -> Iterations | None:
    """Return the indices of `range(*args)`; None for a step other than 1 and -1."""
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
    """Record the loop around the current call, and return whether the loop was recorded.

    If the source or the variables of the loop do not permit recording, the program is specialized to the values of
    `numbers`, and the result is False. The result is also False, without a specialization, if there is no loop around
    the call or no iteration. If recording fails later, `UnrollsLoop` is raised: the program is traced again.

    `iterations` is None if the indices are not contiguous. `item` has the tensor and the dimension of `unbind`.
    """
    frame: Any = run.machine.frame
    loop = frame.code, frame.program.offsets[frame.pc]
    body: LoopBody | str | None = run.options.unrolled_loops.get(loop) or rewrite_loop_body(*loop)
    if body is None:
        return False
    reason = "the step of its range is neither 1 nor -1" if iterations is None else reason_to_unroll(frame, body)
    if isinstance(body, str) or iterations is None or reason:
        specialize_with_reason(run, frame, reason, numbers)
        return False
    if not run.machine.call(operator.ge, iterations.count, MIN_ITERATIONS):
        return False
    try:
        record_loop(run, frame, body, iterations, item)
    except Exception as error:
        raise run.retrace(UnrollsLoop(*loop, reason_of(error))) from error
    return True


def reason_to_unroll(frame: Frame, body: LoopBody | str) -> str:
    """Return why the source or the variables of a loop do not permit recording; an empty string if they do."""
    if isinstance(body, str):
        return body
    try:
        require_recordable_variables(frame, body)
    except LoopNotRecordable as error:
        return str(error)
    return ""


def specialize_with_reason(run: TracedRun, frame: Frame, reason: str, numbers: Sequence[Any]) -> None:
    """Specialize the program to the values of a loop's symbolic numbers. Their constraints state why it is unrolled."""
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
    if isinstance(error, LoopNotRecordable):
        return str(error)
    return f"its body raises {type(error).__name__}: {message_line(error)}"


def record_loop(
    run: TracedRun, frame: Frame, body: LoopBody, iterations: Iterations, item: tuple[torch.Tensor, int] | None
) -> None:
    """Record the loop as one call of `scan`, or of `map_slices` if nothing is carried, and set the frame's variables.

    Raises `LoopNotRecordable` or the body's own error if the loop cannot be recorded.
    """
    values = frame.bound_locals()
    order = Iterations(iterations.first, iterations.count, iterations.is_reversed != body.source.is_reversed)
    selections = [(values[name], dimension, offset) for name, dimension, offset in (*body.slices, *body.buffers)]
    selections += [(*item, 0)] if item else []
    narrowed = [narrow(run, selection, order) for selection in selections]
    subtraces = Subtraces(run, LOOP)
    initial = [with_result_layout(subtraces, values[name]) for name in body.carried]
    require_unshared_memory(subtraces, body, values, item)

    invariants = [values[name] for name in body.invariants]
    function = FunctionType(body.code, frame.globals, body.code.co_name)
    global_values = [frame.globals.get(name) for name in body.global_names]
    # This partial is never called. It refers to all objects that the body reads, whose changes are detected.
    bound_function = functools.partial(function, *invariants, *global_values)
    tensors = [*initial, *(value for value in invariants if isinstance(value, torch.Tensor))]
    unchanged_state = UnchangedStateCheck(run, bound_function, tensors)

    flattened = FlatteningFunction(run, function)
    iterate = checked_iteration(subtraces, body, flattened)
    dimensions = [dimension for _, dimension, _ in selections]
    stacks = [slices_first(run, *pair, order) for pair in zip(narrowed, dimensions, strict=True)]
    loop_operator = scan if initial else map_slices
    with run.calls.collect_entered_codes() as codes:
        results = record_over_slices(
            *(subtraces, loop_operator, bound_function, iterate, initial, stacks, invariants, detach_unreached)
        )
    unchanged_state.require(codes - {body.code})
    require_operands_not_written(subtraces, body, values)
    require_consistent_gradients(tree_leaves(flattened.results), results)
    store_results(run, frame, body, results, order)


def checked_iteration(subtraces: Subtraces, body: LoopBody, flattened: FlatteningFunction) -> Callable[..., list[Any]]:
    """Return a function that interprets one iteration, checks its results, and returns carried tensors and rows."""

    def iterate(*args: Any) -> list[Any]:
        flattened(*args)
        carried, rows = flattened.results
        require_same_metadata(subtraces.fake, body, args[: len(body.carried)], carried)
        require_unshared_rows(subtraces, body, carried, rows)
        return [*carried, *(subtraces.run.machine.call(torch.Tensor.clone, row) for row in rows)]

    return iterate


def with_result_layout(subtraces: Subtraces, tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a carried tensor whose strides descend but have gaps; other tensors as they are.

    Such a tensor is a slice like `x[:, 0]`. Operations on a slice return contiguous tensors, and each iteration must
    return tensors with the strides of the carried tensors.
    """
    fake = subtraces.fake(tensor)
    with without_our_functions():  # Thunder reads these sizes, not the program
        sizes, strides = fake.shape, fake.stride()
    sizes, strides = ([hint_of(extent) for extent in extents] for extents in (sizes, strides))
    dense = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    if sorted(strides, reverse=True) != strides or strides == dense:
        return tensor
    copy: torch.Tensor = subtraces.run.machine.call(torch.Tensor.clone, tensor, memory_format=torch.contiguous_format)
    return copy


def narrow(run: TracedRun, selection: tuple[torch.Tensor, int, int], order: Iterations) -> torch.Tensor:
    """Return the part of a tensor that the iterations read or write, in the order of the indices.

    `selection` has the tensor, the dimension of the index, and the number that is added to the index. Raises
    `LoopNotRecordable` for indices that are negative or exceed the size of the dimension.
    """
    tensor, dimension, offset = selection
    call = run.machine.call
    first = call(operator.add, order.first, offset) if offset else order.first
    size = call(torch.Tensor.size, tensor, dimension)
    if type(first) is int and not first and is_equal_for_all_values(size, order.count):
        return tensor
    end = call(operator.add, first, order.count)
    if not call(operator.ge, first, 0) or not call(operator.le, end, size):
        raise LoopNotRecordable("it reads or writes a slice before the first or after the last one")
    return call(torch.narrow, tensor, dimension, first, order.count)  # type: ignore[no-any-return]


def is_equal_for_all_values(size: Any, count: Any) -> bool:
    """Whether a size and a symbolic number are equal for all values of their symbols."""
    return is_symbolic(size) and statically_known_true(size.size == count.size)


def slices_first(run: TracedRun, tensor: torch.Tensor, dimension: int, order: Iterations) -> torch.Tensor:
    """Return a tensor whose first dimension has the slices along a dimension, in the order of the iterations."""
    return in_loop_order(run, run.machine.call(torch.movedim, tensor, dimension, 0), order)


def in_loop_order(run: TracedRun, slices: torch.Tensor, order: Iterations) -> torch.Tensor:
    """Change slices from the order of the indices to the order of the iterations, or back."""
    return run.machine.call(torch.flip, slices, (0,)) if order.is_reversed else slices


def store_results(
    run: TracedRun, frame: Frame, body: LoopBody, results: Sequence[torch.Tensor], order: Iterations
) -> None:
    """Set the frame's variables to their values after the loop.

    `results` are the carried tensors, then the stacked rows of each list and of each buffer.
    """
    call, values, names = run.machine.call, frame.bound_locals(), frame.program.names
    count = len(body.carried)
    for name, value in zip(body.carried, results, strict=False):
        if name in body.updated_in_place:
            call(torch.Tensor.copy_, values[name], value)
        else:
            frame.fast[names.index(name)] = value
    for name, stack in zip(body.lists, results[count:], strict=False):
        frame.fast[names.index(name)] = Rows(stack)
    for (name, dimension, offset), stack in zip(body.buffers, results[count + len(body.lists) :], strict=True):
        rows = narrow(run, (values[name], dimension, offset), order)
        call(torch.Tensor.copy_, rows, call(torch.movedim, in_loop_order(run, stack, order), 0, dimension))
