"""Lookasides of C functions that decide themselves which functions they replace.

A call of a C function is frequent, and each of these lookasides concerns few C functions. So the lookasides are chosen
once, by the name of the function and by the class of the object to which it is bound: a module, or the object whose
method it is.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from types import ModuleType, NoneType
from typing import Any

import torch
from torch._library.fake_class_registry import FakeScriptObject

from thunder_core.frontend.acquire.backward_hooks import METHODS_OF_NODES
from thunder_core.frontend.acquire.lookasides.functions.backward_hooks import method_of_node
from thunder_core.frontend.acquire.lookasides.functions.generators import is_method_of_generator, method_of_generator
from thunder_core.frontend.acquire.lookasides.functions.tensors import METHODS as METHODS_MAKING_TENSORS
from thunder_core.frontend.acquire.lookasides.functions.tensors import maker_of_tensors
from thunder_core.frontend.acquire.lookasides.operators.assignments import NAME as NAME_OF_ASSIGNMENT
from thunder_core.frontend.acquire.lookasides.operators.assignments import assign
from thunder_core.frontend.acquire.lookasides.operators.collectives import COMMUNICATING_CLASSES, collective_call
from thunder_core.frontend.acquire.lookasides.operators.rolled_loops import record_loop_over_unbind
from thunder_core.frontend.acquire.lookasides.state.context_variables import method_of_context_variable
from thunder_core.frontend.acquire.lookasides.state.draws import call_random_function
from thunder_core.frontend.acquire.lookasides.state.output import STREAM_METHODS, method_of_stream
from thunder_core.frontend.acquire.lookasides.state.storages import method_of_storage
from thunder_core.frontend.acquire.lookasides.state.world import QUERY_METHODS, call_world_function
from thunder_core.frontend.acquire.outside.drawing_functions import is_generator_class
from thunder_core.frontend.acquire.outside.native_functions import is_record_of_pybind11
from thunder_core.frontend.acquire.run.drawn_arrays import call_on_drawn
from thunder_core.frontend.acquire.texts import METHODS as METHODS_OF_TEXTS
from thunder_core.frontend.acquire.texts import method_of_text
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

Lookaside = Callable[[TracedRun, Any, tuple[Any, ...], dict[str, Any]], Any]
Concerns = Callable[[type, str], bool]
OWNERS_OF_GENERATORS = (torch.Generator, FakeScriptObject)
OWNERS_OF_VARIABLES = frozenset({contextvars.Context, contextvars.ContextVar})


def call_method_of_generator(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of a bound method of a generator; return `NOT_TAKEN` for other functions."""
    return method_of_generator(run, function, args, kwargs) if is_method_of_generator(function) else NOT_TAKEN


def may_reach_the_world(owner: type, name: str) -> bool:
    """Whether a C function is a function of a module or a class, or another function that may read the outside world.

    Other methods use only their object and their arguments.
    """
    is_of_module_or_class = owner is NoneType or issubclass(owner, (ModuleType, type)) or is_record_of_pybind11(owner)
    return is_of_module_or_class or (owner, name) in QUERY_METHODS


# Each lookaside with the functions that it may concern: by the class of `__self__`, and the name. The order is that of
# the calls.
LOOKASIDES: tuple[tuple[Lookaside, Concerns], ...] = (
    (call_random_function, lambda owner, _: is_generator_class(owner)),
    (collective_call, lambda owner, _: issubclass(owner, COMMUNICATING_CLASSES)),
    (call_world_function, may_reach_the_world),
    (call_on_drawn, lambda _owner, _name: True),
    (call_method_of_generator, lambda owner, _: issubclass(owner, OWNERS_OF_GENERATORS)),
    (assign, lambda _, name: name == NAME_OF_ASSIGNMENT),
    (maker_of_tensors, lambda _, name: name in METHODS_MAKING_TENSORS),
    (method_of_stream, lambda _, name: name in STREAM_METHODS),
    (method_of_text, lambda owner, name: owner is str and name in METHODS_OF_TEXTS),
    (method_of_node, lambda _, name: name in METHODS_OF_NODES),
    (method_of_context_variable, lambda owner, _: owner in OWNERS_OF_VARIABLES),
    (method_of_storage, lambda owner, _: issubclass(owner, torch._C.StorageBase)),
    (record_loop_over_unbind, lambda _, name: name == "unbind"),
)


@cached_by_version(ClassCaches())
def lookasides_of_c_function(owner: type, name: str) -> tuple[tuple[Lookaside, ...], bool]:
    """Return the lookasides that may concern a C function, by the class of its `__self__` and its name."""
    return tuple(call for call, concerns in LOOKASIDES if concerns(owner, name)), True
