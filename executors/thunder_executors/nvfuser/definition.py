"""Regions as definitions of nvFuser's: the text of a module that builds one, and calls it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.ir.literal import Scope
from thunder_core.tracing.ir.printer import statement
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

DTYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.bfloat16: "BFloat16",
    torch.float16: "Half",
    torch.int64: "Int",
    torch.int32: "Int32",
    torch.bool: "Bool",
}
SHORT = frozenset({torch.bfloat16, torch.float16})  # nvFuser computes with them in float32, and leaves it at that
MOST_DIMENSIONS = 8
HEAD = "from thunder_executors.nvfuser.library import DataType, FusionDefinition, laid_out"

Rule: TypeAlias = Callable[["Definition", BoundSymbol], "str | tuple[str, ...]"]
RULES: dict[str, Rule] = {}
# What neither computes nor changes a value: as a result of a region, it is left to PyTorch, whose views are views.
MOVEMENTS: set[str] = set()


class Unsupported(Exception):
    """nvFuser does not have it, or not as PyTorch means it; the message says what."""


def rule(*names: str, moves: bool = False) -> Callable[[Rule], Rule]:
    """Register how aten operations of these names are written; it gives an expression for each result."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        MOVEMENTS.update(names if moves else ())
        return function

    return register


@dataclass
class Definition:
    """The statements of a definition, one after the other."""

    statements: list[str] = field(default_factory=list)
    _count: int = 0

    def write(self, operation: BoundSymbol) -> None:
        """Write an aten operation; raises `Unsupported`."""
        name = name_of(operation)
        if name not in RULES:
            raise Unsupported(f"nvFuser has no {name}")
        if reason := unusual((*operation.inputs, *operation.outputs)):
            raise Unsupported(f"{name}: {reason}")
        found = RULES[name](self, operation)
        results = (found,) if isinstance(found, str) else found
        for proxy, expression in zip(operation.outputs, results, strict=False):
            self.statements.append(f"{proxy.name} = {expression}")

    def named(self, expression: str) -> str:
        """A name for the value of an expression, which is used more than once."""
        name, self._count = f"w{self._count}", self._count + 1
        self.statements.append(f"{name} = {expression}")
        return name

    def wide(self, proxy: TensorProxy) -> str:
        """A tensor as nvFuser computes with it."""
        return self.named(cast(proxy.name, torch.float32)) if proxy.dtype in SHORT else proxy.name


def name_of(operation: BoundSymbol) -> str:
    """`add` of `torch.ops.aten.add.Tensor`."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        raise Unsupported(f"{operation.symbol.name} is not one of PyTorch's own operations")
    return str(target.overloadpacket.__name__)


def unusual(proxies: Iterable[Proxy]) -> str | None:
    """The reason why nvFuser does not take these tensors; None if it does."""
    for proxy in proxies:
        if not isinstance(proxy, TensorProxy):
            return f"{proxy.name} is no tensor"
        if proxy.device.type != "cuda":
            return f"a tensor is on {proxy.device}"
        if proxy.dtype not in DTYPES:
            return f"a tensor is of {proxy.dtype}"
        if len(proxy.shape) > MOST_DIMENSIONS:
            return f"a tensor has {len(proxy.shape)} dimensions"
        if 0 in proxy.shape:
            return "a tensor is empty"
    return None


def arguments(operation: BoundSymbol) -> dict[str, Any]:
    """The arguments of an aten operation by name, with their defaults."""
    target: Any = operation.symbol.target
    given: dict[str, Any] = {argument.name: argument.default_value for argument in target._schema.arguments}
    return given | dict(zip(given, operation.args, strict=False)) | dict(operation.kwargs)


def result_of(operation: BoundSymbol) -> TensorProxy:
    """The first result."""
    proxy = operation.outputs[0]
    assert isinstance(proxy, TensorProxy), proxy
    return proxy


def call(name: str, *operands: str, **options: object) -> str:
    """An operation of nvFuser's as an expression; options are written as they print."""
    return f"fd.ops.{name}({', '.join([*operands, *(f'{key}={value}' for key, value in options.items())])})"


def cast(expression: str, dtype: torch.dtype) -> str:
    """The expression in another dtype."""
    return call("cast", expression, dtype=data_type(dtype))


def data_type(dtype: torch.dtype) -> str:
    """A dtype as nvFuser calls it."""
    if dtype not in DTYPES:
        raise Unsupported(f"nvFuser has no {dtype}")
    return f"DataType.{DTYPES[dtype]}"


def number(value: object) -> str:
    """A constant as an operand."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if not isinstance(value, bool | int | float):
        raise Unsupported(f"{value!r} is no operand")
    return repr(value)


def printed(region: Region) -> str:
    """The text of a module that defines `region`; raises `Unsupported` where nvFuser cannot write it."""
    makers = {proxy.name: one for one in region.operations for proxy in one.defines}
    bases = {proxy.name: base_of(proxy.name, makers) for proxy in region.outputs}
    made = {name: makers[name] for name in dict.fromkeys(bases.values()) if name in makers}
    definition = Definition()
    inside = needed(made, makers)
    read = {proxy.name for one in inside for proxy in one.inputs}
    inputs = [proxy for proxy in region.inputs if proxy.name in read]
    if reason := unusual(inputs) or _scattered(inputs):
        raise Unsupported(reason)
    for one in inside:
        definition.write(one)
    moved = needed(bases, makers, until=bases.values())
    return "\n".join([*_head(inputs, definition, made), *_entry(region, inputs, made, moved), ""])


def _scattered(inputs: Iterable[TensorProxy]) -> str | None:
    devices = {str(proxy.device) for proxy in inputs}
    return None if len(devices) == 1 else f"its inputs are on {len(devices)} devices"


def base_of(name: str, makers: Mapping[str, BoundSymbol]) -> str:
    """The value that is computed, or the input, of which another one is but a view or a copy."""
    while name in makers and name_of(makers[name]) in MOVEMENTS:
        name = makers[name].inputs[0].name
    return name


def needed(names: Iterable[str], makers: Mapping[str, BoundSymbol], until: Iterable[str] = ()) -> list[BoundSymbol]:
    """The operations behind these values in their order, none of them from before those where to stop."""
    stop, wanted = set(until), list(names)
    found: dict[int, BoundSymbol] = {}
    while wanted:
        name = wanted.pop()
        if name in makers and name not in stop and id(makers[name]) not in found:
            found[id(makers[name])] = makers[name]
            wanted += [proxy.name for proxy in makers[name].inputs]
    order = {id(one): place for place, one in enumerate(dict.fromkeys(makers.values()))}
    return sorted(found.values(), key=lambda one: order[id(one)])


def _head(inputs: Iterable[TensorProxy], definition: Definition, made: Iterable[str]) -> Iterator[str]:
    yield from ("import torch", HEAD, "", "with FusionDefinition() as fd:")
    for proxy in inputs:
        sizes, strides = list(proxy.shape), list(proxy.stride)
        dtype = data_type(proxy.dtype)
        yield f"    {proxy.name} = fd.define_tensor({sizes=!r}, {strides=!r}, dtype={dtype}, static_sizes=True)"
    yield from (f"    {line}" for line in definition.statements)
    yield from (f"    fd.add_output({name})" for name in made)


def _entry(
    region: Region, inputs: Iterable[TensorProxy], made: Mapping[str, BoundSymbol], moved: Iterable[BoundSymbol]
) -> Iterator[str]:
    proxies = {proxy.name: proxy for one in made.values() for proxy in one.tensors}
    yield from ("", "", f"def {ENTRY}({', '.join(proxy.name for proxy in region.inputs)}):")
    if made:
        yield f"    [{', '.join(made)}] = fd.execute([{', '.join(proxy.name for proxy in inputs)}])"
    yield from (f"    {name} = laid_out({name}, {proxies[name].stride})" for name in made)
    yield from (f"    {statement(one, Scope())}" for one in moved)
    yield f"    return {', '.join(proxy.name for proxy in region.outputs)}"
