"""The names of tensors and of symbolic sizes in the source of a region that calls a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from thunder_core.backend.fusion.region import RegionOccurrence
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import text_of


@dataclass(frozen=True)
class RegionNames:
    """The names of a region's tensors and symbols in its source, in the order of the region's arguments."""

    tensors: Mapping[str, str]
    symbols: Mapping[Any, str]

    @classmethod
    def of(cls, occurrence: RegionOccurrence, operands: Mapping[str, TensorProxy | None] | None = None) -> RegionNames:
        """Return the names of a region: tensors are named as in `operands`, or `t0`, `t1`, ...; symbols `s0`, ..."""
        if operands is None:
            tensors = {proxy.name: f"t{index}" for index, proxy in enumerate(occurrence.inputs)}
        else:
            named = {proxy.name: name for name, proxy in operands.items() if proxy is not None}
            tensors = {proxy.name: named[proxy.name] for proxy in occurrence.inputs}
        symbols = {proxy.value.node.expr: f"s{index}" for index, proxy in enumerate(occurrence.region.symbols)}
        return cls(tensors, symbols)

    @property
    def arguments(self) -> str:
        """All names, separated by commas."""
        return ", ".join((*self.tensors.values(), *self.symbols.values()))

    def tensor(self, proxy: TensorProxy | None) -> str:
        """Return the name of a tensor; the string "None" for None."""
        return "None" if proxy is None else self.tensors[proxy.name]

    def size(self, size: Any) -> str:
        """Return an integer, a symbolic integer or an expression as source."""
        return text_of(size.node.expr if isinstance(size, torch.SymInt) else sympy.sympify(size), self.symbols)

    def sizes(self, sizes: Iterable[Any]) -> str:
        """Return a tuple of sizes as source."""
        return f"({''.join(f'{self.size(size)}, ' for size in sizes)})"
