"""Debugging: compare the results of the other executors with eager PyTorch while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thunder_core.backend.claiming.claim_checks import UnclaimedProgram, with_checks
from thunder_core.backend.claiming.executor import Executor
from thunder_core.tracing.ir.check import check_trace
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace


@dataclass(frozen=True)
class Debug(Executor):
    """Compares the results of the other executors with eager PyTorch at each call, and claims no bound symbols.

    A call takes more than twice as long, and its tensors are copied. The comparisons are defined in
    `thunder_core.backend.claiming.claim_checks`.
    """

    symbolic_sizes: ClassVar[bool] = True
    only_compares: ClassVar[bool] = True
    name: str = "debug"

    @property
    def claims(self) -> str:
        """The operations that the executor claims: none."""
        return "nothing: it compares the results of the other executors with eager PyTorch while they run"

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: the other executors run all bound symbols."""
        return None

    def check_claimed(self, unclaimed: Trace, claimed: Trace) -> Trace:
        """Return the claimed trace with a check in place of each bound symbol that an executor took."""
        bsyms = with_checks(check_trace(claimed).bound_symbols, UnclaimedProgram.of(check_trace(unclaimed)))
        return check_trace(claimed.having(bsyms, made_by="check by debug"))


EXECUTOR = Debug()
