"""Calls of `generate` during which no code of the user runs between two tokens, and what they have checked.

During such a call, the guards on the model are checked once and not for each token (`SettledPrologue`). A call counts
as uninterrupted only if its model, its settings and all its arguments belong to the transformers library: then all code
between two tokens is code of installed libraries, which does not change the model. A streamer, a logits processor or a
stopping criterion of the user, a replaced method, a mode of PyTorch or a debugger makes a call an ordinary one. A
streamer of Thunder does not, if it calls only Thunder, the library and `print`. Other threads, signal handlers,
finalizers and handlers of log messages are not known. At the end of a call, the guards on the model are checked again,
and a change is reported by a warning.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any, Protocol

import torch

from thunder_core.foundation.errors import ModelChangedWarning
from thunder_core.foundation.package import package_of
from thunder_core.tracing.capture.torch_facts.modes import is_recording
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

LIBRARY = "transformers"
OWN_PACKAGES = frozenset({"thunder_core", "thunder_cli"})  # their streamers do not change a model
# The packages whose code may run between two tokens: a class or function of another package may be the user's.
PACKAGES = frozenset({LIBRARY, "huggingface_hub", "torch", *sys.stdlib_module_names})
# Modules of the library whose functions `generate` calls between two tokens.
MODULES_OF_LOOP = tuple(f"{LIBRARY}.{name}" for name in ("generation.utils", "masking_utils", "cache_utils"))
PLAIN_CLASSES = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.Tensor})
CONTAINERS = frozenset({list, tuple, set, frozenset, deque})
MAX_DEPTH = 8  # of the objects within an argument
# Arguments that run code of the user, or another model, between two tokens.
REFUSED_ARGUMENTS = (
    *("custom_generate", "trust_remote_code", "prefix_allowed_tokens_fn"),
    *("assistant_model", "tokenizer", "assistant_tokenizer"),
)
STREAMER = "streamer"  # the argument of `generate` that receives the tokens
POSITIONS = 2  # arguments of `generate` that may be positional: the prompt and the settings
EXPERTS_FOR_PROMPTS = "grouped_mm"  # an implementation of experts that `generate` replaces after the prompt on a GPU


class Checked(Protocol):
    """The guards of a program on its model."""

    def holds(self, module: Any, objects: tuple[Any, ...], tensors: tuple[Any, ...]) -> bool:
        """Whether the guards hold for the module, and lead to the objects of an earlier call, which had `tensors`."""


class Generation:
    """The programs whose guards on the model this call of `generate` has checked, with the objects that they found."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._settled: dict[Checked, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}

    def objects_of(self, program: Checked, module: Any) -> Any:
        """Return the objects of a program whose guards on the model have been checked; None for other programs."""
        entry = self._settled.get(program)
        return None if entry is None or module is not self.module else entry[0]

    def settle(self, program: Checked, module: Any, objects: tuple[Any, ...], tensors: tuple[Any, ...]) -> None:
        """Store the objects of a program, all of whose guards have just been checked, and the call's tensors."""
        if module is self.module:
            self._settled[program] = objects, tensors

    def unsettle(self, program: Checked) -> None:
        """Let the next call of a program check all guards."""
        self._settled.pop(program, None)

    def warn_of_changes(self) -> None:
        """Warn if a guard on the model no longer holds."""
        if not all(program.holds(self.module, *found) for program, found in self._settled.items()):
            warnings.warn(
                f"the {type(self.module).__name__} was changed during generate: its later tokens may have been "
                "computed as before the change; change a model only between calls of generate",
                ModelChangedWarning,
                stacklevel=4,
            )


class _Current(threading.local):
    """The uninterrupted generation that this thread runs; None if it runs none."""

    generation: Generation | None = None


_current = _Current()


def current_generation() -> Generation | None:
    """Return the uninterrupted generation that this thread runs; None if it runs none."""
    return _current.generation


@contextmanager
def generating(generation: Generation | None) -> Iterator[None]:
    """Within the context, this thread runs a generation; None for an ordinary call of `generate`."""
    outer, _current.generation = _current.generation, generation
    try:
        yield
    finally:
        _current.generation = outer
    if generation is not None:
        generation.warn_of_changes()


def with_settled_guards(generate: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """Return the method `generate` of a compiled module, which checks the guards on the model once if it can."""
    state = module.__dict__

    @functools.wraps(generate)
    def run(self: object, *args: Any, **kwargs: Any) -> Any:
        if is_recording():
            return generate(self, *args, **kwargs)
        is_settling = self.__dict__ is state and is_uninterrupted(module, args, kwargs)
        with generating(Generation(module) if is_settling else None):
            return generate(self, *args, **kwargs)

    return run


@contextmanager
def settled_guards(module: Any, called: Mapping[str, Any]) -> Iterator[None]:
    """Within the context, check the guards on a module once for each program, if only code of libraries runs.

    The context is a loop of Thunder in place of `generate`. `called` are the objects that the loop calls or passes.
    """
    with generating(Generation(module) if is_uninterrupted(module, (), called) else None):
        yield


def is_uninterrupted(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether only code of libraries runs between the tokens of a call of `generate` with these arguments."""
    if len(args) > POSITIONS or any(kwargs.get(name) is not None for name in REFUSED_ARGUMENTS):
        return False
    streamer = kwargs.get(STREAMER)
    values = (value for name, value in kwargs.items() if name != STREAMER)
    return (
        (streamer is None or (is_own(streamer) and has_usual_stdout()))
        and not (sys.gettrace() or sys.getprofile())
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
        and all(map(is_plain, (*args, *values, getattr(model, "generation_config", None))))
        and has_library_methods(model)
        and not any(map(is_patched_module, MODULES_OF_LOOP))
        and not replaces_experts(model)
    )


def is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is plain data, or an object of the library that consists of plain data."""
    kind = type(value)
    if kind in PLAIN_CLASSES:
        return True
    if depth == MAX_DEPTH:
        return False
    if kind in CONTAINERS:
        return all(is_plain(item, depth + 1) for item in value)
    if kind is dict:
        return all(is_plain(item, depth + 1) for pair in value.items() for item in pair)
    if not is_of_library(kind) or isinstance(value, type | ModuleType | torch.nn.Module):
        return False
    items = [*(value if isinstance(value, list) else ()), *getattr(value, "__dict__", {}).values()]
    items += [*value.items()] if isinstance(value, dict) else []
    return all(is_plain(item, depth + 1) for item in items)


def is_own(value: Any, depth: int = 0) -> bool:
    """Whether a value is an object of Thunder, such as a streamer, that holds and calls nothing of the user."""
    kind = type(value)
    if value is print or is_plain(value, depth) or is_tokenizer(value):
        return True
    if depth == MAX_DEPTH:
        return False
    if kind is MethodType:
        return vars(type(value.__self__)).get(value.__name__) is value.__func__ and is_own(value.__self__, depth + 1)
    items = value if kind in CONTAINERS else vars(value).values() if is_own_class(kind) else None
    return items is not None and all(is_own(item, depth + 1) for item in items)


def is_own_class(kind: type) -> bool:
    """Whether a class is defined by Thunder, its instances have no slots, and its methods were not replaced."""
    functions = [getattr(entry, "fget", entry) for entry in vars(kind).values()]
    return (
        package_of(kind.__module__) in OWN_PACKAGES
        and "__slots__" not in vars(kind)
        and all(base is object or is_of_library(base) for base in kind.__mro__[1:])
        and all(is_method_of(kind, function) for function in functions if isinstance(function, FunctionType))
    )


def is_method_of(kind: type, function: FunctionType) -> bool:
    """Whether a function, which may be decorated as a context manager, is defined in the module of a class."""
    names = [decorated.__globals__.get("__name__") for decorated in decorated_functions(function)]
    return names[-1] == kind.__module__ and {*names} <= {kind.__module__, "contextlib"}


def is_tokenizer(value: Any) -> bool:
    """Whether a value is a tokenizer of a class of the library, without methods of its own."""
    return (
        hasattr(type(value), "convert_ids_to_tokens")
        and is_of_library(type(value))
        and not any(isinstance(item, FunctionType | MethodType) for item in vars(value).values())
    )


def has_usual_stdout() -> bool:
    """Whether the standard output is a file of Python, so that printing runs no code of the user."""
    return all(package_of(base.__module__) in sys.stdlib_module_names for base in type(sys.stdout).__mro__)


def is_of_library(kind: type) -> bool:
    """Whether a class and its bases are defined by the library, PyTorch or Python, and have no replaced methods."""
    return package_of(kind.__module__) == LIBRARY and not is_patched_class(kind, "")


def has_library_methods(model: Any) -> bool:
    """Whether the classes of a model and of its config are the library's, and the model has no methods of its own."""
    config = getattr(model, "config", None)
    return (
        is_of_library(type(model))
        and is_of_library(type(config))
        and not any(map(callable, (*model.__dict__.values(), *config.__dict__.values())))
    )


@cached_by_version(ClassCaches())
def is_patched_class(kind: type, _: str) -> tuple[bool, bool]:
    """Whether a class, or a base of it, has a function of another package; the result holds until the class changes."""
    bases = kind.__mro__
    patched = any(package_of(base.__module__) not in PACKAGES for base in bases) or any(
        is_foreign_function(function)
        for base in bases
        for entry in vars(base).values()
        for function in (getattr(entry, "__func__", entry), getattr(entry, "fget", None))
    )
    return patched, True


def is_patched_module(name: str) -> bool:
    """Whether a module of the library is loaded, and has a function of another package, also in a class or a table."""
    module = sys.modules.get(name)
    return module is not None and any(map(is_patched, list(vars(module).values())))


def is_patched(value: Any) -> bool:
    """Whether a global value of the library is, or contains, a function of another package."""
    if isinstance(value, type):
        return package_of(value.__module__) == LIBRARY and bool(is_patched_class(value, ""))
    if isinstance(value, Mapping) and package_of(type(value).__module__) == LIBRARY:
        return any(map(is_foreign_function, list(value.values())))
    return is_foreign_function(value)


def is_foreign_function(value: object) -> bool:
    """Whether a value is a function, or decorates one, of a package that is not the library, PyTorch or Python."""
    return isinstance(value, FunctionType) and any(
        package_of(function.__globals__.get("__name__")) not in PACKAGES for function in decorated_functions(value)
    )


def decorated_functions(function: FunctionType) -> Iterator[FunctionType]:
    """Yield a function, and the functions that it decorates (`functools.wraps`)."""
    current: Any = function
    for _ in range(MAX_DEPTH):
        if not isinstance(current, FunctionType):
            return
        yield current
        current = current.__dict__.get("__wrapped__")


def replaces_experts(model: Any) -> bool:
    """Whether `generate` replaces the implementation of the model's experts between the prompt and the tokens."""
    implementations: object = getattr(model, "get_experts_implementation", dict)()
    return EXPERTS_FOR_PROMPTS in (implementations.values() if isinstance(implementations, dict) else [implementations])
