"""Print calls as a programmer would write them: operators, items, attributes and methods."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.ir.listing import CHECK, CODE, DELETE, LIST
from thunder_core.tracing.ir.literal import Scope, follow_path, importable, keyword_argument, literal
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

TENSOR = "torch.Tensor."

BINARY = {
    **dict.fromkeys(("add", "__add__"), "{0} + {1}"),
    **dict.fromkeys(("sub", "__sub__"), "{0} - {1}"),
    **dict.fromkeys(("mul", "__mul__"), "{0} * {1}"),
    **dict.fromkeys(("div", "__truediv__"), "{0} / {1}"),
    **dict.fromkeys(("matmul", "__matmul__"), "{0} @ {1}"),
    **dict.fromkeys(("pow", "__pow__"), "{0} ** {1}"),
    **dict.fromkeys(("eq", "__eq__"), "{0} == {1}"),
    **dict.fromkeys(("ne", "__ne__"), "{0} != {1}"),
    **dict.fromkeys(("lt", "__lt__"), "{0} < {1}"),
    **dict.fromkeys(("le", "__le__"), "{0} <= {1}"),
    **dict.fromkeys(("gt", "__gt__"), "{0} > {1}"),
    **dict.fromkeys(("ge", "__ge__"), "{0} >= {1}"),
    "__and__": "{0} & {1}",
    "__or__": "{0} | {1}",
    "__xor__": "{0} ^ {1}",
    "__rsub__": "{1} - {0}",
    "__rpow__": "{1} ** {0}",
}
# Used only if a number is divided by a tensor: between two tensors, `/` calls another function.
REVERSED_OPERATORS = dict.fromkeys(("__rdiv__", "__rtruediv__"), "{1} / {0}")
NUMBERS = {
    **{f"operator.{name}": BINARY[name] for name in ("add", "sub", "mul", "pow")},
    "operator.truediv": "{0} / {1}",
    "operator.neg": "-{0}",
}
UNARY_OPERATORS = {"neg": "-{0}", "__neg__": "-{0}", "__invert__": "~{0}"}
# For each operator, the methods of tensors that Python calls.
METHODS: dict[str, tuple[str, ...]] = {
    template: (f"__{name}__", f"__r{name}__")
    for template, name in {
        **{BINARY[name]: name for name in ("add", "sub", "mul", "matmul", "pow")},
        **{BINARY[f"__{name}__"]: name for name in ("truediv", "and", "or", "xor")},
        BINARY["__rsub__"]: "sub",
        BINARY["__rpow__"]: "pow",
        REVERSED_OPERATORS["__rdiv__"]: "truediv",
    }.items()
}
METHODS |= {BINARY[name]: (f"__{name}__",) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
METHODS |= {UNARY_OPERATORS["neg"]: ("__neg__",), UNARY_OPERATORS["__invert__"]: ("__invert__",)}
OWN_METHODS = {name: getattr(torch.Tensor, name, None) for name in itertools.chain(*METHODS.values())}


def _index(value: object, scope: Scope) -> str:
    """Return the source of one index inside square brackets; slices are written with colons."""
    if isinstance(value, slice):
        parts = ["" if part is None else literal(part, scope) for part in (value.start, value.stop)]
        return ":".join(parts) + ("" if value.step is None else f":{literal(value.step, scope)}")
    return literal(value, scope)


def subscript(value: object, scope: Scope) -> str:
    """Return the source between square brackets."""
    if type(value) is tuple and value:
        return ", ".join(_index(item, scope) for item in value) + ("," if len(value) == 1 else "")
    return _index(value, scope)


def arguments(args: tuple[Any, ...], kwargs: Any, scope: Scope) -> str:
    """Return the source between the parentheses of a call."""
    words = [literal(arg, scope) for arg in args]
    return ", ".join([*words, *(keyword_argument(key, literal(value, scope)) for key, value in kwargs.items())])


def _operand(value: object, scope: Scope) -> str:
    text = literal(value, scope)
    return f"({text})" if text.startswith("-") or not isinstance(value, Proxy | int | float) else text


def _operator(template: str) -> Callable[[BoundSymbol, Scope], str]:
    return lambda bsym, scope: template.format(*(_operand(arg, scope) for arg in bsym.args))


def runs_own_method(template: str) -> bool:
    """Whether an operator on tensors runs PyTorch's own method: no library has replaced the method."""
    return all(getattr(torch.Tensor, name, None) is OWN_METHODS[name] for name in METHODS[template])


def _get_item(bsym: BoundSymbol, scope: Scope) -> str:
    return f"{literal(bsym.args[0], scope)}[{subscript(bsym.args[1], scope)}]"


def _set_item(bsym: BoundSymbol, scope: Scope) -> str:
    return f"{_get_item(bsym, scope)} = {literal(bsym.args[2], scope)}"


def _call(bsym: BoundSymbol, scope: Scope) -> str:
    name, target = bsym.symbol.name, bsym.symbol.target
    named = follow_path(name) if name.startswith("torch.") else None
    if not name.startswith("torch.") or (isinstance(named, type) and named is not target):
        function = importable(target, scope)  # a `torch.autograd.Function` has the name of its class
    elif named is None or named == target:
        function = scope.importing(name, "torch")
    else:
        function = scope.constant(target, bsym.symbol.short_name)  # a library has replaced PyTorch's function
    return f"{function}({arguments(bsym.args, bsym.kwargs, scope)})"


def is_replaced(bsym: BoundSymbol) -> bool:
    """Whether a library has replaced the method of `torch.Tensor` that a bound symbol calls."""
    named = follow_path(bsym.symbol.name)
    return named is not None and not isinstance(named, type) and bool(named != bsym.symbol.target)


def _method(bsym: BoundSymbol, scope: Scope) -> str:
    owner, *rest = bsym.args
    return f"{literal(owner, scope)}.{bsym.symbol.short_name}({arguments(tuple(rest), bsym.kwargs, scope)})"


def _get_attribute(bsym: BoundSymbol, scope: Scope) -> str:
    return f"{literal(bsym.args[0], scope)}.{bsym.symbol.name.split('.')[-2]}"


def _set_attribute(bsym: BoundSymbol, scope: Scope) -> str:
    return f"{_get_attribute(bsym, scope)} = {literal(bsym.args[1], scope)}"


def _delete(bsym: BoundSymbol, scope: Scope) -> str:
    return f"del {', '.join(literal(arg, scope) for arg in bsym.args)}"


def _statement(bsym: BoundSymbol, scope: Scope) -> str:
    return literal(bsym.args[0], scope)


STATEMENT_WRITERS: dict[str, Callable[[BoundSymbol, Scope], str]] = {
    "torch.Tensor.__getitem__": _get_item,
    "torch.Tensor.__setitem__": _set_item,
    DELETE: _delete,
    CODE: _statement,
    LIST: _statement,
    CHECK: lambda bsym, scope: str(bsym.args[0]),
}


def expression(bsym: BoundSymbol, scope: Scope) -> str:
    """Return the source of a call without its assignment target."""
    name = bsym.symbol.name
    if name.startswith(TENSOR) and (
        is_replaced(bsym) or any(isinstance(proxy, TensorProxy) and proxy.overrides for proxy in bsym.inputs)
    ):
        return _call(bsym, scope)
    if name in STATEMENT_WRITERS:
        return STATEMENT_WRITERS[name](bsym, scope)
    if name in NUMBERS:
        return _operator(NUMBERS[name])(bsym, scope)
    if not name.startswith(TENSOR) or not bsym.args or not isinstance(bsym.args[0], Proxy):
        return _call(bsym, scope)
    template = _template(bsym, name.removeprefix(TENSOR))
    if template and runs_own_method(template):
        return _operator(template)(bsym, scope)
    special = {"__get__": _get_attribute, "__set__": _set_attribute}.get(bsym.symbol.short_name, _method)
    return special(bsym, scope)


def _template(bsym: BoundSymbol, method: str) -> str:
    """Return the template that prints a call of a tensor's method as an operator; empty if there is no operator."""
    if bsym.kwargs:
        return ""
    if len(bsym.args) == 1:
        return UNARY_OPERATORS.get(method, "")
    if method in REVERSED_OPERATORS and not isinstance(bsym.args[1], Proxy):
        return REVERSED_OPERATORS[method]
    return BINARY.get(method, "") if len(bsym.args) == 2 else ""
