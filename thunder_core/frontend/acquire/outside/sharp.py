"""Sharp edges: actions of a program that can be neither guarded nor replayed, and the policies for them."""

from __future__ import annotations

import builtins
import datetime as dt
import io
import os
import random
import secrets
import socket
import sysconfig
import threading
import time
import types
import uuid
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.foundation import package
from thunder_core.foundation.errors import SharpEdgeError, SharpEdgeWarning, SourceLine
from thunder_core.foundation.options.compile_options import SharpEdges
from thunder_core.frontend.acquire.outside.call_traits import cached_for_modules
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name


@dataclass(frozen=True)
class SharpEdge:
    """An action that cannot be guarded or replayed: its description and the user's line.

    A `loud` edge is reported by a warning even if sharp edges are allowed.
    """

    what: str
    where: SourceLine | None
    loud: bool = False

    def __str__(self) -> str:
        return self.what if self.where is None else f"{self.what} ({self.where})"


def _edges_by_function(kind: str, module: types.ModuleType | type, *names: str) -> dict[Any, str]:
    return {getattr(module, name): f"{kind}: {module.__name__}.{name}" for name in names if hasattr(module, name)}


CLOCK_FUNCTIONS = (
    "time",
    "time_ns",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "localtime",
    "gmtime",
    "ctime",
    "strftime",
)
OS_FUNCTIONS = (
    "open",
    "read",
    "write",
    "listdir",
    "remove",
    "rename",
    "mkdir",
    "stat",
    "getcwd",
    "system",
    "urandom",
    "getpid",
)
IN_THREAD = "code in another thread"
# The descriptions of the sharp edges of functions.
EDGES_OF_FUNCTIONS: dict[Any, str] = {
    **_edges_by_function("the time", time, *CLOCK_FUNCTIONS),
    **_edges_by_function(IN_THREAD, threading.Thread, "start"),
    **_edges_by_function(IN_THREAD, ThreadPoolExecutor, "submit"),
    **_edges_by_function("the outside world", os, *OS_FUNCTIONS),
    **_edges_by_function("input and output", builtins, "open", "input"),
    **_edges_by_function("randomness outside torch", uuid, "uuid1", "uuid4"),
    **_edges_by_function("randomness outside torch", secrets, "token_bytes", "token_hex", "randbelow"),
}
# The kinds of the sharp edges of bound methods, by the class of their `__self__`.
EDGE_KINDS_OF_OWNERS: dict[type, str] = {
    socket.socket: "the outside world",
    random.Random: "randomness outside torch",
    io.IOBase: "input and output",
}
OWNERS_OF_MODULE_FUNCTIONS = frozenset({type(None), types.ModuleType})  # the classes of `__self__` of module functions
# The classes of `__self__` of bound C methods that have no sharp edges.
OWNERS_WITHOUT_EDGES = frozenset(
    {dict, list, tuple, set, frozenset, str, torch.Tensor, torch.nn.Parameter, FakeTensor, io.StringIO, io.BytesIO}
)
# The beginnings of descriptions that are reported even if sharp edges are allowed: the action happens only while the
# program is traced, or later calls use the value of the traced call.
LOUD_PREFIXES = ("the outside world", IN_THREAD, "randomness outside torch", "input and output: builtins.input")
# The kinds of the sharp edges of functions, by the beginning of the name of their module.
EDGE_KINDS_OF_MODULES = {"numpy.random": "randomness outside torch", "random": "randomness outside torch"}
DATE_METHODS = {
    (dt.datetime, "now"),
    (dt.datetime, "utcnow"),
    (dt.datetime, "today"),
    (dt.date, "today"),
}


@cached_for_modules
def edge_of(function: Any) -> str | None:
    """Return the description of the sharp edge of calling a function, such as `the time: time.time`; otherwise None."""
    owner = callable_attribute(function, "__self__")
    if type(owner) in OWNERS_WITHOUT_EDGES:
        return None
    try:
        description = EDGES_OF_FUNCTIONS.get(function)
    except TypeError:  # unhashable
        return None
    if description is not None:
        return description
    name = callable_name(function)
    if issubclass(type(owner), type) and any(
        issubclass(owner, date_class) and name == method for date_class, method in DATE_METHODS
    ):
        return f"the time: {owner.__name__}.{name}"
    for owner_class, edge_kind in EDGE_KINDS_OF_OWNERS.items() if type(owner) not in OWNERS_OF_MODULE_FUNCTIONS else ():
        if issubclass(type(owner), owner_class):
            return f"{edge_kind}: {type(owner).__name__}.{name}"
    module = str(callable_attribute(function, "__module__") or type(owner).__module__)
    edge_kind_of_module = None if issubclass(type(function), type) else _edge_kind_of_module(module)
    return f"{edge_kind_of_module}: {module}.{name}" if edge_kind_of_module else None


@cache
def _edge_kind_of_module(module: str) -> str | None:
    return next((edge_kind for prefix, edge_kind in EDGE_KINDS_OF_MODULES.items() if module.startswith(prefix)), None)


LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


# Code that libraries generate: dataclasses and named tuples, frozen modules, graphs of torch.fx, NumPy's dispatch.
GENERATED_FILE_PREFIXES = ("<string>", "<frozen ", "<eval_with_key>", "<__array_function__")


def is_users_code(code: types.CodeType | None) -> bool:
    """Whether Python code is the user's own, not of the standard library or an installed package."""
    return code is not None and is_users_file(code.co_filename)


@cache
def is_users_file(name: str) -> bool:
    """Whether a file of Python code is the user's own."""
    return (
        not name.startswith((*GENERATED_FILE_PREFIXES, *LIBRARY_FOLDERS, package.FOLDER))
        and "site-packages" not in name
    )


def users_line(error: BaseException) -> SourceLine | None:
    """Return the innermost line of the user's own code in an error's traceback."""
    entry, line = error.__traceback__, None
    while entry is not None:
        code = entry.tb_frame.f_code
        if is_users_code(code):
            line = SourceLine(code.co_filename, entry.tb_lineno, code.co_qualname)
        entry = entry.tb_next
    return line


def apply_policy(policy: SharpEdges, edges: Iterable[SharpEdge]) -> None:
    """Apply the policy: warn for each edge, or only for loud edges, or raise one error that lists all edges."""
    edge_list = list(edges)
    if policy != "error":
        for edge in edge_list if policy == "warn" else [edge for edge in edge_list if edge.loud]:
            file, lineno = (edge.where.filename, edge.where.lineno) if edge.where else ("<thunder>", 1)
            warnings.warn_explicit(f"sharp edge: {edge.what}", SharpEdgeWarning, file, lineno)
    elif edge_list:
        raise SharpEdgeError(
            "the program has sharp edges: " + "; ".join(map(str, edge_list)),
            fix="move these actions out of the program and pass their results as arguments, or allow them with "
            'sharp_edges="allow"',
            where=edge_list[0].where,
        )


class OutsideReads:
    """The sharp edges of a program of `functional.jit`: the values that it reads and that are not in its arguments."""

    def __init__(self, current_line: Callable[[], SourceLine | None]) -> None:
        self.edges: dict[str, SharpEdge] = {}
        self._current_line = current_line

    def note(self, path: Path) -> None:
        """Note a sharp edge if a path does not begin at the arguments."""
        root = path.lineage()[0]
        if (root.step, root.key) not in (("root", "args"), ("root", "kwargs")):
            self.edges.setdefault(str(path), SharpEdge(f"reads {path} from outside", self._current_line()))
