"""`thunderfx`, and the backend that `torch.compile` finds by the name of "thunder"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import torch

from thunder_core.compilation.compiler import Compiler, jit, specializations_of
from thunder_core.compilation.dynamo.backend import Backend
from thunder_core.compilation.dynamo.call import DynamoCall
from thunder_core.compilation.dynamo.module import dynamo_function, dynamo_module
from thunder_core.compilation.dynamo.report import CaptureLog
from thunder_core.foundation.errors import BadOption, ThunderError
from thunder_core.tracing.extension.lookaside import Lookaside

NAME = "thunder"
GROUP = "torch_dynamo_backends"


def thunderfx(
    subject: Callable[..., Any], *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any
) -> Any:
    """Compile a function or a module that Dynamo acquires: PyTorch's own tracer, in place of Thunder's interpreter.

    It is the way for programs that `jit` refuses. Dynamo captures graphs of the program, between which lines that it
    cannot capture run in eager PyTorch: `thunder_core.splits` names each with its reason, `thunder_core.graphs` has the
    graphs. Each graph is compiled as `jit` compiles a function, with the same `options` (transforms, executors,
    memory_budget, data_dependent, ...), forward and backward.

    `fullgraph` and `dynamic` are those of `torch.compile`: with `fullgraph=True` a split is refused, with
    `DynamoRefuses`, and so it is where Dynamo would have to capture a function for more kinds of inputs than
    `max_programs`. `dynamic=True` makes the sizes of inputs symbols at the first call, False never does, and None where
    they are found to change; so `symbolic` and `cache="symbolic values"` are refused with `BadOption`, and so are
    lookasides for functions that are not PyTorch's, into which Dynamo looks before a graph is there.

    Raises what `jit` raises for its options.
    """
    return acquired_by_dynamo(subject, checked_compiler(subject, options), fullgraph=fullgraph, dynamic=dynamic)


def acquired_by_dynamo(
    subject: Callable[..., Any], compiler: Compiler, *, fullgraph: bool = False, dynamic: bool | None = None
) -> Any:
    """Return the subject as Dynamo acquires it, each graph to be compiled by a compiler; copies are so likewise."""
    backend = Backend(compiler)
    log = CaptureLog(backend.captured)
    call = DynamoCall(subject, backend, log, fullgraph=fullgraph, dynamic=dynamic)
    if not isinstance(subject, torch.nn.Module):
        return dynamo_function(call, backend.captured)
    forward = DynamoCall(subject.forward, backend, log, fullgraph=fullgraph, dynamic=dynamic)
    again = partial(acquired_by_dynamo, compiler=compiler, fullgraph=fullgraph, dynamic=dynamic)
    return dynamo_module(call, forward, backend.captured, again)


def checked_compiler(subject: Callable[..., Any], options: Mapping[str, Any]) -> Compiler:
    """Return the compiler that `jit` would have of these options, as far as they mean something for graphs."""
    settings: Compiler = specializations_of(jit(subject, **options)).compiler.settings
    return for_graphs(settings, subject)


def for_graphs(compiler: Compiler, subject: Callable[..., Any]) -> Compiler:
    """Return a compiler that can compile graphs of a subject; raises `BadOption` for one whose options cannot be."""
    if compiler.options.symbolic or compiler.options.cache == "symbolic values":
        raise BadOption(
            "symbolic= has no effect with thunderfx, because Dynamo chooses the symbolic sizes",
            fix="use dynamic=True, or torch._dynamo.mark_dynamic(tensor, dimension, min=..., max=...)",
        )
    for lookaside in compiler.lookasides:
        require_pytorchs(lookaside)
    for transform in compiler.transforms:
        if isinstance(subject, torch.nn.Module) and transform.methods(subject):
            raise BadOption(
                f"the transform {transform.name} changes methods of the model, which Dynamo does not trace",
                fix="compile with jit, or leave out the transform",
            )
    return compiler


def require_pytorchs(lookaside: Lookaside) -> None:
    """Raise `BadOption` for a lookaside of a function that never stands in a graph of Dynamo's."""
    home = str(getattr(lookaside.function, "__module__", None) or getattr(lookaside.function, "__objclass__", ""))
    if "torch" not in home:
        raise BadOption(
            f"a lookaside replaces `{lookaside.name}`, but Dynamo traces into this function, so no graph calls it",
            fix="compile with jit, or replace a PyTorch function that it calls",
        )


def thunder(
    module: torch.fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's: what `torch.compile(model, backend="thunder", options={...})` calls.

    The options are those of `thunderfx`. A ThunderError about them is raised where the graph is called, which Dynamo
    passes on as it is.
    """
    try:
        compiler = checked_compiler(module, options or {})
    except ThunderError as error:
        return partial(_raise, error)
    return Backend(compiler)(module, examples)


def _raise(error: ThunderError, *_: Any) -> Any:
    raise error


def register() -> None:
    """Make the backend known to `torch.compile`, unless the installed package's metadata does that."""
    if not metadata.entry_points(group=GROUP, name=NAME):
        torch._dynamo.register_backend(thunder, name=NAME)
