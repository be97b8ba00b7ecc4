"""Wrapping: runs of claimed bound symbols become one each, which an executor runs as a whole in its own way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from thunder_core.analysis.aliasing import names_written_to
from thunder_core.analysis.grad_mode import followed_by_autograd
from thunder_core.claiming.executor import Executor
from thunder_core.claiming.free import free_after_last_use
from thunder_core.fusion.machine_code import ENTRY, MachineCode
from thunder_core.ir.layout import layout
from thunder_core.ir.listing import Listing, Value
from thunder_core.ir.printer import list_trace
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Trace


class WrappingExecutor(Executor):
    """An executor that runs what others have claimed, many bound symbols at a time; it comes last, wherever named.

    `wrapper` names the function (`module.name`) that is given the bound symbols, as a function, and how many of its
    parameters are constants; the others are tensors. It returns what is called in place of the bound symbols.
    """

    wrapper: str
    short_name: str

    @abstractmethod
    def wraps(self, bsym: BoundSymbol) -> bool:
        """Whether a claimed bound symbol without effects may be part of what is wrapped."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Nothing: who runs a bound symbol is for the others to say."""
        return None

    def wrap_claimed(self, trace: Trace) -> Trace:
        """The trace with each run of bound symbols that the executor takes as one."""
        return wrap(trace, self)


def wrap(trace: Trace, executor: WrappingExecutor) -> Trace:
    """The trace with each run of bound symbols that the executor takes as one bound symbol."""
    bsyms = trace.bound_symbols
    made = {proxy.name for bsym in bsyms for proxy in bsym.defines}
    apart = names_written_to(trace) | (followed_by_autograd(trace) & made)
    taken = [_is_free(bsym, apart) and executor.wraps(bsym) for bsym in bsyms]
    result: list[BoundSymbol] = []
    count = 0
    for takes, group in groupby(range(len(bsyms)), key=taken.__getitem__):
        places = list(group)
        part = bsyms[places[0] : places[-1] + 1]
        if takes and len(part) > 1:
            later = _read(trace, bsyms[places[-1] + 1 :])
            part = (_wrapped(trace, part, later, executor, f"{executor.short_name}_{count}"),)
            count += 1
        result += part
    return trace.having(result, made_by=f"wrap by {executor.name}")


def unwrapped(bsyms: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """The bound symbols with those that a wrapper took in its place."""
    for bsym in bsyms:
        yield from bsym.subsymbols if any(part.executor for part in bsym.subsymbols) else (bsym,)


def _is_free(bsym: BoundSymbol, apart: frozenset[str]) -> bool:
    """Whether a bound symbol makes tensors of tensors alone, none of them written to or seen by autograd."""
    if bsym.has_effect or not bsym.defines or not bsym.is_resolved:
        return False
    proxies = (*bsym.inputs, *bsym.outputs)
    return all(isinstance(proxy, TensorProxy) and proxy.name not in apart for proxy in proxies)


def _read(trace: Trace, bsyms: Iterable[BoundSymbol]) -> frozenset[str]:
    """The names that these bound symbols read, or that are returned."""
    return frozenset(proxy.name for one in (*(bsym.inputs for bsym in bsyms), trace.outputs) for proxy in one)


def _wrapped(
    trace: Trace, bsyms: Sequence[BoundSymbol], later: frozenset[str], executor: WrappingExecutor, name: str
) -> BoundSymbol:
    made = {proxy.name: proxy for bsym in bsyms for proxy in bsym.defines}
    inputs = {proxy.name: proxy for bsym in bsyms for proxy in bsym.inputs if proxy.name not in made}
    outputs = tuple(proxy for proxy in made.values() if proxy.name in later)
    inner = Trace(ENTRY, tuple(inputs.values()), tuple(bsyms), outputs, made_by=f"wrap by {executor.name}")
    listing, constants = list_trace(free_after_last_use(inner))
    function = MachineCode(_text(listing, executor), b"", ()).function(name)
    return BoundSymbol(
        symbol=Symbol(name, function),
        args=(*constants.values(), *inputs.values()),
        kwargs={},
        output=outputs,
        subsymbols=tuple(bsyms),
        source=bsyms[0].source,
        module=bsyms[0].module,
        executor=executor.name,
    )


def _text(listing: Listing, executor: WrappingExecutor) -> str:
    """The bound symbols as a function whose constants are parameters, and what the executor makes of it."""
    count = len(listing.constants)
    whole = replace(
        listing,
        inputs=(*map(Value, listing.constants), *listing.inputs),
        constants=(),
        imports=tuple(sorted({*listing.imports, executor.wrapper.rpartition(".")[0]})),
    )
    return f"{layout(whole, comments=False)}\n\n{ENTRY} = {executor.wrapper}({ENTRY}, {count})\n"
