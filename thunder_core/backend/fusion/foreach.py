"""Operations on lists of tensors (`torch._foreach_mul_`) as one operation for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

PREFIX = "_foreach_"
Test = Callable[[Any], bool]
TYPE_TESTS: dict[str, Test] = {
    "Tensor": lambda value: isinstance(value, TensorProxy),
    "number": lambda value: isinstance(value, bool | int | float) or type(value) is Proxy,
    "float": lambda value: isinstance(value, int | float) or type(value) is Proxy,
    "bool": lambda value: isinstance(value, bool),
}


def split_foreach(bsym: BoundSymbol) -> list[BoundSymbol]:
    """Return one bound symbol for each tensor of the list of a foreach call, in order; empty if that is impossible."""
    operations = bsym.operations
    target = operations[0].symbol.target if len(operations) == 1 else None
    if not isinstance(target, torch._ops.OpOverload) or bsym.executor:
        return []
    name = target._schema.name.partition("::")[2]
    packet = getattr(torch.ops.aten, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    if packet is None or packet.__name__.endswith("_") != bool(bsym.mutates):
        return []
    return _Division(bsym, operations[0], packet).bsyms()


@dataclass(frozen=True)
class _Division:
    """A foreach call, its only aten operation, and `packet`, the operator that computes the same on one tensor."""

    bsym: BoundSymbol
    operation: BoundSymbol
    packet: torch._ops.OpOverloadPacket

    def bsyms(self) -> list[BoundSymbol]:
        written = bool(self.bsym.mutates)
        results: Sequence[Any] = self.operation.args[0] if written else self.operation.output
        if not isinstance(results, list | tuple) or not all(isinstance(result, TensorProxy) for result in results):
            return []
        items = [self._bsym_of_item(index, result) for index, result in enumerate(results)]
        return [item for item in items if item is not None] if None not in items else []

    def _bsym_of_item(self, index: int, result: TensorProxy) -> BoundSymbol | None:
        def part(value: object) -> Any:
            return value[index] if isinstance(value, list | tuple) else value

        arguments = [part(value) for value in self.operation.args]
        named = {name: part(value) for name, value in self.operation.kwargs.items()}
        for overload in self.packet.overloads():  # type: ignore[no-untyped-call]
            operator = getattr(self.packet, overload)
            call_arguments = _match_schema(operator._schema, arguments, named)
            if call_arguments is not None:
                mutates = (result.name,) if self.bsym.mutates else ()
                bsym = self.bsym
                return BoundSymbol(
                    symbol_of(operator),
                    *call_arguments,
                    result,
                    (),
                    bsym.source,
                    bsym.module,
                    mutates,
                    derives=bsym.derives,
                )
        return None


def _match_schema(
    schema: Any, arguments: Sequence[Any], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the positional and the keyword arguments for an operator's schema; None if they do not match."""
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    keywords = [argument for argument in schema.arguments if argument.kwarg_only]
    keyword_values = (
        dict(zip((argument.name for argument in keywords), arguments[len(positional) :], strict=False)) | named
    )
    if len(arguments) > len(positional) + len(keywords) or not keyword_values.keys() <= {
        argument.name for argument in keywords
    }:
        return None
    every = [
        *zip(positional, arguments, strict=False),
        *((argument, keyword_values[argument.name]) for argument in keywords if argument.name in keyword_values),
    ]
    if not all(TYPE_TESTS.get(str(argument.type), lambda value: False)(value) for argument, value in every):
        return None
    missing = positional[len(arguments) :] + [argument for argument in keywords if argument.name not in keyword_values]
    return (
        None
        if any(not argument.has_default_value() for argument in missing)
        else (tuple(arguments[: len(positional)]), keyword_values)
    )
