"""Wrapping: runs of claimed lines as one line each, so that an executor can run them its own way as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from thunder_core.analysis.aliasing import names_written_to
from thunder_core.analysis.grad_mode import followed_by_autograd
from thunder_core.ir.layout import layout
from thunder_core.ir.listing import Listing, Value
from thunder_core.ir.printer import list_trace
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Trace
from thunder_core.lower.executor import Executor
from thunder_core.lower.free import free_after_last_use
from thunder_core.lower.machine_code import ENTRY, MachineCode


class WrappingExecutor(Executor):
    """An executor that runs lines which others have claimed, many at a time. It comes last, wherever it is named.

    `wrapper` names the function (`module.name`) that is given the lines, as a function, and how many of its
    parameters are constants; the others are tensors. It returns what is called in place of the lines.
    """

    wrapper: str
    short_name: str

    @abstractmethod
    def wraps(self, bsym: BoundSymbol) -> bool:
        """Whether a claimed line without effects may be part of what is wrapped."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Nothing: who runs a line is for the others to say."""
        return None


def wrap(trace: Trace, executor: WrappingExecutor) -> Trace:
    """The trace with each run of lines that the executor takes as one line."""
    lines = trace.bound_symbols
    made = {proxy.name for line in lines for proxy in line.defines}
    apart = names_written_to(trace) | (followed_by_autograd(trace) & made)
    taken = [_is_free(line, apart) and executor.wraps(line) for line in lines]
    result: list[BoundSymbol] = []
    count = 0
    for takes, group in groupby(range(len(lines)), key=taken.__getitem__):
        places = list(group)
        part = lines[places[0] : places[-1] + 1]
        if takes and len(part) > 1:
            later = _read(trace, lines[places[-1] + 1 :])
            part = (_wrapped(trace, part, later, executor, f"{executor.short_name}_{count}"),)
            count += 1
        result += part
    return trace.having(result, made_by=f"wrap by {executor.name}")


def unwrapped(lines: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """The lines with those that a wrapper took in its place."""
    for line in lines:
        yield from line.subsymbols if any(part.executor for part in line.subsymbols) else (line,)


def _is_free(line: BoundSymbol, apart: frozenset[str]) -> bool:
    """Whether a line only makes tensors of tensors, away from what is written to and what autograd has to see."""
    if line.has_effect or not line.defines:
        return False
    proxies = (*line.inputs, *line.outputs)
    return all(isinstance(proxy, TensorProxy) and proxy.name not in apart for proxy in proxies)


def _read(trace: Trace, lines: Iterable[BoundSymbol]) -> frozenset[str]:
    """What is read by these lines, or returned."""
    return frozenset(proxy.name for one in (*(line.inputs for line in lines), trace.outputs) for proxy in one)


def _wrapped(
    trace: Trace, lines: Sequence[BoundSymbol], later: frozenset[str], executor: WrappingExecutor, name: str
) -> BoundSymbol:
    made = {proxy.name: proxy for line in lines for proxy in line.defines}
    inputs = {proxy.name: proxy for line in lines for proxy in line.inputs if proxy.name not in made}
    outputs = tuple(proxy for proxy in made.values() if proxy.name in later)
    inner = Trace(ENTRY, tuple(inputs.values()), tuple(lines), outputs, made_by=f"wrap by {executor.name}")
    listing, constants = list_trace(free_after_last_use(inner))
    function = MachineCode(_text(listing, executor), b"", ()).function(name)
    return BoundSymbol(
        symbol=Symbol(name, function),
        args=(*constants.values(), *inputs.values()),
        kwargs={},
        output=outputs,
        subsymbols=tuple(lines),
        source=lines[0].source,
        module=lines[0].module,
        executor=executor.name,
    )


def _text(listing: Listing, executor: WrappingExecutor) -> str:
    """The lines as a function whose constants are parameters, and what the executor makes of it."""
    count = len(listing.constants)
    whole = replace(
        listing,
        inputs=(*map(Value, listing.constants), *listing.inputs),
        constants=(),
        imports=tuple(sorted({*listing.imports, executor.wrapper.rpartition(".")[0]})),
    )
    return f"{layout(whole, comments=False)}\n\n{ENTRY} = {executor.wrapper}({ENTRY}, {count})\n"
