"""The environment of PyTorch's in which the symbols of one recording live, and what is decided by them.

PyTorch's functions for metadata compute with its expressions. Whatever decides by one, in the program, in PyTorch or in
a pass of the compiler, adds a guard, which is a constraint under which the traces hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._guards import ShapeGuard, Source
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.numbers import int_oo

from thunder_core.foundation.errors import Bug, SourceLine
from thunder_core.tracing.capture.symbolic.probed_floats import FloatAsked
from thunder_core.tracing.ir.check import REPORT
from thunder_core.tracing.ir.proxy import NumberProxy
from thunder_core.tracing.ir.sizes import size_for_trace

Origin = SourceLine | str | None  # of a constraint: the user's line, who needed it in words, or None for a pass
CONTAINERS = (dict, list, set, OrderedSet)  # of PyTorch's environments; each has a `copy`


@dataclass(frozen=True)
class NamedSource(Source):
    """The source of a symbol, which PyTorch asks for its name alone."""

    text: str

    @property
    def name(self) -> str:
        """The name of the number as its user would write it."""
        return self.text


class ConstraintAfterPrologue(Bug):
    """A constraint on a size that arises after the prologue was made, which therefore does not check it."""

    def __init__(self, condition: object) -> None:
        super().__init__(f"{condition} is decided after the prologue was made, so no guard checks it", fix=REPORT)


class Guards(list[ShapeGuard]):
    """The guards of an environment; a guard that comes after they are checked raises `ConstraintAfterPrologue`.

    `require` is called with the condition of each guard, and may raise.
    """

    closed = False
    require: Callable[[sympy.Basic], None] = staticmethod(lambda condition: None)

    def append(self, guard: ShapeGuard) -> None:
        """Add a guard."""
        if self.closed:
            raise ConstraintAfterPrologue(guard.expr)
        super().append(guard)
        self.require(guard.expr)


class TraceShapeEnv(ShapeEnv):
    """PyTorch's environment of symbols, which numbers them in their order and notes who needed a guard.

    `where()` is the program's line, or who decides now; `numbers` are the proxies that traces have for expressions, and
    `counts` the symbols of what the prologue computes from tensors, after it has checked all inputs.
    Where it `decides_ones`, each size that an operation gives is decided to be one or not.
    """

    decides_ones = False
    is_counting = False
    _count: torch.SymInt | None = None

    def __init__(self, where: Callable[[], Origin]) -> None:
        self.where = where
        self.numbers: dict[sympy.Basic, NumberProxy] = {}
        self.counts: set[sympy.Basic] = set()
        self._withholds_floats = False
        self._answers_for_all_sizes = False
        super().__init__(
            specialize_zero_one=False,
            duck_shape=False,
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=False,
        )
        self.guards: list[ShapeGuard] = Guards()

    def call_with_conditions(self, require: Callable[[sympy.Basic], None]) -> None:
        """Call a function with each condition that is decided from now on."""
        self.guards.require = require  # type: ignore[attr-defined]

    def close(self) -> None:
        """Let no guard come from now on, for the prologue has been made; raises `ConstraintAfterPrologue` for one."""
        self.guards.closed = True  # type: ignore[attr-defined]

    def proxy_of(self, number: torch.SymInt | torch.SymFloat) -> NumberProxy | int | float:
        """The proxy of an expression: one for each, named by its symbol where it is one; or the only value it has."""
        expression = number.node.expr
        if expression.is_number:
            return int(expression) if isinstance(number, torch.SymInt) else float(expression)
        if expression not in self.numbers:
            name = str(expression) if expression.is_Symbol else f"n{sum(not one.is_Symbol for one in self.numbers)}"
            self.numbers[expression] = NumberProxy(name, size_for_trace(number))
        return self.numbers[expression]

    def require_nonempty(self, size: torch.SymInt) -> None:
        """Constrain a size to be above zero: PyTorch takes that for granted of symbols, so that it is not asked."""
        expression = size.node.expr
        if expression.is_Symbol and expression.is_positive:
            self.guards.append(ShapeGuard(sympy.Ge(expression, 1, evaluate=False), self.where(), False))  # type: ignore[arg-type]

    def restrict(self, symbol: sympy.Symbol, lower: int | None, upper: int | None) -> None:
        """Let a symbol be within bounds, so that what they imply is decided without a guard."""
        self.constrain_symbol_range(symbol, -int_oo if lower is None else lower, int_oo if upper is None else upper)

    @contextmanager
    def deciding_for(self, who: str) -> Iterator[None]:
        """While this lasts, guards are noted as needed by somebody, in words."""
        before, self.where = self.where, lambda: who
        try:
            yield
        finally:
            self.where = before

    def forked(self) -> TraceShapeEnv:
        """An environment in which all holds that was decided here, while what is decided there is not decided here."""
        fork: TraceShapeEnv = object.__new__(type(self))
        fields = vars(self).items()
        vars(fork).update({name: value.copy() if isinstance(value, CONTAINERS) else value for name, value in fields})
        fork.numbers, fork.where = {}, lambda: None
        return fork

    def decided_since(self, other: TraceShapeEnv) -> tuple[sympy.Basic, ...]:
        """The conditions that were decided in this environment since it was forked from another."""
        guards: Any = self.guards[len(other.guards) :]
        return tuple(guard.expr for guard in guards)

    def require(self, conditions: Iterable[sympy.Basic]) -> None:
        """Constrain the symbols by conditions that hold for the values which they had while tracing."""
        for condition in conditions:
            self.evaluate_expr(condition)

    def simplified(self, size: Any) -> Any:
        """A size or a number of this environment, or one that it was forked from, as something to compare it by."""
        if not isinstance(size, torch.SymInt | torch.SymFloat):
            return size
        expression: sympy.Basic = self.simplify(size.node.expr)
        if not expression.is_number:
            return expression
        return int(expression) if isinstance(size, torch.SymInt) else float(expression)

    @contextmanager
    def withholding_floats(self) -> Iterator[None]:
        """While this lasts, code in C++ that asks for the value of a float gets `FloatAsked` in place of it."""
        before, self._withholds_floats = self._withholds_floats, True
        try:
            yield
        finally:
            self._withholds_floats = before

    @contextmanager
    def answering_for_all_sizes(self) -> Iterator[None]:
        """While this lasts, sizes count as equal only where they are for all values, and nothing is decided by that."""
        before, self._answers_for_all_sizes = self._answers_for_all_sizes, True
        try:
            yield
        finally:
            self._answers_for_all_sizes = before

    def evaluate_sym_node(self, sym_node: Any, *args: Any, **kwargs: Any) -> Any:
        """The value of a symbolic number, which is guarded from now on."""
        if self._answers_for_all_sizes and isinstance(sym_node.expr, sympy.Eq | sympy.Ne):
            known = self._maybe_evaluate_static(sym_node.expr)
            return isinstance(sym_node.expr, sympy.Ne) if known is None else bool(known)
        if self._withholds_floats and sym_node.pytype is float and not sym_node.expr.is_number:
            raise FloatAsked
        return super().evaluate_sym_node(sym_node, *args, **kwargs)

    def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        """The value of an expression, which is guarded from now on.

        Raises `ConstraintAfterPrologue` before anything is taken for granted by which later questions are answered.
        """
        is_closed = isinstance(self.guards, Guards) and self.guards.closed and not self._suppress_guards_tls()
        if is_closed and isinstance(orig_expr, sympy.Basic) and self._maybe_evaluate_static(orig_expr) is None:
            raise ConstraintAfterPrologue(orig_expr)
        return super().evaluate_expr(orig_expr, *args, **kwargs)

    @contextmanager
    def counting(self, size: torch.SymInt) -> Iterator[None]:
        """While this lasts, an operation may have a result with as many elements as values say, which are so many."""
        self.is_counting, self._count = True, size
        try:
            yield
        finally:
            self.is_counting, self._count = False, None

    @property
    def allow_dynamic_output_shape_ops(self) -> bool:
        """Whether operations may have results with as many elements as values say: where their count has a symbol."""
        return self.is_counting

    def create_unbacked_symint(self, source: Source | None = None) -> torch.SymInt:  # noqa: ARG002
        """The symbol of the count that an operation asks for; every other size would be one that nothing computes."""
        count, self._count = self._count, None
        if count is None:
            raise DynamicOutputShapeException(torch.ops.aten.nonzero.default)
        return count

    def _generate_unique_id(self, source_name: str) -> int:  # noqa: ARG002
        self.unique_ids.add(len(self.unique_ids))
        return len(self.unique_ids) - 1

    def _get_sloc(self, framework_loc: str | None = None) -> Any:  # noqa: ARG002
        return self.where()


def number_of(leaf: Any) -> Any:
    """The proxy that stands for a symbolic number in traces, or its value where there is but one; all else as it is."""
    return leaf.node.shape_env.proxy_of(leaf) if isinstance(leaf, torch.SymInt | torch.SymFloat) else leaf
