"""The evaluator: run bound symbols on values for their proxies; a function that is passed in makes each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import replace_leaves

Call = Callable[[BoundSymbol, tuple[Any, ...], dict[str, Any]], Any]


def call_target(bsym: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the target of the bound symbol's symbol."""
    return bsym.symbol.target(*args, **kwargs)


def evaluate(bsyms: Iterable[BoundSymbol], values: MutableMapping[str, Any], call: Call = call_target) -> None:
    """Run bound symbols in order; `values` maps the names of proxies to values, and receives the results.

    `call(bsym, args, kwargs)` calls each bound symbol. Raises `KeyError` for a proxy without a value, `ValueError` if a
    result has another structure than the bound symbol's output, and the errors of the calls.
    """
    for bsym in bsyms:
        result = evaluate_bound_symbol(bsym, values, call)
        values.update((proxy.name, value) for proxy, value in bindings(bsym.output, result))


def evaluate_bound_symbol(bsym: BoundSymbol, values: Mapping[str, Any], call: Call = call_target) -> Any:
    """Return the result of one bound symbol on the values of its proxies."""
    args, kwargs = replace_leaves(
        (bsym.args, dict(bsym.kwargs)), lambda leaf: values[leaf.name] if isinstance(leaf, Proxy) else leaf
    )
    return call(bsym, args, kwargs)


def bindings(output: object, result: object) -> Iterator[tuple[Proxy, Any]]:
    """Yield each proxy of a bound symbol's output with its result; raise `ValueError` for another structure."""
    if isinstance(output, Proxy):
        yield output, result
    elif isinstance(output, tuple | list):
        if not isinstance(result, tuple | list):
            raise ValueError(f"{object_of_class(type(result))} was returned instead of {len(output)} results")
        for part, value in zip(output, result, strict=True):
            yield from bindings(part, value)
