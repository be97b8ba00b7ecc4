"""Names for operations that are the same for all ways to write an operation.

`family` returns a coarse name at the torch level: `x.pow(2)`, `torch.pow(x, exponent=2)` and `x ** 2` are in the family
`pow`, and all comparisons by size are in the family `compare`. The search for candidates (`search.py`) compares
families. `key` returns an exact key at the aten level; the proof of a match (`match.py`) compares keys. A key has the
arguments in the order of the schema with defaults filled in, dimensions counted from the front, sizes written out, and
the operands of commutative operators sorted. Two bound symbols with equal keys compute the same.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from thunder_core.tracing.analysis.structure import constant_key
from thunder_core.tracing.capture.symbolic.moves import Move, Sizing
from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

SYNONYMS = {
    "radd": "add",
    "rmul": "mul",
    "multiply": "mul",
    "subtract": "sub",
    "negative": "neg",
    "absolute": "abs",
    "square": "pow",
    **dict.fromkeys(("truediv", "true_divide", "divide"), "div"),
    **dict.fromkeys(("rtruediv", "rdiv"), "rdiv"),
    **dict.fromkeys(("float", "double", "half", "bfloat16", "type", "type_as"), "to"),
    **dict.fromkeys(("reshape", "view_as", "flatten"), "view"),
    **dict.fromkeys(("less", "greater", "less_equal", "greater_equal"), "compare"),
    **dict.fromkeys(("lt", "gt", "le", "ge"), "compare"),
    **dict.fromkeys(("logical_and", "bitwise_and"), "and"),
    **dict.fromkeys(("logical_or", "bitwise_or"), "or"),
}
COMMUTATIVE_FAMILIES = frozenset({"add", "mul", "eq", "ne", "and", "or", "maximum", "minimum", "compare"})
CONVERSIONS = frozenset({"to"})  # families of which the search compares only the first argument
# Families of calls that may return their input unchanged. A trace has no bound symbol for such a call.
MAYBE_NOOP = frozenset({"to", "contiguous", "dropout", "view"})

# Arguments that may be swapped, as a slice of positions.
COMMUTATIVE = {
    "aten.transpose.int": slice(1, 3),
    **dict.fromkeys(("aten.add.Tensor", "aten.mul.Tensor", "aten.maximum.default", "aten.minimum.default"), slice(2)),
    **dict.fromkeys(("aten.eq.Tensor", "aten.ne.Tensor", "aten.logical_and.default"), slice(2)),
    **dict.fromkeys(("aten.logical_or.default", "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor"), slice(2)),
}
# Python tries the right operand first if its type is a subclass, so `x < y` may be recorded as `y > x`.
MIRRORED = {"aten.gt.Tensor": "aten.lt.Tensor", "aten.ge.Tensor": "aten.le.Tensor"}
SCALING_SECOND_OPERAND = frozenset({"aten.add.Tensor"})  # operators whose last argument multiplies the second operand
OPERATORS_WITH_SIZES = frozenset(
    {"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.expand.default"}
)
OPERATORS_ADDING_DIMENSION = frozenset({"aten.unsqueeze.default", "aten.stack.default"})
DIMENSIONS = frozenset({"dim", "dims", "dim0", "dim1"})
BOUNDS = frozenset({"start", "end"})
NORMALIZED_ARGUMENTS = DIMENSIONS | BOUNDS | {"size"}
END = sys.maxsize  # the bound with which PyTorch records a slice to the end
WHOLE_SLICE = (0, END, 1)  # start, end and step of a slice from end to end


@cache
def family(name: str) -> str:
    """Return the common name of the spellings of an operation: `mul` for `torch.Tensor.__rmul__`."""
    parts = name.split(".")
    short = parts[-2] if parts[-1] in ("__get__", "default") and len(parts) > 1 else parts[-1]
    short = short.strip("_") if short.startswith("__") else short
    return SYNONYMS.get(short, short)


# ---- the torch level: arguments by name ---------------------------------------------------------------------------


def named_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as a dict from parameter name to value.

    The names come from the function's signature; if it has none, or has `*args`, they come from the aten operator of
    the same name.
    """
    names, variadic_position = _parameters(function, len(args), frozenset(kwargs))
    if variadic_position:
        args = (*args[: variadic_position - 1], args[variadic_position - 1 :])
    named = dict(zip(names, args, strict=False)) | dict(kwargs)
    return {"self" if name == "input" else name: value for name, value in named.items()}


@cache
def _parameters(function: Callable[..., Any], count: int, keywords: frozenset[str]) -> tuple[tuple[str, ...], int]:
    """Return the parameter names of a function, in order, for a call with `count` positional arguments and `keywords`.

    The second result is the 1-based position of a parameter that takes all remaining arguments, or 0.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _parameters_by_schema(getattr(function, "__name__", "").strip("_"), count, keywords)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return _parameters_by_schema(getattr(function, "__name__", "").strip("_"), count, keywords)
    return tuple(parameter.name for parameter in parameters), 0


@cache
def overloads(name: str) -> tuple[torch._ops.OpOverload, ...]:
    """Return the aten operators of a name."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return ()
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return tuple(getattr(packet, overload) for overload in names)


def _parameters_by_schema(name: str, count: int, keywords: frozenset[str]) -> tuple[tuple[str, ...], int]:
    operators = overloads({"radd": "add", "rmul": "mul", "truediv": "div"}.get(name, name))
    signatures = [list(operator._schema.arguments) for operator in operators]
    for arguments in signatures:
        positional = [argument.name for argument in arguments if not argument.kwarg_only]
        if count <= len(positional) and keywords <= {argument.name for argument in arguments}:
            return tuple(positional), 0
    for arguments in signatures:
        if len(arguments) > 1 and "int[]" in str(arguments[1].type).replace("List[int]", "int[]").lower():
            return (arguments[0].name, arguments[1].name), 2
    return tuple(f"argument_{index}" if index else "self" for index in range(count)), 0


# ---- the aten level: one spelling ---------------------------------------------------------------------------------


def key(bsym: BoundSymbol, names: Mapping[str, str] | None = None, environment: Sizing | None = None) -> Hashable:
    """Return a key that is equal for bound symbols that compute the same from the same tensors.

    `names` maps names of proxies to new names. A proxy that is not in `names` equals only itself, and never a renamed
    proxy. Symbolic sizes are compared after `environment` has simplified them.
    """
    bsym = bsym if environment is None else _with_numbers(bsym)
    maker = KeyMaker(names, environment)
    expected = _schema(bsym.symbol.target)
    if expected is None:
        words = tuple(sorted((word, maker.value(value, False)) for word, value in bsym.kwargs.items()))
        return (bsym.symbol, maker.value(bsym.args, False), words)
    operator = bsym.symbol.name.removeprefix("torch.ops.")
    read = [leaf for leaf in bsym.inputs if isinstance(leaf, TensorProxy)]
    floating = bool(read) and all(proxy.dtype.is_floating_point for proxy in read)
    values = []
    for position, (name, default) in enumerate(expected):
        argument = bsym.args[position] if position < len(bsym.args) else bsym.kwargs.get(name, default)
        if name in NORMALIZED_ARGUMENTS:
            argument = _normalize(operator, name, argument, bsym, read, environment)
        values.append(maker.value(argument, floating))
    swappable = COMMUTATIVE.get(operator)
    if swappable is not None and (operator not in SCALING_SECOND_OPERAND or values[-1] == maker.value(1, floating)):
        values[swappable] = sorted(values[swappable], key=repr)
    if operator in MIRRORED:
        return (MIRRORED[operator], tuple(reversed(values)))
    return (operator, tuple(values))


@cache
def _schema(operator: Callable[..., Any]) -> tuple[tuple[str, Any], ...] | None:
    """Return the names and defaults of an aten operator's arguments; None for other functions."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    return tuple((a.name, a.default_value if a.has_default_value() else None) for a in schema.arguments)


def _normalize(
    operator: str,
    name: str,
    value: object,
    bsym: BoundSymbol,
    read: list[TensorProxy],
    environment: Sizing | None,
) -> Any:
    """Return an argument in normal form.

    Dimensions are counted from the front, slice bounds are counted from the front and at most the size, and `size` is
    without -1.
    """
    output = bsym.output
    if operator in OPERATORS_WITH_SIZES and name == "size" and isinstance(output, TensorProxy):
        return output.shape
    if not read or not read[0].shape:
        return value
    rank = len(read[0].shape) + (operator in OPERATORS_ADDING_DIMENSION)
    if name in DIMENSIONS:
        return [item % rank for item in value] if isinstance(value, list | tuple) else _count_from_front(value, rank)
    if operator == "aten.slice.Tensor" and name in BOUNDS:
        size = read[0].shape[(bsym.args[1] if len(bsym.args) > 1 else 0) % rank]
        value = (0 if name == "start" else size) if value is None else value
        return _clamp_bound(value, _size_in(environment, size))
    return value


def _size_in(environment: Sizing | None, size: object) -> Any:
    """Return a size as a symbolic size of an environment, or as the expression that another `Sizing` makes of it.

    Without an environment, return the size unchanged.
    """
    if isinstance(environment, TraceShapeEnv):
        return Move(environment).size(size)
    return size if environment is None else environment.simplify_number(size)


def _clamp_bound(bound: Any, size: Any) -> Any:
    """Return a slice bound counted from the front, and at most the size.

    A bound that cannot be computed for all symbolic sizes is returned unchanged, or as `("from the end", n)` for `-n`.
    """
    if type(bound) is int and type(size) is int:
        return min(bound + size if bound < 0 else bound, size)
    if not isinstance(bound, int | torch.SymInt):
        return bound
    constant = type(bound) is int
    if constant and bound < 0:
        return size + bound if statically_known_true(size >= -bound) else ("from the end", -bound)
    return size if (constant and bound == END) or statically_known_true(size <= bound) else bound


def input_of_whole_slice(bsym: BoundSymbol) -> Any:
    """Return the tensor that an aten operation slices from end to end; None for all other operations.

    Matching treats such a slice as its input, because a trace with constant sizes does not contain it.
    """
    if bsym.symbol.name.removeprefix("torch.ops.") != "aten.slice.Tensor":
        return None
    bounds = list(WHOLE_SLICE)
    bounds[: max(len(bsym.args) - 2, 0)] = bsym.args[2:]
    start, end, step = bounds
    return bsym.args[0] if (start or 0, END if end is None else end, step) == WHOLE_SLICE else None


def _with_numbers(bsym: BoundSymbol) -> BoundSymbol:
    """Return a bound symbol with number proxies replaced by their numbers."""
    args, kwargs = replace_leaves(
        (bsym.args, dict(bsym.kwargs)), lambda leaf: leaf.value if isinstance(leaf, NumberProxy) else leaf
    )
    return replace(bsym, args=args, kwargs=kwargs)


def _count_from_front(value: object, rank: int) -> Any:
    return value % rank if isinstance(value, int) else value


@dataclass(frozen=True)
class KeyMaker:
    """Makes keys of values. The key of a proxy is its new name in `names`, and `environment` simplifies sizes."""

    names: Mapping[str, str] | None
    environment: Sizing | None

    def value(self, value: object, floating: bool) -> Hashable:
        """Return the key of a value: numbers keep their type unless all tensors of the operation are floating-point."""
        if value is None:
            return None
        if isinstance(value, Proxy):
            return value.name if self.names is None else self.names.get(value.name, value)
        if isinstance(value, list | tuple):
            return tuple([self.value(item, floating) for item in value])
        if isinstance(value, dict):
            return tuple((word, self.value(item, floating)) for word, item in value.items())
        if isinstance(value, slice):
            return ("slice", self.value((value.start, value.stop, value.step), floating))
        if self.environment is not None and isinstance(value, torch.SymInt | torch.SymFloat):
            value = self.environment.simplify_number(value)
        return _number(value, floating)


def _number(value: object, floating: bool) -> Hashable:
    if type(value) is int and floating and float(value) == value:
        return ("number", repr(float(value)))
    if type(value) is float:
        return ("number" if floating else "float", repr(value))
    return value if isinstance(value, sympy.Basic) else constant_key(value)
