"""Withholding: bound symbols of some modules are withheld from an executor, and left to the other executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from thunder_core.backend.claiming.claim import EAGER
from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.patterns.match import apply_patterns, matched_positions
from thunder_core.backend.patterns.replacement import Replacement
from thunder_core.foundation.options.left_out import covers, patterns_of
from thunder_core.tracing.capture.symbolic.moves import at_hints
from thunder_core.tracing.ir.proxy import environment_of
from thunder_core.tracing.ir.symbol import BACKWARD_OF, BoundSymbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace

WITHHELD = "withheld"  # the executor name of withheld bound symbols while the executor claims
LEFT_OUT = "left out by --without"


def withholding(executors: Iterable[Executor], without: Sequence[str]) -> tuple[Executor, ...]:
    """Return the executors; each executor that `without` excludes from some modules becomes a `WithholdingExecutor`."""
    return tuple(
        WithholdingExecutor(executor, patterns) if (patterns := patterns_of(without, executor.name)) else executor
        for executor in executors
    )


@dataclass(frozen=True, eq=False)
class WithholdingExecutor(Executor):
    """An executor that ignores the bound symbols of some modules: their paths match the patterns.

    The bound symbols that derivatives add for these modules are ignored, too. While the executor claims, the ignored
    bound symbols look claimed. The executor's refusals include the number of ignored bound symbols that it could claim.
    """

    executor: Executor
    patterns: tuple[str, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the executor."""
        return self.executor.name

    @property
    def fuses_regions(self) -> bool:  # type: ignore[override]
        """Whether the executor fuses regions."""
        return self.executor.fuses_regions

    @property
    def symbolic_sizes(self) -> bool:  # type: ignore[override]
        """Whether the executor supports symbolic sizes."""
        return self.executor.symbolic_sizes

    @property
    def replacements(self) -> Sequence[Replacement]:
        """No replacements: the executor's replacements are applied in `claim_all`."""
        return ()

    @property
    def claims(self) -> str:
        """The executor's phrase for its claims, followed by the excluded modules."""
        return f"{self.executor.claims}; not in {', '.join(self.patterns)}"

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """Return the executor's form of a bound symbol; None if the executor does not run the bound symbol."""
        return None if is_within(bsym, self.patterns) else self.executor.claim(bsym)

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with each bound symbol that the executor can run claimed, except in these modules."""
        turn = Turn.of(trace, self._withheld_indices(trace, lambda bsym: not bsym.executor), WITHHELD)
        claimed = apply_patterns(turn.trace, self.name, self.executor.replacements)
        claimed = turn.end(self.executor.claim_all(claimed))
        return with_refused(claimed, self.name, self._count_claimable(turn))

    def check_claimed(self, unclaimed: Trace, claimed: Trace) -> Trace:
        """Return the claimed trace with the executor's checks, except in the modules of the patterns."""
        turn = Turn.of(claimed, self._withheld_indices(claimed, lambda bsym: bool(bsym.executor)), EAGER)
        return turn.end(self.executor.check_claimed(unclaimed, turn.trace))

    def wrap_claimed(self, trace: Trace) -> Trace:
        """Return the claimed trace with the executor's wrappers, except in the modules of the patterns."""
        turn = Turn.of(trace, self._withheld_indices(trace, lambda bsym: bool(bsym.executor)), WITHHELD)
        wrapped = self.executor.wrap_claimed(turn.trace)
        if wrapped is turn.trace:
            return trace
        return with_refused(turn.end(wrapped), self.name, sum(map(self.executor.can_claim, turn.withheld)))

    def _withheld_indices(self, trace: Trace, is_candidate: Callable[[BoundSymbol], bool]) -> frozenset[int]:
        bsyms = enumerate(trace.bound_symbols)
        return frozenset(index for index, bsym in bsyms if is_candidate(bsym) and is_within(bsym, self.patterns))

    def _count_claimable(self, turn: Turn) -> int:
        """Return the number of withheld bound symbols that the executor could have taken, alone or in a match.

        Symbolic sizes are replaced by the sizes seen while tracing, so that no constraint is added.
        """
        trace, indices = turn.original, turn.indices
        matches = matched_positions(trace, self.name, self.executor.replacements) if indices else ()
        matched = {index for positions in matches if positions & indices for index in positions}
        bsyms = trace.bound_symbols
        offered = [index for index in indices - matched if bsyms[index].is_resolved]
        matched |= {index for index in offered if self.executor.can_claim(with_traced_sizes(bsyms[index]))}
        return len(matched)


@dataclass(frozen=True, eq=False)
class Turn:
    """The claiming of a trace by one executor, from which the bound symbols at `indices` are withheld.

    In `trace`, the withheld bound symbols of the `original` trace look claimed.
    """

    original: Trace
    indices: frozenset[int]
    trace: Trace

    @classmethod
    def of(cls, trace: Trace, indices: frozenset[int], name: str) -> Turn:
        """Return the turn in which the bound symbols at these indices look claimed by the named executor."""
        if not indices:
            return cls(trace, indices, trace)
        bsyms = [
            replace(bsym, executor=name) if index in indices else bsym for index, bsym in enumerate(trace.bound_symbols)
        ]
        results = {proxy.name for index in indices for proxy in bsyms[index].defines}
        attentions = {result: attention for result, attention in trace.attentions.items() if result not in results}
        return cls(trace, indices, trace.having(bsyms, made_by=trace.made_by, attentions=attentions))

    @property
    def withheld(self) -> Iterator[BoundSymbol]:
        """The bound symbols that the executor must not claim."""
        return (self.original.bound_symbols[index] for index in sorted(self.indices))

    def end(self, trace: Trace) -> Trace:
        """Return the trace that the executor made, with the withheld bound symbols restored."""
        if not self.indices:
            return trace
        offered, originals = self.trace.bound_symbols, self.original.bound_symbols
        restored = {id(offered[index]): originals[index] for index in self.indices}
        bsyms = (restored.get(id(bsym), bsym) for bsym in trace.bound_symbols)
        return trace.having(bsyms, made_by=trace.made_by, attentions=self.original.attentions)


def is_within(bsym: BoundSymbol, patterns: Sequence[str]) -> bool:
    """Whether a bound symbol, an inner bound symbol or its derivative is in a module that a pattern matches."""
    path = bsym.module.removeprefix(BACKWARD_OF)
    if any(covers(pattern, path) for pattern in patterns):
        return True
    related = bsym.subsymbols if bsym.derives is None else (*bsym.subsymbols, bsym.derives)
    return any(is_within(inner, patterns) for inner in related)


def with_traced_sizes(bsym: BoundSymbol) -> BoundSymbol:
    """Return the bound symbol with the sizes and numbers of the traced call in place of symbols."""
    if environment_of((*bsym.inputs, *bsym.outputs)) is None:
        return bsym
    args, kwargs, output = at_hints((bsym.args, dict(bsym.kwargs), bsym.output))
    parts = tuple(map(with_traced_sizes, bsym.subsymbols))
    return replace(bsym, args=args, kwargs=kwargs, output=output, subsymbols=parts)


def with_refused(trace: Trace, executor: str, count: int) -> Trace:
    """Return the trace with the number of withheld bound symbols among its refusals.

    The executor may claim several times, and each time withholds the same bound symbols, so the largest number is kept.
    """
    own_refusals = [item for item in trace.refused if (item.executor, item.reason) == (executor, LEFT_OUT)]
    most = max([count, *(item.count for item in own_refusals)])
    if not most:
        return trace
    other_refusals = [item for item in trace.refused if item not in own_refusals]
    return replace(trace, refused=(*other_refusals, RefusedOperations(executor, LEFT_OUT, most)))
