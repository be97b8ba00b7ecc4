"""The result of `thunderfx`: a function or module that behaves like the user's, and whose calls Dynamo traces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.backend.runtime.captured import CapturedSubject
from thunder_core.backend.runtime.inner_generation import Compile
from thunder_core.backend.runtime.module import COMPILE_AFTERWARDS, OTHER_CLASS, copying_methods
from thunder_core.backend.runtime.retraces import warn_of
from thunder_core.backend.runtime.tracers import left_alone_by_dynamo, refuse_scripting
from thunder_core.compilation.dynamo.call import DynamoCall
from thunder_core.tracing.extension.subclass import shared_slots, subclass_of

ORIGINAL = "_torchdynamo_orig_callable"  # an attribute of Dynamo's function that is the original function


def dynamo_function(call: DynamoCall, captured: CapturedSubject) -> Callable[..., Any]:
    """Return a function with the subject's name and signature that runs the graphs that Dynamo captures."""

    @left_alone_by_dynamo
    @functools.wraps(call.subject)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return call.call(args, kwargs)

    compiled._thunder = captured  # type: ignore[attr-defined]
    setattr(compiled, ORIGINAL, call.subject)
    compiled.__prepare_scriptable__ = refuse_scripting  # type: ignore[attr-defined]
    return compiled


def dynamo_module(
    call: DynamoCall, forward: DynamoCall, captured: CapturedSubject, compile_other: Compile
) -> torch.nn.Module:
    """Return a module of a subclass of the subject's class that shares the subject's whole state, as `jit` does.

    `compile_other` compiles a copy, or a module from a pickle, with the same settings.
    """
    module: Any = call.subject
    kind = type(module)
    compiled_kinds: list[type] = []
    note_other_class = functools.cache(lambda: warn_of(module, OTHER_CLASS, COMPILE_AFTERWARDS))

    def is_compiled(other: object) -> bool:
        has_state = other.__dict__ is module.__dict__
        if has_state and type(other) not in compiled_kinds:
            note_other_class()
            return False
        return has_state

    members = {
        **shared_slots(module),
        "__call__": _method(kind.__call__, call, is_compiled),
        "forward": _method(kind.forward, forward, is_compiled),
        **copying_methods(module, compile_other, compiled_kinds, note_other_class),
        "__prepare_scriptable__": refuse_scripting,
        "_thunder": captured,
    }
    compiled_kinds.append(subclass_of(kind, members))
    compiled: torch.nn.Module = object.__new__(compiled_kinds[0])
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled


def _method(
    original: Callable[..., Any], call: DynamoCall, is_compiled: Callable[[object], bool]
) -> Callable[..., Any]:
    """Return a method that Dynamo traces if `is_compiled` is true; for other objects, it calls `original`."""

    @left_alone_by_dynamo
    @functools.wraps(original)
    def run(self: object, *args: Any, **kwargs: Any) -> Any:
        return call.call(args, kwargs) if is_compiled(self) else original(self, *args, **kwargs)

    setattr(run, ORIGINAL, original)
    return run
