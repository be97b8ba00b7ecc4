"""Paths: the steps from the arguments and globals of a program to a value outside of the program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import sympy

from thunder_core.tracing.ir.literal import keyword_argument
from thunder_core.tracing.ir.sizes import text_of
from thunder_core.tracing.ir.tree import leaves
from thunder_core.tracing.library.objects import cached_value

MODULE_TABLES = ("_parameters", "_buffers", "_modules")
MAX_TEXT = 100  # characters; a longer text of a computing call is replaced by its number and name
# The step of a root: an array in place of the indices that an operation of the trace computes.
ASSIGNMENT: Final = "assignment"
# The kinds of steps: of roots, from an object to a part of it, and to a value that is computed from several paths.
Step = Literal[
    "root",
    "globals",
    "class",
    "module",
    "script module",
    "compiled",
    "lookaside",
    "cached",
    "draws",
    "assignment",
    "attribute",
    "entry",
    "item",
    "stored item",
    "keyed item",
    "keys",
    "member",
    "closure",
    "size",
    "stride",
    "tensor",
    "called",
    "reference",
    "referent",
    "proxied",
    "draw",
    "computed",
    "expression",
    "count",
]
COMPUTED = ("computed", "expression", "count")  # steps whose values are computed from several paths


class Path:
    """The steps to a value from outside: a parent path, and a step to an attribute, an item or a closure cell.

    A path without a parent is a root. `step` is the kind of the last step, such as "item", and `key` the index, key or
    name. A number may also be computed from numbers at other paths: then the key is the function with its operands, and
    the first operand that is a path is the parent.

    Each sequence of steps has only one Path object, so paths compare by identity. `value` is the value that tracing
    found at the path. `alias` is a readable name for the value, such as the name of a parameter, or None.
    """

    __slots__ = ("_text", "alias", "children", "key", "parent", "step", "value")

    def __init__(self, parent: Path | None, step: Step, key: Any, value: Any) -> None:
        self.parent = parent
        self.step = step
        self.key = key
        self.value = value
        self.alias: str | None = None
        self._text: str | None = None
        self.children: dict[tuple[str, Any], Path] = {}

    def child(self, step: Step, key: Any, value: Any) -> Path:
        """Return the path to a value one step from the value at this path."""
        label = (step, (type(key), key))
        path = self.children.get(label)
        if path is None:
            path = self.children[label] = Path(self, step, key, value)
        return path

    def entry(self, name: str, value: object) -> Path:
        """Return the path to the entry of a name in the `__dict__` of the object at this path."""
        return self.child("entry", name, value)

    def attribute(self, name: str, value: object) -> Path:
        """Return the path to an attribute, which Python looks up as `getattr` does."""
        return self.child("attribute", name, value)

    def item(self, key: Any, value: Any) -> Path:
        """Return the path to the item at a key or index."""
        return self.child("item", key, value)

    def tensor(self, value: Any) -> Path:
        """Return the path to the tensor that shares the memory of the NumPy array at this path."""
        return self.child("tensor", "tensor", value)

    def at_key(self, key: Path, value: object) -> Path:
        """Return the path to the item whose key is an object at another path, such as a tensor."""
        return self.child("keyed item", key, value)

    def forget_children(self) -> None:
        """Release all paths that begin with this path: each path and its parent refer to each other."""
        waiting = [self]
        while waiting:
            path = waiting.pop()
            waiting += path.children.values()
            path.children.clear()

    def lineage(self) -> list[Path]:
        """Return the paths from the root to this path."""
        steps, step = [self], self.parent
        while step is not None:
            steps.append(step)
            step = step.parent
        return steps[::-1]

    def __str__(self) -> str:
        """Return the path as an expression in the user's code: `module.model.layers[0].weight`."""
        if self._text is None:
            self._text = str(self.key) if self.parent is None else STEP_TEXTS[self.step](self)
        return self._text


# The operators that the text of a computed number shows for functions.
PREFIX: dict[Callable[..., Any], str] = {operator.neg: "-", operator.pos: "+"}
INFIX: dict[Callable[..., Any], str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def computed_path(function: Callable[..., Any], operands: tuple[Any, ...], value: object) -> Path:
    """Return the path to the result of a function. Its operands are constants and paths, at least one a path."""
    parent = next(operand for operand in operands if isinstance(operand, Path))
    return Path(parent, "computed", (function, operands), value)


def operands_of(path: Path) -> tuple[Path, ...]:
    """Return the paths that the last step uses in addition to its parent: the key of an item, or operands."""
    if path.step == "keyed item":
        return (path.key,)
    if path.step == "draw":
        return tuple(path.key.sources)
    if path.step == "expression":
        return tuple(source for source in path.key[1].values() if source is not path.parent)
    if path.step == "count":
        return tuple(source for source in path.key.sources if source is not path.parent)
    if path.step == "computed":
        return tuple(operand for operand in path.key[1] if isinstance(operand, Path) and operand is not path.parent)
    return ()


def namespace(path: Path) -> Path:
    """Return the path to the `__dict__` of the value at a path."""
    return path.attribute("__dict__", None)


def depends_on(path: Path, roots: Collection[Path], known: dict[Path, bool]) -> bool:
    """Whether the value at a path is read or computed from one of some roots. Results are stored in `known`."""
    if path not in known:
        parents = () if path.parent is None else (path.parent, *operands_of(path))
        known[path] = path in roots or any(depends_on(parent, roots, known) for parent in parents)
    return known[path]


def leads_from_draw(path: Path) -> bool:
    """Whether a path, or the path to an operand of one of its steps, starts from a call of the prologue."""
    return any(step.step == "draw" or any(map(leads_from_draw, operands_of(step))) for step in path.lineage())


def leads_from_random_draw(path: Path) -> bool:
    """Whether a path starts from a random draw, not only from queries and computations of the prologue."""
    draw = next((step for step in path.lineage() if step.step == "draw"), None)
    if draw is not None:
        return bool(draw.key.is_random)
    return any(leads_from_random_draw(operand) for step in path.lineage() for operand in operands_of(step))


def leads_from_assignment(path: Path) -> bool:
    """Whether a path starts from an array in place of the indices of an assignment."""
    return path.lineage()[0].step == ASSIGNMENT


@dataclass(frozen=True, eq=False)
class PrologueConstant:
    """A constant argument of a prologue's call, which refers to an object of the traced call."""

    value: Any


@dataclass(frozen=True, eq=False)
class PrologueCall:
    """A call that the prologue makes at each call of the program, in the program's order.

    The call draws random numbers, queries a state outside the program, or computes with drawn or symbolic values.
    `is_random` is False if the result does not depend on random numbers.

    `runtime_method` names the method of `tracing.library.draws.Draws` that makes the call. `called` is the function, or
    the name of the method. `owner` is the path to the generator or array whose method is called, the name of one of the
    process's generators, or None for a function. The arguments consist of paths, constants and containers. `number` is
    the position of the call among the calls of the prologue.
    """

    owner: Path | str | None
    runtime_method: str
    called: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    number: int
    is_random: bool = True

    def __str__(self) -> str:
        if self.is_random:
            return f"draw {self.number} ({self.name})"
        owner = "" if self.owner is None else f"{self.owner}."
        text = f"{owner}{self.name}({text_of_operands(self.args, self.kwargs)})"
        return text if len(text) <= MAX_TEXT else f"computed value {self.number} ({self.name})"

    @property
    def name(self) -> str:
        """The name of the function or method."""
        called = self.called.value if isinstance(self.called, PrologueConstant) else self.called
        return called if isinstance(called, str) else str(getattr(called, "__name__", "draw"))

    @property
    def sources(self) -> tuple[Path, ...]:
        """The paths among the owner and the arguments of the call."""
        operands = leaves((self.owner, self.args, dict(self.kwargs)))
        return tuple(operand for operand in operands if isinstance(operand, Path))


def text_of_operands(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the text of the operands of a call of the prologue, separated by commas."""
    named = [keyword_argument(key, _text_of_operand(operand)) for key, operand in kwargs.items()]
    return ", ".join([*map(_text_of_operand, args), *named])


def _text_of_operand(operand: Any) -> str:
    if type(operand) in (tuple, list):
        inner = text_of_operands(tuple(operand), {})
        return f"[{inner}]" if type(operand) is list else f"({inner}{',' * (len(operand) == 1)})"
    if isinstance(operand, PrologueConstant):
        return type(operand.value).__name__ if getattr(operand.value, "ndim", 0) else str(operand.value)
    return operand.__name__ if isinstance(operand, type) else str(operand)


def _computation_text(path: Path) -> str:
    function, operands = path.key
    if function is cached_value:
        cached, names, *args = operands
        positional = len(args) - len(names)
        keywords = dict(zip(names, args[positional:], strict=True))
        return f"{cached}({text_of_operands(tuple(args[:positional]), keywords)})"
    texts = [
        f"({operand})" if isinstance(operand, Path) and operand.step == "computed" else str(operand)
        for operand in operands
    ]
    if function in PREFIX:
        return f"{PREFIX[function]}{texts[0]}"
    return f" {INFIX[function]} ".join(texts) if function in INFIX else f"{function.__name__}({', '.join(texts)})"


def expression_path(expression: sympy.Basic, sources: Mapping[sympy.Symbol, Path], value: int) -> Path:
    """Return the path to an expression in symbols, whose values are at other paths."""
    return Path(next(iter(sources.values())), "expression", (expression, dict(sources)), value)


def _expression_text(path: Path) -> str:
    expression, sources = path.key
    return text_of(expression, {symbol: str(source) for symbol, source in sources.items()})


def _entry_text(path: Path) -> str:
    return str(path.parent) if path.key in MODULE_TABLES else f"{path.parent}.{path.key}"


def _item_text(path: Path) -> str:
    parent = path.parent
    if parent is not None and parent.step == "entry" and parent.key in MODULE_TABLES:
        return f"{parent}[{path.key}]" if str(path.key).isdigit() else f"{parent}.{path.key}"
    if parent is not None and parent.step == "globals":
        return f"global {path.key}" if parent.key == "?" else f"{parent}.{path.key}"
    return f"{parent}[{path.key!r}]"


# For each kind of step, the function that returns the text of a path.
STEP_TEXTS: dict[Step, Callable[[Path], str]] = {
    "count": lambda path: path.key.text,
    "draw": lambda path: str(path.key),
    "computed": _computation_text,
    "expression": _expression_text,
    "size": lambda path: f"{path.parent}.size({path.key})",
    "stride": lambda path: f"{path.parent}.stride({path.key})",
    "stored item": _item_text,
    "keyed item": lambda path: f"{path.parent}[{path.key}]",
    "entry": _entry_text,
    "tensor": lambda path: f"torch.from_numpy({path.parent})",
    "attribute": lambda path: str(path.parent) if path.key == "cell_contents" else f"{path.parent}.{path.key}",
    "item": _item_text,
    "referent": lambda path: f"{path.parent}()",
    "reference": lambda path: f"weakref.ref({path.parent})",
    "proxied": lambda path: f"the object behind {path.parent}",
    "member": lambda path: f"a member of {path.parent}",
    "keys": lambda path: f"list({path.parent})",
    "called": lambda path: f"{path.parent}.{path.key[0]}({', '.join(map(repr, path.key[1]))})",
    "closure": lambda path: (
        f"closure {path.key[1]} of {path.parent and getattr(path.parent.value, '__name__', path.parent)}"
    ),
}
