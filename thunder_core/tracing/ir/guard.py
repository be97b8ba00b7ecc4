"""The checks of a prologue: statements that refuse a call unless a requirement (a guard or constraint) is met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from thunder_core.foundation.quick_objects import ComputedOnce, with_quick_init
from thunder_core.tracing.ir import listing
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.requirement import Requirement
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol


@with_quick_init
@dataclass(frozen=True)
class GuardCheck:
    """A statement of a prologue that refuses a call unless the `condition` is true; the refusal contains `subject`.

    `subject` is a Python expression in variables that the condition reads, too. `number` is unique in the prologue, and
    orders its requirements.
    """

    number: int
    requirement: Requirement
    condition: Code
    subject: str

    def __str__(self) -> str:
        return f"if not ({self.condition.text}): refuse({self.number}, {self.subject})"


def run_check(check: GuardCheck) -> NoReturn:
    """Raise `TypeError`, because a prologue runs as printed Python and not by calling its bound symbols."""
    raise TypeError(f"the check `{check}` can only run as a line of the printed prologue")


CHECK = Symbol(listing.CHECK, run_check)


@with_quick_init
@dataclass(frozen=True, eq=False)
class CheckStatement(BoundSymbol):
    """The bound symbol of a check: a Python statement that defines no proxies."""

    @ComputedOnce
    def inputs(self) -> tuple[Proxy, ...]:
        """The variables that the condition reads."""
        check: GuardCheck = self.args[0]
        return check.condition.reads

    @ComputedOnce
    def outputs(self) -> tuple[Proxy, ...]:
        """An empty tuple: a check defines no proxies."""
        return ()

    @ComputedOnce
    def functions(self) -> tuple[Any, ...]:
        """An empty tuple: a check has no sub-traces."""
        return ()


def check_statement(check: GuardCheck) -> BoundSymbol:
    """Return the bound symbol of a check, as a statement of the prologue's trace."""
    return CheckStatement(symbol=CHECK, args=(check,), kwargs={}, output=None)


def check_of(bsym: BoundSymbol) -> GuardCheck | None:
    """Return the check of a bound symbol, or None for any other bound symbol."""
    return bsym.args[0] if bsym.symbol is CHECK else None


def requirements_of(bsyms: tuple[BoundSymbol, ...]) -> tuple[Requirement, ...]:
    """Return the requirements of the checks among bound symbols, ordered by the numbers of the checks."""
    checks = [check for bsym in bsyms if (check := check_of(bsym)) is not None]
    return tuple(check.requirement for check in sorted(checks, key=lambda check: check.number))
