"""The table of lookasides, and the modules whose Python code runs natively because nothing of theirs needs a guard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.library import applied_functions, captured_parts, transformed_calls

Lookaside = Callable[[TracedRun, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Callable[..., Any] | None]

LOOKASIDES: dict[Callable[..., Any], Lookaside] = {}
# By module and name: of functions whose modules take long to import, and are imported by what calls them.
LATE_LOOKASIDES: dict[tuple[str, str], Lookaside] = {}

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


# Of these, functions that look into the objects that they are given, and methods of what threads share.
LOOKING_INTO = ("getmembers", "getmembers_static", "_getmembers", "getattr_static", "_check_instance", "_check_class")
SHARED = ("is_set", "isSet", "set", "clear", "notify", "notify_all", "acquire", "release", "_is_owned")
CONTEXTS = ("__enter__", "__exit__")
TRACED_PARTS = (applied_functions, captured_parts, transformed_calls)
# Of these, functions whose reads and writes matter: they change what printing a tensor gives, or call the program's.
INTERPRETED = frozenset(
    {
        *(("inspect", name) for name in LOOKING_INTO),
        *(("threading", name) for name in (*SHARED, *CONTEXTS)),
        *(("torch._tensor_str", f"{name}printoptions") for name in ("", "get_", "set_")),
        *((part.__name__, name) for part in TRACED_PARTS for name in part.TRACED),
    }
)
# Of these, modules that models are made of: what their layers read is guarded, and what they compute is traced.
MODULES_OF_MODELS = (
    "thunder_core.backend.quantization",
    "thunder_core.backend.parallel.replicas",
    "thunder_core.backend.parallel.shards",
    "thunder_core.backend.parallel.tensor_parallel",
)
# Of these, the modules whose functions look at the code of functions; nothing that they are given is redirected.
LOOKING_AT_CODE = ("abc", "importlib", "inspect", "torch._dynamo", "torch._jit_internal", "torch.fx", "typing")


def lookaside(*functions: Callable[..., Any]) -> Callable[[Lookaside], Lookaside]:
    """Register the decorated function as the lookaside of these functions."""

    def register(answer: Lookaside) -> Lookaside:
        LOOKASIDES.update(dict.fromkeys(functions, answer))
        return answer

    return register


def late_lookaside(path: str) -> Callable[[Lookaside], Lookaside]:
    """Register the decorated function as the lookaside of `module:name`; the module need not be imported yet."""
    module, _, name = path.partition(":")

    def register(answer: Lookaside) -> Lookaside:
        LATE_LOOKASIDES[module, name] = answer
        return answer

    return register


def late_lookaside_of(function: FunctionType) -> Lookaside | None:
    """The lookaside of a function in a module that was imported late; None for a function without one."""
    answer = LATE_LOOKASIDES.get((function.__module__, function.__name__))
    if answer is None:
        return None
    named = getattr(sys.modules.get(function.__module__), function.__name__, None)
    return answer if named is function else None


# Functions whose result is guarded by asking them again: the attributes of transformers' configs.
ASKED_AGAIN = (("transformers", "__getattribute__"),)


def is_native_code(function: FunctionType) -> bool:
    """Whether a Python function is called, not interpreted: one of such a module, by its name and by its code.

    What wraps another function (`functools.wraps`) has the name of that one's module alone.
    """
    home = function.__globals__.get("__name__")
    return runs_natively(function.__module__, function.__name__) and runs_natively(home, function.__name__)


@cache
def runs_natively(module: str | None, name: str = "") -> bool:
    """Whether Python functions of this module, or its functions of this name, are called, not interpreted."""
    if is_asked_again(module, name):
        return True
    is_interpreted = (module, name) in INTERPRETED or _is_within(module, MODULES_OF_MODELS)
    return _is_within(module, NATIVE_MODULES) and not is_interpreted


@cache
def runs_alone(module: str | None, name: str) -> bool:
    """Whether nothing that such a function calls has to lead back to the interpreter, or may.

    What is asked again need not; what looks at the code of the functions that it is given must find their own.
    """
    return is_asked_again(module, name) or _is_within(module, LOOKING_AT_CODE)


@cache
def is_asked_again(module: str | None, name: str) -> bool:
    """Whether what functions of this name return is guarded by asking again, whatever they read on the way."""
    return any(str(module).startswith(f"{package}.") and name == asked for package, asked in ASKED_AGAIN)


def _is_within(module: str | None, packages: tuple[str, ...]) -> bool:
    return any(module == one or str(module).startswith(f"{one}.") for one in packages)
