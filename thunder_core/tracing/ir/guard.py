"""The checks of a prologue: statements that refuse a call unless a requirement (a guard or constraint) is met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.tracing.ir import listing
from thunder_core.tracing.ir.literal import Code
from thunder_core.tracing.ir.requirement import Requirement
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol


@with_quick_init
@dataclass(frozen=True, kw_only=True)
class GuardCheck(Code):
    """A statement of a prologue that refuses a call unless its code, a condition, is true; the refusal has `subject`.

    `subject` is a Python expression in variables that the condition reads, too. `number` is unique in the prologue, and
    orders its requirements.
    """

    number: int
    requirement: Requirement
    subject: str

    def __str__(self) -> str:
        return f"if not ({self.text}): refuse({self.number}, {self.subject})"


def run_check(check: GuardCheck) -> NoReturn:
    """Raise `TypeError`, because a prologue runs as printed Python and not by calling its bound symbols."""
    raise TypeError(f"the check `{check}` can only run as a line of the printed prologue")


CHECK = Symbol(listing.CHECK, run_check)


def check_statement(check: GuardCheck) -> BoundSymbol:
    """Return the bound symbol of a check, as a statement of the prologue's trace."""
    return BoundSymbol(symbol=CHECK, args=(check,), kwargs={}, output=None)


def check_of(bsym: BoundSymbol) -> GuardCheck | None:
    """Return the check of a bound symbol, or None for any other bound symbol."""
    return bsym.args[0] if bsym.symbol is CHECK else None


def requirements_of(bsyms: tuple[BoundSymbol, ...]) -> tuple[Requirement, ...]:
    """Return the requirements of the checks among bound symbols, ordered by the numbers of the checks."""
    checks = [check for bsym in bsyms if (check := check_of(bsym)) is not None]
    return tuple(check.requirement for check in sorted(checks, key=lambda check: check.number))
