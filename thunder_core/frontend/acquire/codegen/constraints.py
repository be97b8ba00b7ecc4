"""Constraints: conditions on the symbols of a program under which its traces are valid, checked by the prologue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.solve import mirror_rel_op
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from thunder_core.tracing.capture.symbolic.shape_env import Origin
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.torch_facts.quiet_attempts import quiet_attempt
from thunder_core.tracing.ir.guard import GuardCheck, check_statement, requirements_of
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.tracing.ir.sizes import symbols_of, text_of
from thunder_core.tracing.ir.trace import Trace, with_number_inputs

MADE_BY = "check constraints"
MIRRORED = {sympy.Ge: sympy.Le, sympy.Gt: sympy.Lt}
MAX_TRIED_VALUES = 1 << 14  # maximum number of values of a symbol to try a condition with
GIVEN_RANGE = "the given range"  # the origin of a constraint that only restates the range that the user gave


@dataclass(frozen=True)
class Constraint:
    """A condition on symbols and its origin: the user's line, words, or None for a pass of the compiler."""

    condition: sympy.Basic
    where: Origin


@dataclass
class IntegerRange:
    """The possible values of a symbol: integers from `lower` to `upper` (None: no bound), except `excluded` integers.

    `where` maps "lower" and "upper" to the first origin of each bound, and `excluded` maps each excluded integer to its
    first origin. If `is_given` is set, the initial bounds are a range that the user gave.
    """

    symbol: sympy.Symbol
    lower: int | None
    upper: int | None = None
    is_given: bool = False
    excluded: dict[int, Origin] = field(default_factory=dict)
    where: dict[str, Origin] = field(default_factory=dict)

    def restrict(self, constraint: Constraint) -> bool:
        """Narrow the range by a constraint; return False for a constraint that is not linear in this symbol alone."""
        relation = constraint.condition
        if not isinstance(relation, sympy.core.relational.Relational):
            return False
        difference = sympy.expand(relation.lhs - relation.rhs)
        factor = difference.coeff(self.symbol)
        rest = difference - factor * self.symbol
        if not factor.is_Integer or not rest.is_Integer or not factor:
            return False
        kind: Any = type(relation) if factor > 0 else mirror_rel_op(type(relation))
        self._restrict_to(kind, -sympy.Rational(rest, factor), constraint.where)
        return True

    def _restrict_to(self, kind: type, value: sympy.Rational, where: Origin) -> None:
        """Narrow the range to the integers that have a relation, such as `sympy.Ge`, to a value."""
        floor, ceiling = int(sympy.floor(value)), int(sympy.ceiling(value))
        if kind is sympy.Ne:
            if value.is_Integer:
                self.excluded.setdefault(int(value), where)
            return
        if kind in (sympy.Ge, sympy.Gt, sympy.Eq):
            lower = ceiling if kind is not sympy.Gt else floor + 1
            if self.lower is None or lower > self.lower:
                self.lower, self.where["lower"] = lower, where
        if kind in (sympy.Le, sympy.Lt, sympy.Eq):
            upper = floor if kind is not sympy.Lt else ceiling - 1
            if self.upper is None or upper < self.upper:
                self.upper, self.where["upper"] = upper, where

    def tighten(self) -> None:
        """Move bounds inward past excluded values, and drop excluded values outside of the bounds."""
        while self.lower in self.excluded:
            self.where["lower"], self.lower = self.excluded.pop(self.lower), self.lower + 1
        while self.upper in self.excluded:
            self.where["upper"], self.upper = self.excluded.pop(self.upper), self.upper - 1
        self.excluded = {value: where for value, where in self.excluded.items() if self.has(value)}

    def has(self, value: int) -> bool:
        """Whether a value is within the bounds."""
        return (self.lower is None or value >= self.lower) and (self.upper is None or value <= self.upper)

    @property
    def range(self) -> ValueRanges[Any]:
        """The bounds as `ValueRanges` of PyTorch."""
        if not self.symbol.is_integer:
            return ValueRanges(-sympy.oo, sympy.oo)
        return ValueRanges(-int_oo if self.lower is None else self.lower, int_oo if self.upper is None else self.upper)

    def texts(self, name: str = "") -> Iterator[tuple[str, Origin]]:
        """Yield the conditions as Python expressions of the symbol or the given name, each with its first origin."""
        name, lower = name or str(self.symbol), self.lower
        where: Origin = self.where.get("lower") or self.where.get("upper")
        if self.is_given and not self.where:
            where = GIVEN_RANGE
        if lower is not None and lower == self.upper:
            yield f"{name} == {lower}", where
        elif lower is not None or self.upper is not None:
            low, high = ("" if lower is None else f"{lower} <= "), ("" if self.upper is None else f" <= {self.upper}")
            yield f"{low}{name}{high}", where
        yield from ((f"{name} != {value}", where) for value, where in self.excluded.items())


@dataclass(frozen=True)
class MergedConstraints:
    """The merged constraints of a recording.

    `intervals` maps each symbol to its range. `other_constraints` maps the text of each other constraint to the
    constraint, except constraints that follow from the ranges.
    """

    intervals: dict[sympy.Symbol, IntegerRange]
    other_constraints: dict[str, Constraint]


def merged_constraints(sizes: SymbolicSizes) -> MergedConstraints:
    """Return the merged constraints of a recording."""
    intervals = {
        symbol: IntegerRange(symbol, *sizes.range_of(symbol), is_given=sizes.has_given_range(symbol))
        for symbol in sizes.sources
    }
    other_constraints: dict[str, Constraint] = {}
    for guard in sizes.guards():
        constraint = Constraint(*guard)
        symbols = symbols_of(constraint.condition)
        alone = len(symbols) == 1 and symbols[0].is_integer
        if not alone or not intervals[symbols[0]].restrict(constraint):
            balanced = replace(constraint, condition=with_positive_terms(constraint.condition))
            other_constraints.setdefault(text_of(balanced.condition), balanced)
    for interval in intervals.values():
        interval.tighten()
    ranges = {symbol: interval.range for symbol, interval in intervals.items()}
    remaining = {
        text: constraint
        for text, constraint in other_constraints.items()
        if not is_implied(constraint.condition, ranges) and not holds_for_all_values(constraint.condition, intervals)
    }
    return MergedConstraints(intervals, with_equalities(remaining))


def stated_constraints(sizes: SymbolicSizes) -> Iterator[tuple[StatedConstraint, Sequence[sympy.Symbol]]]:
    """Yield the constraints of a recording as programs store them, each with its symbols."""
    merged = merged_constraints(sizes)
    for symbol, interval in merged.intervals.items():
        integers = tuple(bound for bound in (interval.lower, interval.upper, *interval.excluded) if bound is not None)
        path = str(sizes.sources[symbol])
        for text, where in interval.texts():
            yield StatedConstraint(path, text, "", origin_text(where), str(symbol), integers), [symbol]
    for text, constraint in merged.other_constraints.items():
        condition, symbols = constraint.condition, symbols_of(constraint.condition)
        path, *others = (str(sizes.sources[symbol]) for symbol in symbols)
        names = ", ".join(f"{symbol} = {other}" for symbol, other in zip(symbols[1:], others, strict=True))
        integers = tuple(sorted(abs(int(atom)) for atom in condition.atoms(sympy.Integer)))
        equals = others[0] if isinstance(condition, sympy.Eq) and all(side.is_Symbol for side in condition.args) else ""
        words = (with_sign(text, condition), names, origin_text(constraint.where))
        yield StatedConstraint(path, *words, str(symbols[0]), integers, equals), symbols


def with_sign(text: str, condition: sympy.Basic) -> str:
    """Return the text of a condition. If a float must be zero, the text also requires a positive sign."""
    requires_zero = isinstance(condition, sympy.Eq) and condition.rhs.is_zero and not condition.lhs.is_integer
    return f"{text} and math.copysign(1, {text_of(condition.lhs)}) > 0" if requires_zero else text


def with_positive_terms(condition: sympy.Basic) -> sympy.Basic:
    """Return a relation of integers without subtractions: `s0 - s1 <= 0` becomes `s0 <= s1`.

    The smaller side of an inequality is on the left. All other conditions are returned unchanged, because the result of
    float arithmetic may differ if a term moves to the other side.
    """
    integers = all(symbol.is_integer for symbol in condition.free_symbols)
    if not isinstance(condition, sympy.core.relational.Relational) or not integers or not condition.lhs.is_integer:
        return condition
    terms = sympy.Add.make_args(condition.lhs - condition.rhs)
    negative = [term for term in terms if term.could_extract_minus_sign()]
    left = sympy.Add(*(term for term in terms if term not in negative))
    right = sympy.Add(*(-term for term in negative))
    if type(condition) in MIRRORED:
        return MIRRORED[type(condition)](right, left, evaluate=False)
    return type(condition)(left, right, evaluate=False)


def with_equalities(constraints: Mapping[str, Constraint]) -> dict[str, Constraint]:
    """Return the constraints by their texts, with `a == b` in place of the pair `a <= b` and `b <= a`."""
    merged: dict[str, Constraint] = {}
    for text, constraint in constraints.items():
        condition = constraint.condition
        is_bound = isinstance(condition, sympy.Le)
        mirrored = text_of(sympy.Le(condition.rhs, condition.lhs, evaluate=False)) if is_bound else ""
        if mirrored in merged:
            equal = replace(merged.pop(mirrored), condition=sympy.Eq(condition.rhs, condition.lhs, evaluate=False))
            merged[text_of(equal.condition)] = equal
        else:
            merged[text] = constraint
    return merged


def is_implied(condition: sympy.Basic, ranges: dict[sympy.Symbol, ValueRanges[Any]]) -> bool:
    """Whether a condition holds for all values within the ranges, as PyTorch's bounds of its expressions prove."""
    try:
        bounds = bound_sympy(condition, ranges)
    except Exception:  # PyTorch cannot compute bounds of the condition
        return False
    return bool(bounds.is_singleton() and bounds.lower == sympy.true)


def holds_for_all_values(condition: sympy.Basic, intervals: Mapping[sympy.Symbol, IntegerRange]) -> bool:
    """Whether a condition on one symbol holds for each value of its range; False if the range is too large to try."""
    symbols = symbols_of(condition)
    if len(symbols) != 1:
        return False
    interval = intervals[symbols[0]]
    if interval.lower is None or interval.upper is None or interval.upper - interval.lower > MAX_TRIED_VALUES:
        return False
    values = (value for value in range(interval.lower, interval.upper + 1) if value not in interval.excluded)
    try:
        with quiet_attempt():
            return all(sympy_interp(PythonReferenceAnalysis, {symbols[0]: value}, condition) for value in values)
    except Exception:  # the condition divides by zero, or has no value
        return False


def with_number_outputs(prologue: Trace, numbers: Iterable[Proxy]) -> Trace:
    """Return the prologue, extended to compute these symbolic numbers and pass them to the computation."""
    values = [Code.of(proxy.value.node.expr) for proxy in numbers if isinstance(proxy, NumberProxy)]
    if not values:
        return prologue
    tensors, *others = prologue.output
    members = (Code(f"*{tensors.text}", tensors.reads),) if isinstance(tensors, Code) else tensors
    imports = prologue.imports | imports_of(value.text for value in values)
    return replace(prologue, output=((*members, *values), *others), imports=imports)


def with_constraint_checks(prologue: Trace, num_count_statements: int, sizes: SymbolicSizes) -> Trace:
    """Return the prologue with a check of each constraint.

    The last `num_count_statements` statements compute counts. They run after the checks of all other constraints.
    """
    end = len(prologue.bound_symbols) - num_count_statements
    bsyms, counting = list(prologue.bound_symbols[:end]), list(prologue.bound_symbols[end:])
    constraints = list(stated_constraints(sizes))
    first = len(requirements_of(prologue.bound_symbols))
    for number, (stated, symbols) in enumerate(constraints, first):
        names = tuple(map(str, symbols))
        subject = names[0] if len(names) == 1 else f"({', '.join(names)})"
        counts = any(sizes.sources[symbol].step == "count" for symbol in symbols)
        reads = tuple(map(Proxy, names))
        check = GuardCheck(stated.condition, reads, number=number, requirement=stated, subject=subject)
        (counting if counts else bsyms).append(check_statement(check))
    imports = prologue.imports | imports_of(stated.condition for stated, _ in constraints)
    return replace(prologue.having([*bsyms, *counting], made_by=MADE_BY), imports=imports)


def imports_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the modules that the expressions use: `math` if an expression rounds, otherwise none."""
    return frozenset({"math"} if any("math." in text for text in texts) else ())


def origin_text(where: Origin) -> str:
    """Return the origin of a constraint in words."""
    if where is None:
        return "needed by the compiled code"
    return where if isinstance(where, str) else f"needed at {where}"


def with_numbers_passed(computation: Trace, prologue: Trace) -> tuple[Trace, Trace]:
    """Return the computation with its symbolic numbers as inputs, and the prologue that passes these numbers."""
    extended = with_number_inputs(computation)
    return extended, with_number_outputs(prologue, extended.inputs[len(computation.inputs) :])
