"""`thunderfx`, and the backend that `torch.compile` finds by the name "thunder"."""

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
    """Compile a function or a module that Dynamo, PyTorch's own tracer, traces instead of Thunder's interpreter.

    Use `thunderfx` for programs that `jit` cannot compile as a whole. Dynamo captures graphs of the program. Lines that
    Dynamo cannot capture run in eager PyTorch between two graphs. `thunder_core.splits` lists these lines with the
    reasons, and `thunder_core.graphs` returns the graphs. Each graph is compiled as `jit` compiles a function, forward
    and backward, with the same `options` (transforms, executors, memory_budget, data_dependent, ...).

    `fullgraph` and `dynamic` are the options of `torch.compile`. With `fullgraph=True`, a split raises `DynamoRefuses`.
    `DynamoRefuses` is also raised if Dynamo would have to capture a function more than `max_programs` times. With
    `dynamic=True`, the sizes of inputs are symbols from the first call on. With False, they are never symbols. With
    None, a size becomes a symbol once it changes. `symbolic` and `cache="symbolic values"` raise `BadOption`, because
    `dynamic` decides which sizes are symbols. A lookaside for a function outside PyTorch also raises `BadOption`,
    because Dynamo traces into the function before Thunder receives a graph.

    Invalid options raise the errors of `jit`.
    """
    return trace_with_dynamo(subject, compiler_for_graphs(subject, options), fullgraph=fullgraph, dynamic=dynamic)


def trace_with_dynamo(
    subject: Callable[..., Any], compiler: Compiler, *, fullgraph: bool = False, dynamic: bool | None = None
) -> Any:
    """Return the subject as a function or module that Dynamo traces, and whose graphs the compiler compiles.

    The same is true of copies of the module.
    """
    backend = Backend(compiler)
    log = CaptureLog(backend.captured)
    call = DynamoCall(subject, backend, log, fullgraph=fullgraph, dynamic=dynamic)
    if not isinstance(subject, torch.nn.Module):
        return dynamo_function(call, backend.captured)
    forward = DynamoCall(subject.forward, backend, log, fullgraph=fullgraph, dynamic=dynamic)
    compile_other = partial(trace_with_dynamo, compiler=compiler, fullgraph=fullgraph, dynamic=dynamic)
    return dynamo_module(call, forward, backend.captured, compile_other)


def compiler_for_graphs(subject: Callable[..., Any], options: Mapping[str, Any]) -> Compiler:
    """Return the compiler of `jit` with these options; raise `BadOption` if an option has no effect on graphs."""
    settings: Compiler = specializations_of(jit(subject, **options)).compiler.settings
    return checked_for_graphs(settings, subject)


def checked_for_graphs(compiler: Compiler, subject: Callable[..., Any]) -> Compiler:
    """Return the compiler unchanged; raise `BadOption` if one of its options has no effect on graphs of Dynamo."""
    if compiler.options.symbolic or compiler.options.cache == "symbolic values":
        raise BadOption(
            "symbolic= has no effect with thunderfx, because Dynamo chooses the symbolic sizes",
            fix="use dynamic=True, or torch._dynamo.mark_dynamic(tensor, dimension, min=..., max=...)",
        )
    for lookaside in compiler.lookasides:
        require_pytorch_function(lookaside)
    for transform in compiler.transforms:
        if isinstance(subject, torch.nn.Module) and transform.methods(subject):
            raise BadOption(
                f"the transform {transform.name} changes methods of the model, which Dynamo does not trace",
                fix="compile with jit, or leave out the transform",
            )
    return compiler


def require_pytorch_function(lookaside: Lookaside) -> None:
    """Raise `BadOption` for a lookaside of a function that never occurs in a graph of Dynamo."""
    owner = getattr(lookaside.function, "__objclass__", None)
    module = getattr(lookaside.function, "__module__", None) or getattr(owner, "__module__", "")
    if str(module).partition(".")[0] != "torch":
        raise BadOption(
            f"a lookaside replaces `{lookaside.name}`, but Dynamo traces into this function, so no graph calls it",
            fix="compile with jit, or replace a PyTorch function that it calls",
        )


def thunder(
    module: torch.fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of Dynamo: `torch.compile(model, backend="thunder", options={...})` calls this function.

    The options are those of `thunderfx`. If they are invalid, the graph raises the ThunderError when it is called,
    because Dynamo would wrap an error of this function, but does not wrap errors of that call.
    """
    try:
        compiler = compiler_for_graphs(module, options or {})
    except ThunderError as error:
        return partial(_raise, error)
    return Backend(compiler)(module, examples)


def _raise(error: ThunderError, *_: Any) -> Any:
    raise error


def register() -> None:
    """Register the backend with `torch.compile`, unless the metadata of the installed package already registers it."""
    if not metadata.entry_points(group=GROUP, name=NAME):
        torch._dynamo.register_backend(thunder, name=NAME)
