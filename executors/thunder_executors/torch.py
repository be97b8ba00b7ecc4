"""Eager PyTorch as an executor: runs any bound symbol as the user wrote it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from thunder_core.backend.claiming.executor import Executor
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class Torch(Executor):
    """Calls PyTorch's own functions; PyTorch's autograd records their derivatives as usual."""

    symbolic_sizes: ClassVar[bool] = True
    name: str = "torch"

    @property
    def claims(self) -> str:
        """The operations that the executor claims: all."""
        return "every operation, as the program wrote it"

    def claim(self, bsym: BoundSymbol) -> BoundSymbol:
        """Claim the bound symbol unchanged."""
        return replace(bsym, executor=self.name)


EXECUTOR = Torch()
