"""Inductor, PyTorch's compiler: whole regions as fused kernels for the CPU, kept as machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.lower.fusion import Fused, FusionExecutor, Refusal
from thunder_core.lower.region import Region, operations_of
from thunder_executors.inductor.keep import from_cache
from thunder_executors.inductor.machine import compiler, compiler_name

DTYPES = frozenset(
    {
        torch.float64, torch.float32, torch.bfloat16, torch.float16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Inductor(FusionExecutor):
    """Fuses what lies on the CPU in dense tensors of the usual dtypes."""

    name: str = "inductor"

    @property
    def claims(self) -> str:
        """Regions on the CPU."""
        return "regions of operations on the CPU, fused into C++ kernels; equal regions are compiled once"

    def missing(self) -> str | None:
        """A C++ compiler, where there is none."""
        if compiler(compiler_name()):
            return None
        return f"no C++ compiler: {compiler_name()} does not run (Debian: apt install g++; CXX names another one)"

    def fuses(self, bsym: BoundSymbol) -> bool:
        """Lines whose tensors all lie on the CPU, in dtypes that Inductor writes kernels for."""
        tensors = [p for one in operations_of(bsym) for p in (*one.inputs, *one.outputs) if isinstance(p, TensorProxy)]
        return all(proxy.device.type == "cpu" and proxy.dtype in DTYPES for proxy in tensors)

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Kernels from the cache, or from Inductor and the C++ compiler."""
        return from_cache(regions) if regions else []


EXECUTOR = Inductor()
