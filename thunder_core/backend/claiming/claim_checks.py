"""Checks in a claimed trace: the result of each executor's bound symbol is compared with its reference."""

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

OPERATIONS_UNKNOWN = "its inner operations are not known"
READS_OTHER_VALUES = "its inner operations read more than its inputs"
CHANGES_STATE = "it changes the state of the process"
DERIVED_BY_PYTORCH = "it is PyTorch's own derivative of an executor's function"
GENERATOR_STATES = frozenset({"philox_seed", "philox_offset", "rng_state", "unused", "debug_attn_mask"})
HAS_EFFECT = "it writes, or draws random numbers, in a function that was differentiated"


@dataclass(frozen=True)
class UnclaimedProgram:
    """An unclaimed program: its bound symbols by the names that they define, and the names that are written to."""

    originals: Mapping[tuple[str, ...], BoundSymbol]
    written: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> UnclaimedProgram:
        """Return the unclaimed program of a trace."""
        originals = {names_of(bsym): bsym for bsym in trace.bound_symbols if not bsym.executor}
        return cls(originals, frozenset(name for bsym in trace.bound_symbols for name in bsym.mutates))


def names_of(bsym: BoundSymbol) -> tuple[str, ...]:
    """Return the names that a bound symbol defines."""
    return tuple(proxy.name for proxy in bsym.defines)


def with_checks(bsyms: Sequence[BoundSymbol], program: UnclaimedProgram) -> Iterator[BoundSymbol]:
    """Yield the bound symbols, with a check of each bound symbol that an executor other than eager PyTorch claimed.

    A check replaces a bound symbol whose reference is known. A function of an executor that was differentiated consists
    of several bound symbols: its check follows the last bound symbol that makes the result or writes to it.
    """
    names = (f"check_{number}" for number in itertools.count())
    # The bound symbols of an executor's function so far. In their place, the unclaimed program has one bound symbol,
    # which defines the result of the function.
    parts: list[BoundSymbol] = []
    checks_by_index: dict[int, BoundSymbol] = {}
    for index, bsym in enumerate(bsyms):
        is_eager = bsym.executor in ("", EAGER)
        end = index if is_eager else last_writer(bsyms, index)
        reference = () if is_eager or end > index else reference_of(bsym, program)
        yield with_check(bsym, reference, next(names)) if reference else bsym
        if not (is_eager or reference or checks_by_index):
            parts.append(bsym)
            if bsym.defines and (original := program.originals.get(names_of(bsym))) is not None:
                checks_by_index[end] = check_after(parts, original, program, next(names))
                parts = []
        if index in checks_by_index:
            yield checks_by_index.pop(index)
    if parts:
        yield check_after(parts, None, program, next(names))


def last_writer(bsyms: Sequence[BoundSymbol], index: int) -> int:
    """Return the index of the last bound symbol in an executor's function that writes to a result of `bsyms[index]`."""
    first, last = bsyms[index], index
    for number, bsym in enumerate(bsyms[index + 1 :], start=index + 1):
        if bsym.executor != first.executor or bsym.source != first.source:
            break
        last = number if {proxy.name for proxy in first.defines}.intersection(bsym.mutates) else last
    return last


def with_check(bsym: BoundSymbol, reference: tuple[BoundSymbol, ...], name: str) -> BoundSymbol:
    """Return the bound symbol with a check in its place."""
    check = Check(bsym, reference, reason_to_leave_out(bsym, reference), uninitialized_results(bsym, reference))
    return replace(bsym, symbol=Symbol(name, check, bsym.symbol.empties), subsymbols=(bsym,), ordered=True)


def check_after(
    parts: Sequence[BoundSymbol], original: BoundSymbol | None, program: UnclaimedProgram, name: str
) -> BoundSymbol:
    """Return the check that follows `parts`, the bound symbols of an executor's function.

    The check compares with `original`, a bound symbol of the program, if there is one.
    """
    last = parts[-1]
    arguments: tuple[Proxy, ...] = ()
    if original is None:
        check = LaterCheck(last, (), OPERATIONS_UNKNOWN if last.derives is None else DERIVED_BY_PYTORCH)
    elif original.has_effect or not program.written.isdisjoint(names_of(last)):
        check = LaterCheck(last, (original,), HAS_EFFECT)
    else:
        check = LaterCheck(last, (original,), results=last.defines, effect=effect_of(parts, original))
        arguments = (*original.inputs, *last.defines)
    return BoundSymbol(
        Symbol(name, check), arguments, {}, None, source=last.source, module=last.module, ordered=True, executor=EAGER
    )


def effect_of(parts: Iterable[BoundSymbol], original: BoundSymbol) -> str:
    """Return the effect that an executor's function has and the original does not have; empty if there is none."""
    read = {proxy.name for proxy in original.inputs}
    for inner in parts:
        if written := read.intersection(inner.mutates):
            return f"the input `{min(written)}`, which eager PyTorch does not write to, is written to"
        if draws_random_numbers(inner):
            return "more random numbers are drawn than in eager PyTorch"
    return ""


def reference_of(bsym: BoundSymbol, program: UnclaimedProgram) -> tuple[BoundSymbol, ...]:
    """Return the eager bound symbols that a claim replaces: the program's own, or their inner operations.

    If an executor joined bound symbols that other executors had claimed, the references of all of them are returned.
    """
    original = program.originals.get(names_of(bsym)) if bsym.defines else None
    names = {proxy.name for proxy in bsym.inputs}
    reads_enough = original is not None and names.issuperset(proxy.name for proxy in original.inputs)
    if original is not None and reads_enough and set(original.mutates) == set(bsym.mutates):
        return (original,)
    joined = (
        ((inner,) if inner.executor in ("", EAGER) else reference_of(inner, program)) for inner in bsym.subsymbols
    )
    return tuple(itertools.chain.from_iterable(joined))


def reason_to_leave_out(bsym: BoundSymbol, reference: tuple[BoundSymbol, ...]) -> str:
    """Return the reason why a bound symbol cannot be compared with its reference; empty if there is none."""
    if not reference:
        return OPERATIONS_UNKNOWN
    if any(operation.ordered and not draws_random_numbers(operation) for operation in (bsym, *reference)):
        return CHANGES_STATE
    defined = {proxy.name for proxy in bsym.inputs}
    for operation in reference:
        if not defined.issuperset(proxy.name for proxy in operation.inputs):
            return READS_OTHER_VALUES
        defined |= {proxy.name for proxy in operation.defines}
    if not defined.issuperset(proxy.name for proxy in bsym.outputs):
        return OPERATIONS_UNKNOWN
    results = {proxy.name for proxy in bsym.outputs}
    return UNINITIALIZED if results and results <= uninitialized_results(bsym, reference) else ""


def uninitialized_results(bsym: BoundSymbol, reference: tuple[BoundSymbol, ...]) -> frozenset[str]:
    """Return the results that are uninitialized memory, which have no values to compare."""
    written = {name for operation in reference for name in operation.mutates}
    defined = {
        proxy.name
        for operation in reference
        if operation.symbol.short_name.startswith(("empty", "new_empty")) or is_uninitialized_allocation(operation)
        for proxy in operation.defines
    }
    defined |= {
        name for bsym in reference for operation in bsym.at_level("aten") for name in generator_states(operation)
    }
    return frozenset(defined.intersection(proxy.name for proxy in bsym.outputs) - written)


def generator_states(operation: BoundSymbol) -> Iterator[str]:
    """Yield the results of an attention kernel that only its backward reads; without dropout they are never written."""
    schema = schema_of(operation)
    results = operation.output if isinstance(operation.output, tuple | list) else (operation.output,)
    if schema is not None and "scaled_dot_product" in schema.name:
        pairs = zip(schema.returns, results, strict=False)
        yield from (
            proxy.name for declared, proxy in pairs if declared.name in GENERATOR_STATES and isinstance(proxy, Proxy)
        )


def draws_random_numbers(bsym: BoundSymbol) -> bool:
    """Whether a call draws random numbers."""
    tags = (getattr(operation.symbol.target, "tags", ()) for operation in bsym.at_level("aten"))
    return any(torch.Tag.nondeterministic_seeded in tag for tag in tags)


def is_uninitialized_allocation(bsym: BoundSymbol) -> bool:
    """Whether a call is an allocation of PyTorch: `torch.ops.aten.empty_like.default`."""
    return any(word.startswith(("empty", "new_empty")) for word in bsym.symbol.name.split(".")[2:])
