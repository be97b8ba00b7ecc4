"""Write Python objects as source code, with the imports and the named constants that the code needs."""

from __future__ import annotations

import builtins
import enum
import itertools
import keyword
import math
import operator
import re
import sys
import types
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.sizes import SymbolicSize, symbols_of, text_of
from thunder_core.tracing.ir.tree import PlaceholderSize, leaves

NON_WORD_CHARACTER = re.compile(r"\W")


def valid_name(text: str) -> str:
    """Return a Python name that is similar to a text."""
    name = NON_WORD_CHARACTER.sub("_", text).strip("_") or "value"
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def is_source_name(text: str) -> bool:
    """Whether a text can be the name of an attribute or of an argument in Python source code.

    Python normalizes identifiers in source code (NFKC): an attribute that `setattr` named `\ufb01` would be read as
    `fi`.
    """
    is_word = text.isidentifier() and not keyword.iskeyword(text) and text != "__debug__"
    return is_word and (text.isascii() or unicodedata.normalize("NFKC", text) == text)


def attribute_of(owner: str, name: str) -> str:
    """Return the source that reads an attribute: `owner.name`, or `getattr` for a name that source code cannot use."""
    return f"{owner}.{name}" if is_source_name(name) else f"getattr({owner}, {name!r})"


def keyword_argument(name: str, text: str) -> str:
    """Return the source of a keyword argument: `to=1`, or `**{'from': 1}` because `from` is a Python keyword."""
    return f"{name}={text}" if is_source_name(name) else f"**{{{name!r}: {text}}}"


# The first letters of generated names: `t0` is a result, `s0` a symbolic size, `n0` a number computed from sizes.
NUMBERED_NAME_LETTERS = ("t", "s", "n")


RESERVED = set[str]()  # the names of all library functions


@dataclass(frozen=True)
class LibraryFunction:
    """A function that generated source calls by its bare name; no variable of a trace may have this name."""

    module: str
    name: str

    def __post_init__(self) -> None:
        RESERVED.add(self.name)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


OF_CLASS = LibraryFunction("thunder_core.tracing.ir.tree", "of_class")


def add_unique_name(text: str, used_names: set[str]) -> str:
    """Return a name similar to a text that is neither used nor reserved, after adding it to the used names."""
    name = unique_name(text, used_names)
    used_names.add(name)
    return name


def unique_name(text: str, *used: Collection[str]) -> str:
    """Return a name similar to a text that is neither used nor reserved.

    Reserved names are builtins, modules, library functions and generated names (`t0`). `used` are collections of used
    names.
    """
    stem = valid_name(text)
    stem = f"{stem}_" if stem[0] in NUMBERED_NAME_LETTERS and stem[1:].isdigit() else stem
    name, count = stem, 1
    reserved = (RESERVED, sys.modules, vars(builtins), *used)
    while any(map(operator.contains, reserved, itertools.repeat(name))):
        count += 1
        name = f"{stem}_{count}"
    return name


@with_quick_init
@dataclass(frozen=True)
class Code:
    """Source code that is printed unchanged, and the variables that it reads."""

    text: str
    reads: tuple[Proxy, ...] = ()

    @classmethod
    def of(cls, expression: sympy.Basic) -> Code:
        """Return the source of an expression, which reads variables that are named like its symbols."""
        return cls(text_of(expression), tuple(Proxy(str(symbol)) for symbol in symbols_of(expression)))


class Definition:
    """A function that the printed source defines before its use, and refers to by name."""

    name: str


@dataclass
class Scope:
    """The names that a printed function refers to: `imports` (`a.b`, or `a.b:c` to import only c) and `constants`.

    A constant must not have one of the `used_names`.
    """

    imports: set[str] = field(default_factory=set)
    constants: dict[str, object] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)

    def constant(self, value: object, stem: str = "constant") -> str:
        """Return the name of an object that has no source form; each object has one name."""
        if id(value) not in self.names:
            name = unique_name(stem, self.used_names, self.constants)
            self.used_names.add(name)
            self.constants[name] = value
            self.names[id(value)] = name
        return self.names[id(value)]

    def importing(self, dotted: str, module: str) -> str:
        """Record that a module must be imported, and return the dotted name."""
        self.imports.add(module)
        return dotted

    def function(self, function: LibraryFunction) -> str:
        """Record that a library function must be imported, and return its name."""
        self.imports.add(str(function))
        return function.name


def follow_path(dotted: str) -> Any:
    """Return the object with a dotted name, or None. An attribute of a package may hide a module of the same name."""
    root, *rest = dotted.split(".")
    value: Any = sys.modules.get(root)
    for part in rest:
        value = getattr(value, part, None)
    return value


def dotted_name(value: object) -> tuple[str, str] | None:
    """Return (`module.qualname`, module) if importing the module and looking up the name finds this object.

    A function inside a decorator with `functools.wraps` has the name `module.qualname.__wrapped__`. The function of a
    class method has the name `module.qualname.__func__`.
    """
    if isinstance(value, types.ModuleType):
        return (value.__name__, value.__name__) if follow_path(value.__name__) is value else None
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or module in ("__main__", "builtins"):
        return None
    if isinstance(value, types.BuiltinFunctionType) and qualname.startswith("pybind11_"):  # pybind11's type record
        qualname = value.__name__
    name = f"{module}.{qualname}"
    resolved = follow_path(name)
    if isinstance(resolved, types.MethodType) and resolved is not value:
        resolved, name = resolved.__func__, f"{name}.__func__"
    while resolved is not value and hasattr(resolved, "__wrapped__"):  # a decorator has replaced the function
        resolved, name = resolved.__wrapped__, f"{name}.__wrapped__"
    return (name, module) if resolved is value else None


def importable(value: Any, scope: Scope) -> str:
    """Return the dotted name of a class, function or module; if it has none, bind it as a constant."""
    if getattr(value, "__module__", None) == "builtins" and hasattr(sys.modules["builtins"], value.__qualname__):
        return str(value.__qualname__)
    dotted = dotted_name(value)
    return scope.importing(*dotted) if dotted else scope.constant(value, getattr(value, "__name__", "constant"))


def _float(value: float, scope: Scope) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _complex(value: complex, scope: Scope) -> str:
    return f"complex({_float(value.real, scope)}, {_float(value.imag, scope)})"


def _torch_name(value: object, scope: Scope) -> str:
    return scope.importing(str(value), "torch")


def _device(value: torch.device, scope: Scope) -> str:
    return scope.importing(f"torch.device({str(value)!r})", "torch")


def _slice(value: slice, scope: Scope) -> str:
    return f"slice({', '.join(literal(part, scope) for part in (value.start, value.stop, value.step))})"


def _tuple(value: tuple[Any, ...], scope: Scope) -> str:
    inner = ", ".join(literal(item, scope) for item in value)
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def _size(value: tuple[Any, ...], scope: Scope) -> str:
    return scope.importing(f"torch.Size({_tuple(value, scope)})", "torch")


def sizes_before_counts(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Return the sizes of an input for guards, without counts.

    A count is a number that the prologue computes from tensors, after it has checked the inputs. If a constraint has
    replaced a size by an expression with a count, the size's original expression is returned.
    """
    return tuple(_size_before_counts(size) for size in sizes)


def _size_before_counts(size: object) -> Any:
    if not isinstance(size, torch.SymInt) or size.node.expr.free_symbols.isdisjoint(
        getattr(size.node.shape_env, "counts", ())
    ):
        return size
    return Code.of(size.node._expr)


def _list(value: list[Any], scope: Scope) -> str:
    return f"[{', '.join(literal(item, scope) for item in value)}]"


def _dict(value: dict[Any, Any], scope: Scope) -> str:
    return "{" + ", ".join(f"{literal(k, scope)}: {literal(v, scope)}" for k, v in value.items()) + "}"


def _set(value: set[Any], scope: Scope) -> str:
    return "{" + ", ".join(sorted(literal(item, scope) for item in value)) + "}" if value else "set()"


def _repr(value: object, scope: Scope) -> str:
    return repr(value)


WRITERS: dict[type, Callable[[Any, Scope], str]] = {
    **dict.fromkeys((type(None), bool, int, str, bytes), _repr),
    type(...): lambda value, scope: "...",
    float: _float,
    complex: _complex,
    **dict.fromkeys((torch.dtype, torch.layout, torch.memory_format), _torch_name),
    torch.device: _device,
    SymbolicSize: lambda value, scope: text_of(value.node.expr),
    slice: _slice,
    tuple: _tuple,
    **dict.fromkeys((torch.Size, PlaceholderSize), _size),
    list: _list,
    dict: _dict,
    set: _set,
    **dict.fromkeys((type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType), importable),
}


def literal(value: object, scope: Scope) -> str:
    """Return the source of a value: a literal, a dotted name, or the name of a constant of the scope."""
    writer = WRITERS.get(type(value))
    if writer is not None:
        return writer(value, scope)
    if isinstance(value, Proxy):
        return value.name
    if isinstance(value, Code):
        return value.text
    if isinstance(value, Definition):
        return value.name
    if isinstance(value, enum.Enum) and dotted_name(type(value)) and is_listed_member(value):
        return f"{importable(type(value), scope)}.{value.name}"
    if isinstance(value, type):
        return importable(value, scope)
    if isinstance(value, tuple | list) and any(isinstance(leaf, Proxy) for leaf in leaves(value)):
        return _of_class(value, scope)
    return scope.constant(value)


def is_listed_member(value: enum.Enum) -> bool:
    """Whether a member is an attribute of its enumeration, unlike a combination of flags such as `A|B`."""
    name = value.name
    return isinstance(name, str) and type(value).__members__.get(name) is value


def _of_class(value: tuple[Any, ...] | list[Any], scope: Scope) -> str:
    """Return the source for an instance of a subclass of tuple or list: a call that creates an equal object."""
    attributes = getattr(value, "__dict__", {})
    words = [
        importable(type(value), scope),
        _list(list(value), scope),
        *([_dict(attributes, scope)] if attributes else []),
    ]
    return f"{scope.function(OF_CLASS)}({', '.join(words)})"
