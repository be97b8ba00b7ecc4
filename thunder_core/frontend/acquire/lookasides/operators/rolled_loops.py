"""Loops over a symbolic number of iterations, recorded as one `scan` for all numbers.

A lookaside of `range` records the loop around the call if its body is a function (`loop_bodies`). It then sets the
variables to their values after the loop, and returns an empty range. If the body is not what it seems, the program is
traced again with this loop unrolled: then the number of iterations is a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from thunder_core.frontend.acquire.lookasides.operators.control_flow import Flattened, over_slices
from thunder_core.frontend.acquire.lookasides.operators.loop_bodies import LoopBody, loop_body
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.subtraces import Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.ir.retrace import UnrollsLoop
from thunder_core.tracing.library.control_flow import map_slices, scan

FEWEST = 2  # iterations of a recorded loop: other numbers have programs of their own
UNCHANGING = (SymbolicNumber, torch.Tensor, int, float, bool, str, type(None), torch.dtype, torch.device)
STACK, CAT = torch.stack, torch.cat


class Rows:
    """The list of the tensors that a recorded loop has appended, as their stack."""

    def __init__(self, stack: torch.Tensor) -> None:
        self.stack = stack


@lookaside(range)
def roll(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Record the loop over a range of symbolic length, if its body is a function, and return an empty range."""
    frame = run.machine.frame
    if len(args) != 1 or kwargs or not isinstance(args[0], SymbolicNumber) or args[0].size is None or frame is None:
        return NOT_TAKEN
    loop = frame.code, frame.program.offsets[frame.pc]
    body = None if loop in run.unrolled_loops else loop_body(*loop)
    if body is None or not is_known(frame, body) or not run.machine.call(operator.ge, args[0], FEWEST):
        return NOT_TAKEN
    try:
        record(run, frame, body, args[0])
    except Exception as error:
        raise run.retrace(UnrollsLoop(*loop)) from error
    return range(0)


def is_known(frame: Frame, body: LoopBody) -> bool:
    """Whether the values of a loop are tensors where they must be, and otherwise do not change within the loop."""
    values = frame.bound_locals()
    tensors = (*body.carried, *(name for name, _ in (*body.slices, *body.buffers)))
    modules = [frame.globals.get(name) for name in (*body.globals, *(("torch",) if body.lists else ()))]
    return (
        all(isinstance(values.get(name), torch.Tensor) for name in tensors)
        and all(name in values and isinstance(values[name], UNCHANGING) for name in body.same)
        and all(type(values.get(name)) is list and not values[name] for name in body.lists)
        and all(isinstance(module, ModuleType) and module.__name__.split(".")[0] == "torch" for module in modules)
        and (torch.stack, torch.cat) == (STACK, CAT)
    )


def record(run: TracedRun, frame: Frame, body: LoopBody, count: Any) -> None:
    """Record a loop, and set the variables of its frame."""
    call, values = run.machine.call, frame.bound_locals()
    sliced = [(values[name], dimension) for name, dimension in (*body.slices, *body.buffers)]
    for tensor, dimension in sliced:
        if not call(operator.eq, call(torch.Tensor.size, tensor, dimension), count):
            raise ValueError("a tensor has more or fewer slices than the loop has iterations")
    initial = [values[name] for name in body.carried]
    same = [values[name] for name in body.same]
    subtraces = Subtraces(run, "a loop")
    require_own_memory(subtraces, body, values)
    function = FunctionType(body.code, frame.globals, body.code.co_name)
    slices = [call(torch.movedim, tensor, dimension, 0) for tensor, dimension in sliced]
    flat = Flattened(run, function)
    results = over_slices(subtraces, scan if initial else map_slices, function, flat, initial, slices, same)
    require_same_gradients(tree_leaves(flat.results), results)
    store(run, frame, body, results)


def require_own_memory(subtraces: Subtraces, body: LoopBody, values: dict[str, Any]) -> None:
    """Raise `ValueError` if a tensor that the loop writes to shares memory with another tensor of the loop."""
    buffers = {name for name, _ in body.buffers}
    names = {*body.carried, *body.same, *(name for name, _ in body.slices)} - buffers
    read = {memory_of(subtraces.fake(values[name])) for name in names if isinstance(values[name], torch.Tensor)}
    written = [memory_of(subtraces.fake(values[name])) for name in buffers]
    if len({*written}) < len(written) or not read.isdisjoint(written):
        raise ValueError("the loop writes to memory that it reads")


def require_same_gradients(leaves: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Raise `ValueError` if results of a loop require gradients, but not the results of its iterations."""
    if any(leaf.requires_grad != result.requires_grad for leaf, result in zip(leaves, results, strict=True)):
        raise ValueError("results of the loop require no gradients")


def store(run: TracedRun, frame: Frame, body: LoopBody, results: Sequence[torch.Tensor]) -> None:
    """Set variables to their values after the loop: carried tensors, lists of rows, and buffers with their rows."""
    call, values, names = run.machine.call, frame.bound_locals(), frame.program.names
    count = len(body.carried)
    for name, value in zip(body.carried, results, strict=False):
        frame.fast[names.index(name)] = value
    for name, stack in zip(body.lists, results[count:], strict=False):
        frame.fast[names.index(name)] = Rows(stack)
    for (name, dimension), stack in zip(body.buffers, results[count + len(body.lists) :], strict=True):
        call(torch.Tensor.copy_, values[name], call(torch.movedim, stack, 0, dimension))


@lookaside(torch.stack)
def stack_rows(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Return the stack of the rows of a recorded loop along a dimension."""
    return joined(run, *args, **kwargs) if args and type(args[0]) is Rows else NOT_TAKEN


@lookaside(torch.cat)
def concatenate_rows(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Return the concatenation of the rows of a recorded loop along a dimension."""
    return joined(run, *args, **kwargs, flat=True) if args and type(args[0]) is Rows else NOT_TAKEN


def joined(run: TracedRun, rows: Rows, dim: int = 0, *, flat: bool = False) -> torch.Tensor:
    """Return the rows of a loop joined along a new or an existing dimension, contiguous."""
    call = run.machine.call
    if not flat:
        return call(torch.Tensor.contiguous, call(torch.movedim, rows.stack, 0, dim))  # type: ignore[no-any-return]
    place = dim % (rows.stack.dim() - 1)
    flattened = call(torch.flatten, call(torch.movedim, rows.stack, 0, place), place, place + 1)
    return call(torch.Tensor.contiguous, flattened)  # type: ignore[no-any-return]
