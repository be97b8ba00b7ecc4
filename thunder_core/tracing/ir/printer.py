"""Print traces as Python source. The printed code is the code that runs."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from thunder_core.tracing.ir.forms import expression
from thunder_core.tracing.ir.layout import layout
from thunder_core.tracing.ir.listing import CHECK, Listing, Statement, Value, is_claimed
from thunder_core.tracing.ir.literal import Scope, literal
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol

NO_ORIGINS: Mapping[str, str] = {}


class Printable(Protocol):
    """The attributes of `ir.trace.Trace` that are printed. This module cannot import `Trace`, which imports it."""

    @property
    def name(self) -> str:
        """The name of the function."""

    @property
    def made_by(self) -> str:
        """The step that made the trace."""

    @property
    def inputs(self) -> tuple[Proxy, ...]:
        """The parameters."""

    @property
    def bound_symbols(self) -> tuple[BoundSymbol, ...]:
        """The statements."""

    @property
    def output(self) -> Any:
        """The returned value: proxies, possibly in containers."""

    @property
    def outputs(self) -> tuple[Proxy, ...]:
        """The returned proxies, without duplicates."""

    @property
    def origins(self) -> Mapping[str, str]:
        """The origins of the inputs' values, by name."""

    @property
    def imports(self) -> frozenset[str]:
        """The modules that the statements use."""

    @property
    def constants(self) -> Mapping[str, object]:
        """The objects that the statements refer to by name."""


@dataclass(frozen=True)
class Source:
    """A printed trace: its source, and the objects that the source refers to by name."""

    text: str
    constants: Mapping[str, object]


def print_trace(trace: Printable, *, level: str = "torch", comments: bool = True) -> Source:
    """Return a trace as a Python module that defines one function with the name of the trace."""
    listing, constants = list_trace(trace, parts=level == "aten")
    return Source(layout(listing, level=level, comments=comments), constants)


def list_trace(trace: Printable, *, parts: bool = False) -> tuple[Listing, Mapping[str, object]]:
    """Return the listing, and the objects that its source refers to by name; `parts` includes all aten operations."""
    named = {id(value): name for name, value in trace.constants.items()}
    scope = Scope(set(trace.imports), dict(trace.constants), named, used_names=set(names_in(trace)))
    listing = _listing(trace, scope, parts)
    return replace(listing, imports=tuple(sorted(scope.imports)), constants=tuple(scope.constants)), scope.constants


def names_in(trace: Printable) -> Iterator[str]:
    """Yield the names of the values and of the sub-traces of a trace, at all depths."""
    yield from (proxy.name for proxy in trace.inputs)
    for bsym in trace.bound_symbols:
        if bsym.symbol.name == CHECK:
            continue
        yield from (proxy.name for proxy in bsym.defines)
        for function in bsym.functions:
            yield function.name
            yield from names_in(function)


def _listing(trace: Printable, scope: Scope, parts: bool) -> Listing:
    """Return the listing without imports and constants, which are added to the scope."""
    lines = [_line(bsym, scope, trace.origins) for bsym in trace.bound_symbols]
    returns = literal(trace.output, scope)
    return Listing(
        name=trace.name,
        made_by=trace.made_by,
        inputs=tuple(value_of(proxy, trace.origins) for proxy in trace.inputs),
        lines=tuple(_with_parts(*pair, scope, parts) for pair in zip(lines, trace.bound_symbols, strict=True)),
        returns=returns,
        results=tuple(value_of(proxy, trace.origins) for proxy in trace.outputs),
    )


def value_of(proxy: Proxy, origins: Mapping[str, str] = NO_ORIGINS) -> Value:
    """Return a proxy as plain data."""
    return Value(proxy.name, proxy.described, origins.get(proxy.name, ""))


def target(output: object, defined: set[str]) -> str:
    """Return the source on the left of `=`: the newly defined names, and `_` for other outputs."""
    if isinstance(output, Proxy):
        return output.name if output.name in defined else "_"
    if isinstance(output, tuple | list) and output:
        inner = ", ".join(target(item, defined) for item in output)
        return f"({inner},)" if len(output) == 1 else f"({inner})"
    return "_"


def statement(bsym: BoundSymbol, scope: Scope) -> str:
    """Return a bound symbol as one line of source."""
    defined = {proxy.name for proxy in bsym.defines}
    right = expression(bsym, scope)
    return f"{target(bsym.output, defined)} = {right}" if defined else right


def _line(bsym: BoundSymbol, scope: Scope, origins: Mapping[str, str] = NO_ORIGINS) -> Statement:
    if bsym.symbol.name == CHECK:  # a shortcut for most lines of a prologue, which have no other metadata
        return Statement(str(bsym.args[0]), CHECK, reads=tuple([proxy.name for proxy in bsym.args[0].reads]))
    source = bsym.source
    return Statement(
        text=statement(bsym, scope),
        symbol=bsym.symbol.name,
        executor=bsym.executor,
        module=bsym.module,
        file=source.filename if source else "",
        number=source.lineno if source else 0,
        function=source.function if source else "",
        code=linecache.getline(source.filename, source.lineno).strip() if source else "",
        reads=tuple(proxy.name for proxy in bsym.inputs),
        makes=tuple(value_of(proxy, origins) for proxy in bsym.defines),
        derives=bound_symbol_text(bsym.derives) if bsym.derives else "",
        definitions=tuple(_listing(function, scope, parts=False) for function in bsym.functions),
    )


def bound_symbol_text(bsym: BoundSymbol) -> str:
    """Return the source of a single bound symbol. It is cached, because many derivatives may belong to one."""
    if bsym not in _texts:
        _texts[bsym] = statement(bsym, Scope())
    return _texts[bsym]


_texts: WeakKeyDictionary[BoundSymbol, str] = WeakKeyDictionary()


def _with_parts(line: Statement, bsym: BoundSymbol, scope: Scope, all_parts: bool) -> Statement:
    """Return the statement with its parts. Parts that are printed only as comments add no imports to the scope."""
    if not bsym.subsymbols or not (all_parts or is_claimed(bsym.executor)):
        return line
    inner = scope if all_parts else Scope()
    parts = (_with_parts(_line(part, inner), part, inner, all_parts) for part in bsym.subsymbols)
    return replace(line, parts=tuple(parts))
