"""Run the text of a program natively and in the interpreter, and describe its outcome."""

import contextlib
import functools
import gc
import io
import re
import sys
import types
import warnings
from dataclasses import dataclass
from typing import Any

from tests.fuzz import prelude
from tests.interpreter.oracle import describe_exception as described_error
from thunder_core.frontend.interpreter import Observer, interpret
from thunder_core.frontend.interpreter.native import c_calls_left

FUEL = 400
# No program comes near the limits: CPython's count of C calls depends on its specialized instructions.
RECURSION_LIMIT, C_CALLS = 3_000, 10_000
# C code warns at the position of the native frame, so its registry belongs to the harness.
_HIDDEN = ("__builtins__", "__warningregistry__")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program: its exception with lines, its output, and its globals."""

    error: tuple[Any, ...]
    output: str
    state: tuple[tuple[str, Any], ...]


def execute(code: types.CodeType, names: dict[str, Any]) -> None:
    """The entry point that is run natively or interpreted."""
    exec(code, names)


def outcome(code: types.CodeType, execute: Any) -> Outcome:
    """Run a program once."""
    output = io.StringIO()
    names = {name: value for name, value in vars(prelude).items() if not name.startswith("_")}
    given = {
        **names, "__name__": "program", "contextlib": contextlib, "functools": functools,
        "say": functools.partial(print, file=output), "fuel": iter(range(1, FUEL)),
    }  # fmt: skip
    names = dict(given)
    error: tuple[Any, ...] = ()
    with warnings.catch_warnings(), _quiet(), _deep():
        warnings.simplefilter("ignore")
        try:
            execute(code, names)
        except BaseException as raised:
            error = described_error(raised, entries=prelude.entries_of)
        state = tuple(
            (name, plain_data(value))
            for name, value in sorted(names.items())
            if given.get(name) is not value and name not in _HIDDEN
        )
        given.clear()
        names.clear()
    return Outcome(_plain(error), _ADDRESS.sub("0x", output.getvalue()), state)


@contextlib.contextmanager
def _quiet() -> Any:
    """Suppress errors of destructors, and disable garbage collection."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        sys.unraisablehook = hook


@contextlib.contextmanager
def _deep() -> Any:
    """Let programs recurse until their fuel is spent; on 3.12 only this raises the limit for C code."""
    limit = sys.getrecursionlimit()
    counted = (3, 12) <= sys.version_info < (3, 13)
    added = C_CALLS - c_calls_left().value if counted else 0
    sys.setrecursionlimit(RECURSION_LIMIT)
    if added:
        c_calls_left().value += added
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        if added:
            c_calls_left().value -= added


def _plain(value: Any) -> Any:
    """Return a description without addresses and without the harness's own frames."""
    if isinstance(value, tuple):
        if len(value) == 2 and value[0] == "execute" and isinstance(value[1], int):
            return ("execute", 0)
        return tuple(_plain(one) for one in value)
    return _ADDRESS.sub("0x", value) if isinstance(value, str) else value


def plain_data(value: Any, depth: int = 4) -> Any:
    """Return any value as plain data."""
    kind = type(value)
    if depth == 0 or kind in (int, str, bool, type(None), float):
        return repr(value) if kind in (int, str, bool, type(None), float) else kind.__name__
    if isinstance(value, BaseException):
        return _plain(described_error(value, entries=prelude.entries_of))
    if kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        return kind.__name__, value.__qualname__
    if isinstance(value, (list, tuple, set, dict)):
        items = sorted(value, key=repr) if kind is set else value.items() if isinstance(value, dict) else list(value)
        return kind.__name__, tuple(plain_data(item, depth - 1) for item in items), _attributes(value, depth)
    if kind is types.FunctionType:
        cells = tuple(_cell(cell, depth) for cell in value.__closure__ or ())
        return (
            "function",
            value.__qualname__,
            plain_data(value.__defaults__, depth - 1),
            cells,
            _attributes(value, depth),
        )
    if isinstance(value, type):
        return "class", value.__qualname__, [base.__name__ for base in value.__mro__], _attributes(value, depth)
    return kind.__name__, _attributes(value, depth)


def _cell(cell: Any, depth: int) -> Any:
    try:
        return plain_data(cell.cell_contents, depth - 1)
    except ValueError:
        return "empty"


def _attributes(value: Any, depth: int) -> Any:
    """Return the contents of an object's own dictionary."""
    try:
        names = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    hidden = ("__weakref__", "__dict__", "__doc__", "__wrapped__", "__static_attributes__", "__firstlineno__")
    return tuple((name, plain_data(one, depth - 1)) for name, one in names.items() if name not in hidden)


def is_settled(text: str, native: Outcome) -> bool:
    """Whether CPython itself always has this outcome: not if the order of a set depends on addresses."""
    for number in range(1, 24):
        elsewhere = [prelude.Worse() for _ in range(number)]
        again = outcome(compile(text, "program.py", "exec"), execute)
        elsewhere.clear()
        if again != native:
            return False
    return True


def difference(text: str) -> str | None:
    """Describe the first difference between a native and an interpreted run; raise SyntaxError for an invalid program.

    A program whose native outcome depends on memory addresses has no difference.
    """
    native = outcome(compile(text, "program.py", "exec"), execute)
    for observer in (None, Observer()):
        # A separate code object: on 3.11, the line of an error may depend on how often CPython has run the code.
        inside = outcome(compile(text, "program.py", "exec"), interpret(execute, observer))
        if inside != native and is_settled(text, native):
            return "\n".join(
                f"{name}:\n  native {getattr(native, name)!r}\n  inside {getattr(inside, name)!r}"
                for name in ("error", "output", "state")
                if getattr(native, name) != getattr(inside, name)
            )
    return None
