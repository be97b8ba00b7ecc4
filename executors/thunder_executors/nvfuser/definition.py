"""Print a region as the source of a module that builds an nvFuser definition and calls it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.analysis.named_arguments import named_arguments
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
SIXTEEN_BIT = frozenset({torch.bfloat16, torch.float16})  # nvFuser returns float32 for operations on these dtypes
MAX_DIMENSIONS = 8
HEAD = "from thunder_executors.nvfuser.library import DataType, FusionDefinition, laid_out"

Rule: TypeAlias = Callable[["Definition", BoundSymbol], "str | tuple[str, ...]"]
RULES: dict[str, Rule] = {}
# Operations that only copy or rearrange elements. If such operations compute an output of a region, PyTorch runs them
# after the fused kernel.
DATA_MOVEMENTS: set[str] = set()


class Unsupported(Exception):
    """Raised if nvFuser lacks an operation, or differs from PyTorch; the message names the operation or difference."""


def rule(*names: str, moves_data: bool = False) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these aten operations. A rule returns one expression for each result.

    `moves_data` is True for operations that only copy or rearrange elements.
    """

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        DATA_MOVEMENTS.update(names if moves_data else ())
        return function

    return register


@dataclass
class Definition:
    """The statements of a definition, in order."""

    statements: list[str] = field(default_factory=list)
    _count: int = 0

    def write(self, operation: BoundSymbol) -> None:
        """Write an aten operation.

        Raises `Unsupported` if there is no rule for it, or if nvFuser does not support its arguments or results.
        """
        name = name_of(operation)
        if name not in RULES:
            raise Unsupported(f"nvFuser has no {name}")
        if reason := reason_unsupported((*operation.inputs, *operation.outputs)):
            raise Unsupported(f"{name}: {reason}")
        expressions = RULES[name](self, operation)
        results = (expressions,) if isinstance(expressions, str) else expressions
        for proxy, expression in zip(operation.outputs, results, strict=False):
            self.statements.append(f"{proxy.name} = {expression}")

    def name_expression(self, expression: str) -> str:
        """Return a name for the value of an expression that is used more than once."""
        name, self._count = f"w{self._count}", self._count + 1
        self.statements.append(f"{name} = {expression}")
        return name

    def upcast(self, proxy: TensorProxy) -> str:
        """Return the name of the tensor, cast to float32 if it is float16 or bfloat16."""
        return self.name_expression(cast(proxy.name, torch.float32)) if proxy.dtype in SIXTEEN_BIT else proxy.name


def name_of(operation: BoundSymbol) -> str:
    """Return the operator name without namespace and overload: `add` for `torch.ops.aten.add.Tensor`."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        raise Unsupported(f"{operation.symbol.name} is not one of PyTorch's own operations")
    return str(target.overloadpacket.__name__)


def reason_unsupported(proxies: Iterable[Proxy]) -> str | None:
    """Return the reason why nvFuser does not support these tensors; None if it does."""
    for proxy in proxies:
        if not isinstance(proxy, TensorProxy):
            return f"{proxy.name} is not a tensor"
        if proxy.device.type != "cuda":
            return f"a tensor is on {proxy.device}"
        if proxy.dtype not in DTYPES:
            return f"a tensor is of {proxy.dtype}"
        if len(proxy.shape) > MAX_DIMENSIONS:
            return f"a tensor has {len(proxy.shape)} dimensions"
        if 0 in proxy.shape:
            return "a tensor is empty"
    return None


def arguments(operation: BoundSymbol) -> dict[str, Any]:
    """Return the arguments of an aten operation by name, including defaults."""
    return named_arguments(operation.symbol.target, operation.args, operation.kwargs)


def result_of(operation: BoundSymbol) -> TensorProxy:
    """Return the first result of an operation, which is a tensor."""
    proxy = operation.outputs[0]
    assert isinstance(proxy, TensorProxy), proxy
    return proxy


def call(name: str, *operands: str, **options: object) -> str:
    """Return a call of an nvFuser operation as an expression; the values of options are printed by `str`."""
    return f"fd.ops.{name}({', '.join([*operands, *(f'{key}={value}' for key, value in options.items())])})"


def cast(expression: str, dtype: torch.dtype) -> str:
    """Return the expression converted to another dtype."""
    return call("cast", expression, dtype=data_type(dtype))


def data_type(dtype: torch.dtype) -> str:
    """Return nvFuser's name of a dtype."""
    if dtype not in DTYPES:
        raise Unsupported(f"nvFuser has no {dtype}")
    return f"DataType.{DTYPES[dtype]}"


def number(value: object) -> str:
    """Return a constant as source; raise `Unsupported` for anything but a bool, an integer or a float."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if not isinstance(value, bool | int | float):
        raise Unsupported(f"{value!r} is not an operand")
    return repr(value)


def print_module(region: Region) -> str:
    """Return the source of a module that defines `region`; raise `Unsupported` if nvFuser does not support it."""
    producer_of = {proxy.name: operation for operation in region.operations for proxy in operation.defines}
    bases = {proxy.name: base_of(proxy.name, producer_of) for proxy in region.outputs}
    fused_names = [name for name in dict.fromkeys(bases.values()) if name in producer_of]
    definition = Definition()
    fused = needed_operations(fused_names, producer_of)
    read = {proxy.name for operation in fused for proxy in operation.inputs}
    inputs = [proxy for proxy in region.inputs if proxy.name in read]
    if reason := reason_unsupported(inputs) or _device_problem(inputs):
        raise Unsupported(reason)
    for operation in fused:
        definition.write(operation)
    moved = needed_operations(bases, producer_of, until=bases.values())
    strides = {proxy.name: proxy.stride for operation in fused for proxy in operation.tensors}
    fused_strides = {name: strides[name] for name in fused_names}
    return "\n".join([*_head(inputs, definition, fused_names), *_entry(region, inputs, fused_strides, moved), ""])


def _device_problem(inputs: Iterable[TensorProxy]) -> str | None:
    devices = {str(proxy.device) for proxy in inputs}
    if not devices:
        return "no operation for nvFuser reads an input"
    return None if len(devices) == 1 else f"its inputs are on {len(devices)} devices"


def base_of(name: str, producer_of: Mapping[str, BoundSymbol]) -> str:
    """Return the name of the computed value or input that only data movements lead from to a value."""
    while name in producer_of and name_of(producer_of[name]) in DATA_MOVEMENTS:
        name = producer_of[name].inputs[0].name
    return name


def needed_operations(
    names: Iterable[str], producer_of: Mapping[str, BoundSymbol], until: Iterable[str] = ()
) -> list[BoundSymbol]:
    """Return the operations that compute these values, in order.

    The search stops at the values in `until`; the operations that compute these are not returned.
    """
    stop, pending = set(until), list(names)
    operations: dict[int, BoundSymbol] = {}
    while pending:
        name = pending.pop()
        producer = producer_of.get(name)
        if producer is not None and name not in stop and id(producer) not in operations:
            operations[id(producer)] = producer
            pending += [proxy.name for proxy in producer.inputs]
    order = {id(producer): index for index, producer in enumerate(dict.fromkeys(producer_of.values()))}
    return sorted(operations.values(), key=lambda operation: order[id(operation)])


def _head(inputs: Iterable[TensorProxy], definition: Definition, fused_names: Iterable[str]) -> Iterator[str]:
    yield from ("import torch", HEAD, "", "with FusionDefinition() as fd:")
    for proxy in inputs:
        sizes, strides = list(proxy.shape), list(proxy.stride)
        dtype = data_type(proxy.dtype)
        yield f"    {proxy.name} = fd.define_tensor({sizes=!r}, {strides=!r}, dtype={dtype}, static_sizes=True)"
    yield from (f"    {line}" for line in definition.statements)
    yield from (f"    fd.add_output({name})" for name in fused_names)


def _entry(
    region: Region, inputs: Iterable[TensorProxy], fused_strides: Mapping[str, Any], moved: Iterable[BoundSymbol]
) -> Iterator[str]:
    yield from ("", "", f"def {ENTRY}({', '.join(proxy.name for proxy in region.inputs)}):")
    yield f"    [{', '.join(fused_strides)}] = fd.execute([{', '.join(proxy.name for proxy in inputs)}])"
    yield from (f"    {name} = laid_out({name}, {stride})" for name, stride in fused_strides.items())
    yield from (f"    {statement(operation, Scope())}" for operation in moved)
    yield f"    return {', '.join(proxy.name for proxy in region.outputs)}"
