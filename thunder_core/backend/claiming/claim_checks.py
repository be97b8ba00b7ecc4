"""Checks in a claimed trace: each bound symbol that an executor took is compared with what it stands for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from thunder_core.backend.claiming.check import UNINITIALIZED, Check, LaterCheck
from thunder_core.backend.claiming.claim import EAGER
from thunder_core.tracing.analysis.aliasing import schema_of
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace

UNKNOWN = "its inner operations are not known"
READS_MORE = "its inner operations read more than its inputs"
WAITS = "it changes a state of the process"
DERIVED = "it is PyTorch's own derivative of an executor's function"
GENERATOR_STATES = frozenset({"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"})
HAS_EFFECT = "it writes, or draws random numbers, in a function that was differentiated"


@dataclass(frozen=True)
class Unclaimed:
    """A program as nobody has claimed it: bound symbols by the names that they define, and the names written to."""

    originals: Mapping[tuple[str, ...], BoundSymbol]
    written: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> Unclaimed:
        """The program that a trace is."""
        originals = {names_of(bsym): bsym for bsym in trace.bound_symbols if not bsym.executor}
        return cls(originals, frozenset(name for bsym in trace.bound_symbols for name in bsym.mutates))


def names_of(bsym: BoundSymbol) -> tuple[str, ...]:
    """The names that a bound symbol defines, which are its own."""
    return tuple(proxy.name for proxy in bsym.defines)


def with_checks(bsyms: Sequence[BoundSymbol], program: Unclaimed) -> Iterator[BoundSymbol]:
    """The bound symbols with a check of each that an executor other than eager PyTorch took.

    A check takes the place of a bound symbol whose reference is known. An executor's function that was differentiated
    is several bound symbols: behind the last that makes the result, or writes to it, there is a check of that.
    """
    names = (f"check_{number}" for number in itertools.count())
    parts: list[BoundSymbol] = []  # of an executor's function, of which the program knows the result alone
    later: dict[int, BoundSymbol] = {}
    for place, bsym in enumerate(bsyms):
        is_eager = bsym.executor in ("", EAGER)
        end = place if is_eager else last_write(bsyms, place)
        reference = () if is_eager or end > place else reference_of(bsym, program)
        yield checked(bsym, reference, next(names)) if reference else bsym
        if not (is_eager or reference or later):
            parts.append(bsym)
            if bsym.defines and (original := program.originals.get(names_of(bsym))) is not None:
                later[end] = checked_later(parts, original, program, next(names))
                parts = []
        if place in later:
            yield later.pop(place)
    if parts:
        yield checked_later(parts, None, program, next(names))


def last_write(bsyms: Sequence[BoundSymbol], place: int) -> int:
    """The place of the last bound symbol of an executor's function, from one on, that writes to what that one makes."""
    first, last = bsyms[place], place
    for number, bsym in enumerate(bsyms[place + 1 :], start=place + 1):
        if bsym.executor != first.executor or bsym.source != first.source:
            break
        last = number if {proxy.name for proxy in first.defines}.intersection(bsym.mutates) else last
    return last


def checked(bsym: BoundSymbol, reference: tuple[BoundSymbol, ...], name: str) -> BoundSymbol:
    """The bound symbol with a check in its place."""
    check = Check(bsym, reference, reason_to_leave_out(bsym, reference), uninitialized(bsym, reference))
    return replace(bsym, symbol=Symbol(name, check, bsym.symbol.empties), subsymbols=(bsym,), ordered=True)


def checked_later(
    parts: Sequence[BoundSymbol], original: BoundSymbol | None, program: Unclaimed, name: str
) -> BoundSymbol:
    """The check behind the bound symbols that an executor's function consists of, for one of the program's."""
    last = parts[-1]
    given: tuple[Proxy, ...] = ()
    if original is None:
        check = LaterCheck(last, (), UNKNOWN if last.derives is None else DERIVED)
    elif original.has_effect or not program.written.isdisjoint(names_of(last)):
        check = LaterCheck(last, (original,), HAS_EFFECT)
    else:
        check = LaterCheck(last, (original,), results=last.defines, effect=effect_of(parts, original))
        given = (*original.inputs, *last.defines)
    return BoundSymbol(
        Symbol(name, check), given, {}, None, source=last.source, module=last.module, ordered=True, executor=EAGER
    )


def effect_of(parts: Iterable[BoundSymbol], original: BoundSymbol) -> str:
    """The effect that an executor's function has and the operation, which has none, has not; empty without one."""
    read = {proxy.name for proxy in original.inputs}
    for part in parts:
        if written := read.intersection(part.mutates):
            return f"the input `{min(written)}`, which eager PyTorch does not write to, is written to"
        if draws(part):
            return "more random numbers are drawn than in eager PyTorch"
    return ""


def reference_of(bsym: BoundSymbol, program: Unclaimed) -> tuple[BoundSymbol, ...]:
    """The bound symbols of eager PyTorch that a claimed one stands for: the program's own, or what it consists of."""
    original = program.originals.get(names_of(bsym)) if bsym.defines else None
    given = {proxy.name for proxy in bsym.inputs}
    reads_enough = original is not None and given.issuperset(proxy.name for proxy in original.inputs)
    if original is not None and reads_enough and set(original.mutates) == set(bsym.mutates):
        return (original,)
    return bsym.subsymbols


def reason_to_leave_out(bsym: BoundSymbol, reference: tuple[BoundSymbol, ...]) -> str:
    """The reason why a bound symbol cannot be compared with its reference; empty where it can."""
    if not reference:
        return UNKNOWN
    if any(part.ordered and not draws(part) for part in (bsym, *reference)):
        return WAITS
    known = {proxy.name for proxy in bsym.inputs}
    for part in reference:
        if not known.issuperset(proxy.name for proxy in part.inputs):
            return READS_MORE
        known |= {proxy.name for proxy in part.defines}
    if not known.issuperset(proxy.name for proxy in bsym.outputs):
        return UNKNOWN
    results = {proxy.name for proxy in bsym.outputs}
    return UNINITIALIZED if results and results <= uninitialized(bsym, reference) else ""


def uninitialized(bsym: BoundSymbol, reference: tuple[BoundSymbol, ...]) -> frozenset[str]:
    """The results that are memory as it was allocated, which have no values to compare."""
    written = {name for part in reference for name in part.mutates}
    made = {
        proxy.name
        for part in reference
        if part.symbol.short_name.startswith(("empty", "new_empty")) or is_empty(part)
        for proxy in part.defines
    }
    made |= {name for part in reference for operation in part.at_level("aten") for name in generator_states(operation)}
    return frozenset(made.intersection(proxy.name for proxy in bsym.outputs) - written)


def generator_states(operation: BoundSymbol) -> Iterator[str]:
    """The results of an attention kernel that are for its backward alone: without dropout they are never written."""
    schema = schema_of(operation)
    results = operation.output if isinstance(operation.output, tuple | list) else (operation.output,)
    if schema is not None and "scaled_dot_product" in schema.name:
        pairs = zip(schema.returns, results, strict=False)
        yield from (proxy.name for one, proxy in pairs if one.name in GENERATOR_STATES and isinstance(proxy, Proxy))


def draws(bsym: BoundSymbol) -> bool:
    """Whether a call draws random numbers."""
    tags = (getattr(part.symbol.target, "tags", ()) for part in bsym.at_level("aten"))
    return any(torch.Tag.nondeterministic_seeded in tag for tag in tags)


def is_empty(bsym: BoundSymbol) -> bool:
    """Whether a call is of one of PyTorch's operations that allocate: `torch.ops.aten.empty_like.default`."""
    return any(part.startswith(("empty", "new_empty")) for part in bsym.symbol.name.split(".")[2:])
