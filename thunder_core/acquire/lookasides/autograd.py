"""torch.autograd: a backward pass of the program runs on fakes, and is recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from types import BuiltinMethodType
from typing import Any

import torch
from torch.autograd.graph import Node

from thunder_core.acquire.lookasides.table import lookaside
from thunder_core.capture.gradients import AUTOGRAD, called_by
from thunder_core.capture.numbers import SymbolicNumber
from thunder_core.capture.transform_levels import wrapped_in
from thunder_core.errors import OperationFailed, SourceLine, ThunderError
from thunder_core.ir.tree import leaves

HOOKING = frozenset({"register_hook", "register_prehook"})  # names of methods of nodes


@lookaside(torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
def differentiate(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Leave it to the recorder, which sees what the engine does; what that calls of the program is interpreted."""
    if wrapped_in((args, kwargs)):
        return partial(differentiate_in_levels, acquisition, function)

    def engine(_called: Any, *args: Any, **kwargs: Any) -> Any:
        return AUTOGRAD[function](acquisition.recorder.gradients, *args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            called = acquisition.recorder.gradients.functions_called(args[0])
            return acquisition.machine.natively(engine, (called, *args), kwargs)
        except ThunderError as error:
            error.where = error.where or acquisition.place().source
            acquisition.recorder.failure = error
            raise

    return run


def differentiate_in_levels(acquisition: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run autograd's engine on tensors inside a function transform: what comes out beneath is recorded.

    The program's hooks, which the engine calls, are interpreted.
    """

    def engine(_called: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return acquisition.recorder.levels.call(function, args, kwargs)

    called = [*chain(*map(called_by, acquisition.recorder.gradients.hooks))]
    return acquisition.machine.natively(engine, (called, *args), kwargs)


@lookaside(torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
def register_hook(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Note the hook, which a backward pass of the program calls."""
    acquisition.recorder.gradients.hooks += [*args[1:2], *kwargs.values()]
    return None


def require_lasting_hooks(acquisition: Any) -> None:
    """Have what hooks close over be the same at each call, since a backward pass behind the program calls one hook.

    Objects from outside are guarded by identity, and symbolic numbers by their values. Raises `OperationFailed` for
    tensors that the program computes, of which there are others at each call.
    """
    hooks = acquisition.recorder.gradients.hooks
    for hook in () if acquisition.recorder.gradients.has_run else chain(*map(called_by, hooks)):
        for cell in getattr(hook, "__closure__", None) or ():
            with suppress(ValueError):  # an empty cell
                if isinstance(cell.cell_contents, SymbolicNumber):
                    cell.cell_contents = cell.cell_contents.concretize()
                require_lasting(acquisition, hook, cell.cell_contents)
        if isinstance(hook, partial):
            require_lasting(acquisition, hook.func, [hook.args, hook.keywords])


def require_lasting(acquisition: Any, hook: Any, held: Any) -> None:
    """Guard what a hook closes over, or raise `OperationFailed`."""
    path = acquisition.outside.path_of(held)
    if path is not None and path.parent is not None:
        acquisition.outside.guard("identity", path, held)
        return
    for leaf in leaves(held):
        if leaf is not held and acquisition.outside.path_of(leaf) is not None:
            require_lasting(acquisition, hook, leaf)
        elif isinstance(leaf, SymbolicNumber) or is_computed(acquisition, leaf):
            code = getattr(hook, "__code__", None)
            raise OperationFailed(
                f"the hook `{getattr(hook, '__qualname__', hook)}` reads a tensor or number that the program computes, "
                "and is called by a backward pass behind it",
                fix="compute it in the hook, or register the hook outside of the compiled program",
                where=code and SourceLine(code.co_filename, code.co_firstlineno, code.co_qualname),
            )


def is_computed(acquisition: Any, value: Any) -> bool:
    """Whether a value is a tensor that the program has computed."""
    known = isinstance(value, torch.Tensor) and acquisition.recorder.knows(value)
    return known and id(value) not in acquisition.recorder.inputs


def method_of_node(acquisition: Any, method: Any) -> Callable[..., Any] | None:
    """The stand-in of a method of autograd's nodes that registers a hook, which is noted."""
    if type(method) is not BuiltinMethodType or method.__name__ not in HOOKING or not isinstance(method.__self__, Node):
        return None

    def run(hook: Callable[..., Any]) -> Any:
        acquisition.recorder.gradients.hooks.append(hook)
        return acquisition.machine.natively(method, (hook,), {})

    return run
