"""Checks of a prologue: statements that refuse a call unless a requirement holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from thunder_core.tracing.ir import listing
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.requirement import Requirement
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol


@dataclass(frozen=True)
class GuardCheck:
    """A statement of a prologue: it refuses a call, with the value of `subject`, unless the `condition` holds.

    `condition` and `subject` are Python expressions. A program has its requirements in the order of their numbers.
    """

    number: int
    requirement: Requirement
    condition: str
    subject: str

    def __str__(self) -> str:
        return f"if not ({self.condition}): refuse({self.number}, {self.subject})"


def run_check(check: GuardCheck) -> NoReturn:
    """Raise `TypeError`: only the text of a prologue runs, not its checks."""
    raise TypeError(f"the check `{check}` runs as text only")


CHECK = Symbol(listing.CHECK, run_check)


@dataclass(frozen=True, eq=False)
class CheckStatement(BoundSymbol):
    """A check as a bound symbol: plain Python, which reads and defines no proxies."""

    @cached_property
    def inputs(self) -> tuple[Proxy, ...]:
        """No proxies."""
        return ()

    @cached_property
    def outputs(self) -> tuple[Proxy, ...]:
        """No proxies."""
        return ()

    @cached_property
    def functions(self) -> tuple[Any, ...]:
        """No traces."""
        return ()


def check_statement(check: GuardCheck) -> BoundSymbol:
    """A check as a bound symbol."""
    return CheckStatement(symbol=CHECK, args=(check,), kwargs={}, output=None)


def check_of(bsym: BoundSymbol) -> GuardCheck | None:
    """The check that a bound symbol is; None for any other statement."""
    return bsym.args[0] if bsym.symbol is CHECK else None


def requirements_of(bsyms: tuple[BoundSymbol, ...]) -> tuple[Requirement, ...]:
    """The requirements of the checks among bound symbols, in the order of the numbers of the checks."""
    checks = [check for bsym in bsyms if (check := check_of(bsym)) is not None]
    return tuple(check.requirement for check in sorted(checks, key=lambda check: check.number))
