"""Inductor, PyTorch's compiler: whole regions as fused kernels for the CPU, kept as machine code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from thunder_core import plugins
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.lower.fusion import Fused, FusionExecutor, Refusal
from thunder_core.lower.region import Region, operations_of

DTYPES = frozenset(
    {
        torch.float64, torch.float32, torch.bfloat16, torch.float16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip
BUILD = "thunder_executors.inductor.build:build"  # imported when it is needed: Inductor takes seconds to import
Build = Callable[[Sequence[Region]], Sequence[Fused | Refusal]]
COMPILERS = ("g++", "clang++")


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
        if any(map(shutil.which, COMPILERS)):
            return None
        return f"no C++ compiler: neither {' nor '.join(COMPILERS)} is on PATH (Debian: apt install g++)"

    def fuses(self, bsym: BoundSymbol) -> bool:
        """Lines whose tensors all lie on the CPU, in dtypes that Inductor writes kernels for."""
        tensors = [p for one in operations_of(bsym) for p in (*one.inputs, *one.outputs) if isinstance(p, TensorProxy)]
        return all(proxy.device.type == "cpu" and proxy.dtype in DTYPES for proxy in tensors)

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Kernels from the cache, or from Inductor and the C++ compiler."""
        build: Build = plugins.imported(BUILD)  # type: ignore[assignment]
        return build(regions)


EXECUTOR = Inductor()
