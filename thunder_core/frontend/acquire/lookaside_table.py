"""The table of lookasides, and the modules whose Python code runs natively because it needs no guards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

from thunder_core.tracing.library import applied_functions, captured_parts, transformed_calls

Lookaside = Callable[..., Any]  # (run, *args, **kwargs) -> the result of the call, or NOT_TAKEN

LOOKASIDES: dict[Callable[..., Any], Lookaside] = {}
# The lookasides of functions in modules that take long to import, by module and name. A program that calls such a
# function has imported its module. The lookaside gets the function first, as with `lookaside_of_each`.
LATE_LOOKASIDES: dict[tuple[str, str], Lookaside] = {}

# Modules and packages whose Python functions the interpreter calls natively, unless a table below names them.
NATIVE_MODULES = (
    "abc",
    "enum",
    "importlib",
    "inspect",
    "logging",
    "numpy",
    "re",
    "threading",
    "thunder_core",
    "torch._C",
    "torch._VF",
    "torch.autograd.profiler",
    "torch._dynamo",
    "torch._inductor.compiler_bisector",
    "torch._jit_internal",
    "torch._ops",
    "torch._subclasses",
    "torch._tensor",
    "torch._tensor_str",
    "torchao.utils",
    "torch.fx",
    "torch.overrides",
    "typing",
    "warnings",
)


# Names in `INTERPRETED`: functions of `inspect` that inspect their arguments, methods of objects that threads share,
# methods of contexts, functions of `torch.overrides` that change its modes, and modules whose `TRACED` names functions.
INSPECTION_FUNCTIONS = (
    "getmembers",
    "getmembers_static",
    "_getmembers",
    "getattr_static",
    "_check_instance",
    "_check_class",
)
SYNCHRONIZATION_METHODS = ("is_set", "isSet", "set", "clear", "notify", "notify_all", "acquire", "release", "_is_owned")
CONTEXT_METHODS = ("__enter__", "__exit__")
MODE_STACK_FUNCTIONS = ("_push_mode", "_pop_mode", "_pop_mode_temporarily", "_get_current_function_mode")
TRACED_PARTS = (applied_functions, captured_parts, transformed_calls)
# Functions of `NATIVE_MODULES` that are interpreted nevertheless, because their reads and writes must be guarded or
# replayed: they change how tensors are printed, call the program, enter its modes, or read attributes of a protocol.
INTERPRETED = frozenset(
    {
        *(("inspect", name) for name in INSPECTION_FUNCTIONS),
        *(("threading", name) for name in (*SYNCHRONIZATION_METHODS, *CONTEXT_METHODS)),
        *(("torch.overrides", name) for name in (*MODE_STACK_FUNCTIONS, *CONTEXT_METHODS)),
        *(("torch._tensor_str", f"{name}printoptions") for name in ("", "get_", "set_")),
        *((part.__name__, name) for part in TRACED_PARTS for name in part.TRACED),
        *(("typing", name) for name in ("__instancecheck__", "__subclasscheck__", "<genexpr>")),
        *(("torch.fx.graph_module", name) for name in ("call_wrapped", "__call__")),
    }
)
# Packages within `NATIVE_MODULES` with layers of models, which are interpreted: their reads are guarded, and their
# operations are traced.
MODULES_OF_MODELS = (
    "thunder_core.backend.quantization",
    "thunder_core.tracing.library.backward_hooks",
    "thunder_core.tracing.library.denoising",
    "thunder_core.tracing.library.sentences",
    "thunder_core.backend.parallel.replicas",
    "thunder_core.backend.parallel.shards",
    "thunder_core.backend.parallel.tensor_parallel",
    "torch._dynamo.external_utils",
    "torch.fx._lazy_graph_module",
    "torch.fx.interpreter",
)
# Packages within `NATIVE_MODULES` that inspect the code of functions. Functions that are passed to them are not
# redirected to the interpreter.
CODE_INSPECTING_MODULES = ("abc", "importlib", "inspect", "torch._dynamo", "torch._jit_internal", "torch.fx", "typing")


def lookaside(*functions: Callable[..., Any]) -> Callable[[Lookaside], Lookaside]:
    """Register the decorated function as the lookaside of these functions."""

    def register(called: Lookaside) -> Lookaside:
        LOOKASIDES.update(dict.fromkeys(functions, called))
        return called

    return register


def lookaside_of_each(*functions: Callable[..., Any]) -> Callable[[Lookaside], Lookaside]:
    """Register the decorated function as the lookaside of these functions. It receives the called function first."""

    def register(called: Lookaside) -> Lookaside:
        LOOKASIDES.update({function: partial(called, function) for function in functions})
        return called

    return register


def late_lookaside(path: str) -> Callable[[Lookaside], Lookaside]:
    """Register the decorated function as the lookaside of `module:name` or `module:Class.name`, without an import."""
    module, _, name = path.partition(":")

    def register(called: Lookaside) -> Lookaside:
        LATE_LOOKASIDES[module, name] = called
        return called

    return register


def late_lookaside_of(function: FunctionType) -> Lookaside | None:
    """Return the lookaside that `late_lookaside` registered for a function, or None.

    A function that only has the name of such a function has no lookaside.
    """
    called = LATE_LOOKASIDES.get((function.__module__, function.__qualname__))
    if called is None:
        return None
    named: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        named = getattr(named, name, None)
    return partial(called, function) if getattr(named, "__func__", named) is function else None


# Functions that the prologue calls again to guard their results: the attributes of transformers' configs.
FUNCTIONS_CALLED_AGAIN = (("transformers", "__getattribute__"),)


def is_native_code(function: FunctionType) -> bool:
    """Whether a Python function is called natively: both `__module__` and the module of its globals run natively.

    The two differ for a function that wraps another function (`functools.wraps`): `__module__` is copied from the other
    function.
    """
    home = function.__globals__.get("__name__")
    return runs_natively(function.__module__, function.__name__) and runs_natively(home, function.__name__)


@cache
def runs_natively(module: str | None, name: str = "") -> bool:
    """Whether a module's Python functions are called natively; with a `name`, its functions with this name."""
    if is_called_again(module, name):
        return True
    is_interpreted = (module, name) in INTERPRETED or _is_within(module, MODULES_OF_MODELS)
    return _is_within(module, NATIVE_MODULES) and not is_interpreted


@cache
def runs_without_redirection(module: str | None, name: str) -> bool:
    """Whether the Python functions that a native function calls run natively, too, and are not interpreted.

    The results of functions that are called again need no other guards. Functions that inspect code must receive
    functions with their original code.
    """
    return is_called_again(module, name) or _is_within(module, CODE_INSPECTING_MODULES)


@cache
def is_called_again(module: str | None, name: str) -> bool:
    """Whether the prologue guards the results of a module's functions of this name by calling the functions again."""
    return any(
        str(module).startswith(f"{package}.") and name == called_name for package, called_name in FUNCTIONS_CALLED_AGAIN
    )


def _is_within(module: str | None, packages: tuple[str, ...]) -> bool:
    """Whether a module is among these modules and packages, or inside one of the packages."""
    return any(module == package or str(module).startswith(f"{package}.") for package in packages)
