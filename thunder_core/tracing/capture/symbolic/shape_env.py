"""PyTorch's shape environment of one recording: its symbols, and the decisions about them.

PyTorch's meta functions compute with expressions of the environment. Each decision about an expression, in the program,
in PyTorch or in a pass of the compiler, adds a guard, which is a constraint of the traces.
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
from thunder_core.tracing.capture.symbolic.probed_floats import FloatValueRead
from thunder_core.tracing.capture.symbolic.size_nodes import Computed, with_remembering_node
from thunder_core.tracing.ir.check import REPORT
from thunder_core.tracing.ir.proxy import NumberProxy
from thunder_core.tracing.ir.sizes import size_for_trace

Origin = SourceLine | str | None  # of a constraint: the user's line, a reason in words, or None for a pass
CONTAINERS = (dict, list, set, OrderedSet)  # container classes in PyTorch's shape environments; each has a `copy`


@dataclass(frozen=True)
class NamedSource(Source):
    """The source of a symbol, of which PyTorch reads only the name."""

    text: str

    @property
    def name(self) -> str:
        """The name of the number in the user's terms."""
        return self.text


def is_equality(expression: sympy.Basic) -> bool:
    """Whether an expression compares two numbers for equality."""
    return isinstance(expression, sympy.Eq | sympy.Ne)


def is_equality_with_one(expression: sympy.Basic) -> bool:
    """Whether an expression compares a number with one for equality."""
    return is_equality(expression) and sympy.Integer(1) in expression.args


class ConstraintAfterPrologue(Bug):
    """A constraint on a size after the prologue was made, so that the prologue does not check it."""

    def __init__(self, condition: object) -> None:
        super().__init__(f"{condition} is decided after the prologue was made, so no guard checks it", fix=REPORT)


class Guards(list[ShapeGuard]):
    """The guards of an environment; a guard after the prologue was made raises `ConstraintAfterPrologue`.

    `require` is called with the condition of each guard, and may raise an error.
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
    """PyTorch's shape environment, which numbers its symbols in order and records the origin of each guard.

    `where()` is the program's line, or the pass that decides now. `numbers` are the proxies of expressions in traces.
    `counts` are the symbols that the prologue computes from tensors, after it has checked all inputs.
    With `decides_ones`, each size of a result is decided to be one or not. `computed` are the results of operations on
    symbols, and `version` counts the changes of what is known about symbols.
    """

    decides_ones = False
    version = 0
    is_counting = False
    _count: torch.SymInt | None = None

    def __init__(self, where: Callable[[], Origin]) -> None:
        self.where = where
        self.numbers: dict[sympy.Basic, NumberProxy] = {}
        self.counts: set[sympy.Basic] = set()
        self.computed = Computed()
        self._withholds_floats = False
        self._answers: Callable[[sympy.Basic], bool] | None = None
        super().__init__(
            specialize_zero_one=False,
            duck_shape=False,
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=False,
        )
        self.guards: list[ShapeGuard] = Guards()

    def call_with_conditions(self, require: Callable[[sympy.Basic], None]) -> None:
        """Call `require` with each condition that is decided from now on."""
        self.guards.require = require  # type: ignore[attr-defined]

    def close(self) -> None:
        """Allow no guards from now on, because the prologue has been made; they raise `ConstraintAfterPrologue`.

        Programs keep the environment, so it drops its results.
        """
        self.guards.closed = True  # type: ignore[attr-defined]
        self.computed.clear()

    def create_symintnode(self, *args: Any, **kwargs: Any) -> Any:
        """Return a symbolic integer for an expression, whose operations compute each result once."""
        return with_remembering_node(super().create_symintnode(*args, **kwargs))

    def proxy_of(self, number: torch.SymInt | torch.SymFloat) -> NumberProxy | int | float:
        """Return the proxy of an expression, named by its symbol if it is a symbol; or its value if it is constant."""
        expression = number.node.expr
        if expression.is_number:
            return int(expression) if isinstance(number, torch.SymInt) else float(expression)
        if expression not in self.numbers:
            compound = sum(not each.is_Symbol for each in self.numbers)
            name = str(expression) if expression.is_Symbol else f"n{compound}"
            self.numbers[expression] = NumberProxy(name, size_for_trace(number))
        return self.numbers[expression]

    def require_nonempty(self, size: torch.SymInt) -> None:
        """Constrain a size to be above zero: PyTorch assumes this of symbols, so it adds no guard itself."""
        expression = size.node.expr
        if expression.is_Symbol and expression.is_positive:
            self.guards.append(ShapeGuard(sympy.Ge(expression, 1, evaluate=False), self.where(), False))  # type: ignore[arg-type]

    def restrict(self, symbol: sympy.Symbol, lower: int | None, upper: int | None) -> None:
        """Restrict a symbol to bounds, so that conditions that follow from them are decided without a guard."""
        self.constrain_symbol_range(symbol, -int_oo if lower is None else lower, int_oo if upper is None else upper)

    @contextmanager
    def deciding_for(self, reason: str) -> Iterator[None]:
        """Record guards with a reason in words during the block."""
        before, self.where = self.where, lambda: reason
        try:
            yield
        finally:
            self.where = before

    def fork(self) -> TraceShapeEnv:
        """Return a copy of the environment with all its decisions; later decisions in the copy do not affect it."""
        fork: TraceShapeEnv = object.__new__(type(self))
        fields = vars(self).items()
        vars(fork).update({name: value.copy() if isinstance(value, CONTAINERS) else value for name, value in fields})
        fork.numbers, fork.where, fork.computed = {}, lambda: None, Computed()
        return fork

    def decided_since(self, origin: TraceShapeEnv) -> tuple[sympy.Basic, ...]:
        """Return the conditions that were decided in this environment since it was forked from another."""
        guards: Any = self.guards[len(origin.guards) :]
        return tuple(guard.expr for guard in guards)

    def require(self, conditions: Iterable[sympy.Basic]) -> None:
        """Constrain the symbols by conditions that hold for their values at tracing."""
        for condition in conditions:
            self.evaluate_expr(condition)

    def simplify_number(self, size: object) -> Any:
        """Return a size or a number of this environment or its fork in a form that can be compared."""
        if not isinstance(size, torch.SymInt | torch.SymFloat):
            return size
        expression: sympy.Basic = self.simplify(size.node.expr)
        if not expression.is_number:
            return expression
        return int(expression) if isinstance(size, torch.SymInt) else float(expression)

    @contextmanager
    def withholding_floats(self) -> Iterator[None]:
        """Raise `FloatValueRead` during the block if C++ code reads the value of a float."""
        before, self._withholds_floats = self._withholds_floats, True
        try:
            yield
        finally:
            self._withholds_floats = before

    @contextmanager
    def answering_for_all_sizes(self, answers: Callable[[sympy.Basic], bool] = is_equality) -> Iterator[None]:
        """Treat two sizes as equal only if they are equal for all values, without a decision, during the block.

        `answers(expression)` returns whether an expression is answered in this way. Other expressions are decided as
        usual.
        """
        before, self._answers = self._answers, answers
        try:
            yield
        finally:
            self._answers = before

    def evaluate_sym_node(self, sym_node: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the value of a symbolic number, and guard it."""
        if self._answers is not None and self._answers(sym_node.expr):
            static_value = self._maybe_evaluate_static(sym_node.expr)
            return isinstance(sym_node.expr, sympy.Ne) if static_value is None else bool(static_value)
        if self._withholds_floats and sym_node.pytype is float and not sym_node.expr.is_number:
            raise FloatValueRead
        return super().evaluate_sym_node(sym_node, *args, **kwargs)

    def evaluate_expr(self, orig_expr: object, *args: Any, **kwargs: Any) -> Any:
        """Return the value of an expression, and guard it.

        Raises `ConstraintAfterPrologue` before the environment caches anything for later queries.
        """
        is_closed = isinstance(self.guards, Guards) and self.guards.closed and not self._suppress_guards_tls()
        if is_closed and isinstance(orig_expr, sympy.Basic) and self._maybe_evaluate_static(orig_expr) is None:
            raise ConstraintAfterPrologue(orig_expr)
        return super().evaluate_expr(orig_expr, *args, **kwargs)

    @contextmanager
    def counting(self, size: torch.SymInt) -> Iterator[None]:
        """During the block, allow an operation whose result size depends on values; `size` is the symbol of this result
        size.
        """
        self.is_counting, self._count = True, size
        try:
            yield
        finally:
            self.is_counting, self._count = False, None

    @property
    def allow_dynamic_output_shape_ops(self) -> bool:
        """Whether operations may have results whose size depends on values: only while their count has a symbol."""
        return self.is_counting

    def create_unbacked_symint(self, source: Source | None = None) -> torch.SymInt:  # noqa: ARG002
        """Return the symbol of the count that an operation needs; refuse other sizes, which no prologue computes."""
        count, self._count = self._count, None
        if count is None:
            raise DynamicOutputShapeException(torch.ops.aten.nonzero.default)
        return count

    def _generate_unique_id(self, source_name: str) -> int:  # noqa: ARG002
        self.unique_ids.add(len(self.unique_ids))
        return len(self.unique_ids) - 1

    def _update_version_counter(self) -> None:
        self.version += 1
        super()._update_version_counter()

    def _get_user_frame(self) -> None:
        """Return no frame: PyTorch only logs it with a new symbol, and would import the exporter to find it."""

    def _get_sloc(self, framework_loc: str | None = None) -> Any:  # noqa: ARG002
        return self.where()


def number_of(leaf: object) -> Any:
    """Return the proxy of a symbolic number in traces, or its value if it is constant; return others unchanged."""
    return leaf.node.shape_env.proxy_of(leaf) if isinstance(leaf, torch.SymInt | torch.SymFloat) else leaf
