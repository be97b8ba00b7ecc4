"""Faults of the prologue's unpacking: it passes another tensor than the computation's input denotes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.planted.bound_symbols import alike
from tests.planted.plant import Plant
from tests.planted.programs import with_trace
from tests.planted.subject import subject
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.validation.internal_check import Fault


def unpacking_plants(family: str) -> Iterator[Plant]:
    """Pairs of inputs of equal shape and dtype, exchanged, or with one of them passed twice."""
    own = subject(family, executors="torch")
    inputs = [proxy for proxy in own.program.traces("computation")[0].inputs if isinstance(proxy, TensorProxy)]
    prologue = own.program.last("prologue")
    names = [proxy.name for bsym in prologue.bound_symbols for proxy in bsym.defines]
    for first, second in itertools.combinations(inputs, 2):
        if not alike(first, second):
            continue
        for what, others in {
            "swapped": {first.name: second.name, second.name: first.name},
            "another": {first.name: second.name},
        }.items():
            wrong = with_passed_tensors(prologue, others)
            yield unpacking_plant(own, f"{what}: {first.name}, {second.name}", wrong, set(others))
        wrong = with_value(prologue, first.name, second.name)
        if names.index(first.name) > names.index(second.name):
            yield unpacking_plant(own, f"read from elsewhere: {first.name}, {second.name}", wrong, {first.name})


def unpacking_plant(own, what: str, wrong: Trace, names: set[str]) -> Plant:
    """The plant of a prologue with a changed line."""
    before = set(map(bound_symbol_text, own.program.last("prologue").bound_symbols))
    line = next(text for text in map(bound_symbol_text, wrong.bound_symbols) if text not in before)

    def is_named(faults: Sequence[Fault]) -> bool:
        return all(fault.kind == "unpacking" and fault.result in names and fault.line == line for fault in faults)

    return Plant("unpacking", own, what, lambda: with_trace(own.program, "prologue", lambda _: wrong), is_named)


def text_of(bsym: BoundSymbol) -> str:
    """The printed line of a bound symbol."""
    return bound_symbol_text(bsym)


def index(trace: Trace, text: str) -> int:
    """The index of the line."""
    return [*map(text_of, trace.bound_symbols)].index(text)


def with_passed_tensors(prologue: Trace, others: dict[str, str]) -> Trace:
    """The prologue with other names in its tuple of the tensors that it passes."""
    passing = next(bsym for bsym in prologue.bound_symbols if "tensors" in {proxy.name for proxy in bsym.defines})
    names = [others.get(proxy.name, proxy.name) for proxy in passing.inputs]
    return with_value(prologue, "tensors", f"({', '.join(names)})", *names)


def with_value(prologue: Trace, name: str, text: str, *names: str) -> Trace:
    """The prologue with another value of a variable: the text, which reads the variables with these names."""
    reads = tuple(map(Proxy, names or (text,)))
    changed = (
        python_statement(text, Proxy(name), reads) if name in {proxy.name for proxy in bsym.defines} else bsym
        for bsym in prologue.bound_symbols
    )
    return prologue.having(changed, made_by=prologue.made_by)


def with_text(trace: Trace, text: str, new_line: str) -> Trace:
    """The trace of an epilogue with a changed line, or without the line if no replacement is given."""
    lines = [*trace.bound_symbols]
    place = index(trace, text)
    bsym = lines[place]
    code = new_line if bsym.output is None else new_line.partition(" = ")[2]
    lines[place : place + 1] = [replace(bsym, args=(Code(code),))] if new_line else []
    return trace.having(lines, made_by=trace.made_by)
