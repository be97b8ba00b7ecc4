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
TAKES: dict[str, Test] = {
    "Tensor": lambda value: isinstance(value, TensorProxy),
    "number": lambda value: isinstance(value, bool | int | float) or type(value) is Proxy,
    "float": lambda value: isinstance(value, int | float) or type(value) is Proxy,
    "bool": lambda value: isinstance(value, bool),
}


def one_by_one(bsym: BoundSymbol) -> list[BoundSymbol]:
    """The bound symbols that do the same to one tensor each, in the order of the list; none where there are none."""
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
    """A bound symbol, its one operation, and the operator for one tensor."""

    bsym: BoundSymbol
    operation: BoundSymbol
    packet: torch._ops.OpOverloadPacket

    def bsyms(self) -> list[BoundSymbol]:
        written = bool(self.bsym.mutates)
        results: Sequence[Any] = self.operation.args[0] if written else self.operation.output
        if not isinstance(results, list | tuple) or not all(isinstance(one, TensorProxy) for one in results):
            return []
        items = [self._item(place, result) for place, result in enumerate(results)]
        return [one for one in items if one is not None] if None not in items else []

    def _item(self, place: int, result: TensorProxy) -> BoundSymbol | None:
        def part(value: Any) -> Any:
            return value[place] if isinstance(value, list | tuple) else value

        arguments = [part(value) for value in self.operation.args]
        named = {name: part(value) for name, value in self.operation.kwargs.items()}
        for overload in self.packet.overloads():  # type: ignore[no-untyped-call]
            operator = getattr(self.packet, overload)
            words = _fitted(operator._schema, arguments, named)
            if words is not None:
                mutates = (result.name,) if self.bsym.mutates else ()
                bsym = self.bsym
                return BoundSymbol(
                    symbol_of(operator), *words, result, (), bsym.source, bsym.module, mutates, derives=bsym.derives
                )
        return None


def _fitted(
    schema: Any, arguments: Sequence[Any], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments as an operator with that schema takes them; None where it does not."""
    positional = [one for one in schema.arguments if not one.kwarg_only]
    keywords = [one for one in schema.arguments if one.kwarg_only]
    spare = dict(zip((one.name for one in keywords), arguments[len(positional) :], strict=False)) | named
    if len(arguments) > len(positional) + len(keywords) or not spare.keys() <= {one.name for one in keywords}:
        return None
    every = [
        *zip(positional, arguments, strict=False),
        *((one, spare[one.name]) for one in keywords if one.name in spare),
    ]
    if not all(TAKES.get(str(one.type), lambda value: False)(value) for one, value in every):
        return None
    missing = positional[len(arguments) :] + [one for one in keywords if one.name not in spare]
    return None if any(not one.has_default_value() for one in missing) else (tuple(arguments[: len(positional)]), spare)
