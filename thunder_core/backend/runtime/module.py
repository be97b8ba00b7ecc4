"""Compiled modules: modules that behave like the user's module, except that calls run programs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import torch

from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.inner_generation import GENERATE, Compile, generating_method
from thunder_core.backend.runtime.prologues.uninterrupted import with_settled_guards
from thunder_core.backend.runtime.tracers import left_alone_by_dynamo, refuse_scripting
from thunder_core.foundation.errors import CannotReplay
from thunder_core.tracing.extension.subclass import shared_slots, slot_names, subclass_of

Method = Callable[..., Any]
BY_WHAT = " (for example by a parametrization)"
OTHER_CLASS = f"has another class than when it was compiled{BY_WHAT}: its calls are made in eager PyTorch"
COMPILE_AFTERWARDS = "register parametrizations on the original module, and compile it afterwards"
NO_METHODS: Mapping[str, Method] = {}


def compiled_function(specializations: Specializations) -> Callable[..., Any]:
    """Return a function that looks like the subject and runs its programs."""

    @left_alone_by_dynamo
    @functools.wraps(specializations.subject)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return specializations.call(args, kwargs)

    compiled._thunder = specializations  # type: ignore[attr-defined]
    compiled.__prepare_scriptable__ = refuse_scripting  # type: ignore[attr-defined]
    return compiled


def programs_of(function: object) -> Any:
    """Return the programs of a compiled function, method or module; None for everything else.

    A wrapper made by `functools.wraps`, such as `torch.vmap` returns, copies the attributes but is not compiled itself.
    """
    if type(function) is FunctionType and function.__globals__ is not globals():
        return None
    return getattr(function, "_thunder", None)


def compiled_module(
    call: Specializations,
    forward: Specializations,
    compile_other: Compile,
    methods: Mapping[str, Method] = NO_METHODS,
    compile_inner: Compile | None = None,
    before_call: Sequence[Callable[[], None]] = (),
) -> torch.nn.Module:
    """Return a module of a subclass of the subject's class that shares the subject's whole state.

    Parameters, buffers, submodules, hooks and all other attributes are the same objects in both modules, so a change of
    one module changes both. `compile_other` compiles another subject with the same settings: a copy, or a module from a
    pickle, which contains `compile_other`. Other modules of the class (`type(compiled)(...)`, a replica for another
    GPU) have their own state, which no program is for: they behave like modules of the subject's class. `methods`
    replace methods of the class on the compiled module. `compile_inner` compiles a model within the subject that
    generates for it. The functions of `before_call` run before each call.
    """
    module: Any = call.subject
    kind = type(module)
    call.of_forward = forward
    compiled_kinds: list[type] = []
    members = {
        **shared_slots(module),
        **generating_method(call, compile_inner),
        **own_methods(kind, methods, module.__dict__),
        **calling_methods(call, forward, compiled_kinds, before_call),
        **copying_methods(module, compile_other, compiled_kinds, functools.partial(note_other_class, call)),
        "__prepare_scriptable__": refuse_scripting,
        "_thunder": ProgramsOfOneModule(call, module.__dict__),
    }
    if GENERATE in members:
        members[GENERATE] = with_settled_guards(members[GENERATE], module)
    compiled_kinds.append(subclass_of(kind, members))
    compiled: torch.nn.Module = object.__new__(compiled_kinds[0])
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled


def own_methods(kind: type, methods: Mapping[str, Method], state: dict[str, Any]) -> dict[str, Any]:
    """Return the methods that replace methods of the class, for the module with this state."""
    replacements = {**COMPILED_CALLS, **methods}
    class_methods = {name: getattr(kind, name) for name in replacements if hasattr(kind, name)}
    return {name: for_one_module(replacements[name], method, state) for name, method in class_methods.items()}


def calling_methods(
    call: Specializations,
    forward: Specializations,
    compiled_kinds: Sequence[type],
    before_call: Sequence[Callable[[], None]] = (),
) -> dict[str, Any]:
    """Return `__call__` and `forward`, which run programs for the subject's state and the class's methods otherwise.

    The methods of the class also run if the module's class is not in `compiled_kinds`, because it was replaced.
    """
    module: Any = call.subject
    kind, state = type(module), module.__dict__

    @left_alone_by_dynamo
    @functools.wraps(kind.forward)
    def run_forward(self: object, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__ is state:
            if type(self) in compiled_kinds:
                return forward.call(args, kwargs)
            note_other_class(call)
        return kind.forward(self, *args, **kwargs)

    @left_alone_by_dynamo
    @functools.wraps(kind.__call__)
    def run(self: object, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__ is state:
            if type(self) in compiled_kinds:
                return call.call(args, kwargs)
            note_other_class(call)
        return kind.__call__(self, *args, **kwargs)

    methods: dict[str, Any] = {"__call__": run, "forward": run_forward}
    if before_call:
        methods = {name: call_before(before_call, method, state) for name, method in methods.items()}
    methods["forward"]._thunder = Original(kind.forward, forward)
    methods["__call__"]._thunder = Original(kind.__call__, call)
    return methods


def note_other_class(specializations: Specializations) -> None:
    """Warn that eager PyTorch makes the calls of a compiled module whose class was replaced.

    Parametrizations of PyTorch replace the class of the module that they are registered on. The programs are for the
    subject, which keeps its class. Raises `CannotReplay` if no call may be left to eager PyTorch.
    """
    if not specializations.compiler.leaves_to_eager:
        raise CannotReplay(f"the class of the compiled module was replaced{BY_WHAT}", fix=COMPILE_AFTERWARDS)
    specializations.in_eager.note_once(OTHER_CLASS, COMPILE_AFTERWARDS)


def call_before(before: Sequence[Callable[[], None]], method: Method, state: dict[str, Any]) -> Method:
    """Return a method that first calls functions, for the module with this state."""

    @left_alone_by_dynamo
    @functools.wraps(method)
    def run(self: object, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__ is state:
            for function in before:
                function()
        return method(self, *args, **kwargs)

    return run


def copying_methods(
    module: Any, compile_other: Compile, compiled_kinds: Sequence[type], note_copy_in_eager: Callable[[], None]
) -> dict[str, Any]:
    """Return the copying and pickling methods.

    A copy of the module with the subject's state is compiled. A copy of a module with another state is an ordinary
    module of the subject's class. A module whose class is not in `compiled_kinds`, because a parametrization replaced
    the class, is copied and pickled as in eager PyTorch, and the copy runs in eager PyTorch: `note_copy_in_eager` warns
    of a copy with the subject's state, or refuses it.
    """
    kind, state = type(module), module.__dict__

    def deep_copy(self: Any, memo: dict[int, Any]) -> torch.nn.Module:
        if type(self) not in compiled_kinds:
            if self.__dict__ is state:
                note_copy_in_eager()
            return deep_copy_of_other_class(self, kind, memo)
        # The copies of the subject and of the compiled module share their state, too.
        return compile_other(copy.deepcopy(module, memo)) if self.__dict__ is state else deep_twin(self, memo)

    def deep_twin(self: Any, memo: dict[int, Any]) -> torch.nn.Module:
        return copy.deepcopy(plain_twin(self, kind), memo)

    def shallow_copy(self: Any) -> torch.nn.Module:
        if type(self) not in compiled_kinds:
            return shallow_copy_of_other_class(self, kind)
        return compile_other(copy.copy(module)) if self.__dict__ is state else copy.copy(plain_twin(self, kind))

    def reduce(self: Any, protocol: Any) -> Any:
        if type(self) not in compiled_kinds:
            reduce_other: Any = kind.__reduce_ex__
            return reduce_other(self, protocol)
        if self.__dict__ is not state:
            return return_module, (plain_twin(self, kind),)
        return placeholder_of, (kind,), (module, compile_other), None, None, become_compiled

    return {"__deepcopy__": deep_copy, "__copy__": shallow_copy, "__reduce_ex__": reduce}


def deep_copy_of_other_class(module: Any, kind: Any, memo: dict[int, Any]) -> torch.nn.Module:
    """Return a deep copy of a module whose class replaced a compiled class of `kind`; the copy has the same class."""
    if hasattr(kind, "__deepcopy__"):
        copied: torch.nn.Module = kind.__deepcopy__(module, memo)
        return copied
    # As `copy.deepcopy` without the state of a pickle, which parametrized modules refuse to return.
    twin: torch.nn.Module = object.__new__(type(module))
    memo[id(module)] = twin
    object.__setattr__(twin, "__dict__", copy.deepcopy(module.__dict__, memo))
    for name in slot_names(type(module)):
        if hasattr(module, name):
            object.__setattr__(twin, name, copy.deepcopy(getattr(module, name), memo))
    return twin


def shallow_copy_of_other_class(module: Any, kind: Any) -> torch.nn.Module:
    """Return a copy of a module whose class replaced a compiled class of `kind`; a parametrized module raises."""
    if hasattr(kind, "__copy__"):
        copied: torch.nn.Module = kind.__copy__(module)
        return copied
    construct, arguments, module_state, *_ = kind.__reduce_ex__(module, 4)
    twin: Any = construct(*arguments)
    twin.__setstate__(module_state)
    return cast(torch.nn.Module, twin)


def compiled_call(module: torch.nn.Module, *_: Any) -> Method:
    """Return the call of a compiled module, in place of the call that `generate` of transformers would compile.

    Transformers stores its compiled call in the module's state. The compiled module and its subject share this state,
    so each would use the other's call.
    """
    return module.__call__


COMPILED_CALLS: Mapping[str, Method] = {"get_compiled_call": compiled_call}


def for_one_module(method: Method, own: Method, state: dict[str, Any]) -> Method:
    """Return a method for the module with this state, and the class's own method for modules with another state."""

    @functools.wraps(own)
    def call_method(self: object, *args: Any, **kwargs: Any) -> Any:
        return (method if self.__dict__ is state else own)(self, *args, **kwargs)

    return call_method


def plain_twin(module: torch.nn.Module, kind: type[torch.nn.Module]) -> torch.nn.Module:
    """Return a module of the subject's class with the state of a module of the compiled class."""
    twin: torch.nn.Module = object.__new__(kind)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


def return_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module. A pickle of a module of a compiled class, with its own state, calls this function."""
    return module


@dataclass(frozen=True)
class ProgramsOfOneModule:
    """The descriptor of a compiled class that returns the programs, for modules with the compiled module's state."""

    compiled: Specializations
    state: dict[str, Any]

    def __get__(self, module: object, kind: type | None = None) -> Specializations:
        """Return the programs; raise `AttributeError` for a module with another state."""
        if module is not None and module.__dict__ is not self.state:
            raise AttributeError(f"this {type(module).__name__} is not compiled")
        return self.compiled


@dataclass(frozen=True)
class Original:
    """The original of a compiled module's method, for programs that are traced as a whole.

    `compiled` are the programs that the method otherwise runs, which are for its module only.
    """

    subject: Callable[..., Any]
    compiled: Specializations

    @property
    def specializations(self) -> Specializations:
        """The programs that the method runs."""
        return self.compiled


def placeholder_of(kind: type[torch.nn.Module]) -> torch.nn.Module:
    """Return a module without state, as a placeholder for a compiled module of that class while a pickle is read."""
    blank: torch.nn.Module = object.__new__(subclass_of(kind, {}))
    return blank


def become_compiled(blank: torch.nn.Module, state: tuple[torch.nn.Module, Compile]) -> None:
    """Turn the placeholder into the compiled module: `state` is its subject, and the function that compiles it."""
    subject, compile_other = state
    object.__setattr__(blank, "__class__", type(compile_other(subject)))
    object.__setattr__(blank, "__dict__", subject.__dict__)
