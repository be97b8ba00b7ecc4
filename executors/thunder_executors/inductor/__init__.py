"""Inductor, PyTorch's compiler: whole regions as fused kernels for the CPU or CUDA, cached as machine code."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thunder_core.backend.fusion.attention import claim_attention
from thunder_core.backend.fusion.conditions import unmet_at_hints
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.region import Region
from thunder_core.foundation import plugins
from thunder_core.tracing.extension.requirement import CxxCompiler
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor.building.machine import architecture, facts, facts_of_gpu
from thunder_executors.inductor.keep import BUILD, BUILD_FOR_GPU, from_cache
from thunder_executors.inductor.numbers import formula_of, takes_numbers
from thunder_executors.inductor.value_checks import is_checked

DTYPES = frozenset(
    {
        torch.float64, torch.float32, torch.bfloat16, torch.float16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip
CPU = torch.device("cpu")
# The operation whose metadata PyTorch refuses for dtypes that its own kernel takes on the CPU, which Inductor calls.
GROUPED = torch.ops.aten._grouped_mm.default
# What Inductor computes otherwise than PyTorch: its decomposition counts labels that are behind the end of the list,
# and places that are counted from the beginning of a memory it counts from the tensor's first element.
# `tests/executors/inductor/test_known_faults.py` says when an operation may return.
OF_PLACES = tuple(
    getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
WRONG = frozenset({torch.ops.aten.multilabel_margin_loss_forward.default, *OF_PLACES})
SYMBOLIC_ON_GPU = Refusal(
    "on CUDA it supports only constant sizes, but the sizes of the program are symbolic", lasting=True, by_sizes=True
)


@dataclass(frozen=True)
class Inductor(FusionExecutor):
    """Fuses operations on dense tensors of the usual dtypes, on the CPU or on one GPU."""

    symbolic_sizes: ClassVar[bool] = True
    name: str = "inductor"
    updates: bool = True

    @property
    def claims(self) -> str:
        """Regions on the CPU and on CUDA."""
        return "regions on the CPU, as C++ kernels, and on CUDA, as Triton's; equal regions are compiled once"

    def missing(self) -> str | None:
        """A C++ compiler that compiles, where there is neither one nor a GPU."""
        return None if torch.cuda.is_available() else self.missing_on(CPU)

    def missing_on(self, device: torch.device) -> str | None:
        """On the CPU a C++ compiler that compiles."""
        return CxxCompiler().missing() if device.type == "cpu" else None

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Triton, which compiles for a GPU."""
        return None if plugins.installed("triton") else 'needs triton: pip install "thunder-optimize[triton]"'

    def fuses(self, bsym: BoundSymbol) -> bool:
        """Whether all tensors of a bound symbol lie on the CPU or one GPU, in dtypes that Inductor has kernels for."""
        tensors = [p for one in bsym.operations for p in (*one.inputs, *one.outputs) if isinstance(p, TensorProxy)]
        devices = {proxy.device for proxy in tensors}
        numbers = [one for one in bsym.operations if takes_numbers(one)]
        if numbers and not all(formula_of(one) is not None and devices == {CPU} for one in numbers):
            return False
        if len(devices) > 1 or any(proxy.dtype not in DTYPES for proxy in tensors):
            return False
        if devices == {CPU} and any(one.symbol.target is GROUPED for one in bsym.operations):
            return False
        if not all(map(is_checked, bsym.operations)) or any(one.symbol.target in WRONG for one in bsym.operations):
            return False
        kinds = {device.type for device in devices}
        return kinds <= {"cpu"} or (kinds == {"cuda"} and plugins.installed("triton") and bool(architecture()))

    def claim_all(self, trace: Trace) -> Trace:
        """The trace with flex attention on the CPU as a kernel of its own, and the regions of the rest."""
        return super().claim_all(claim_attention(trace, self) if _is_on_cpu(trace) else trace)

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Kernels from the cache, or from Inductor and the compiler of the device."""
        on_gpu = [region for region in regions if is_on_gpu(region) and not region.symbols]
        on_cpu = [region for region in regions if not is_on_gpu(region)]
        found: dict[Region, Fused | Refusal] = dict.fromkeys(regions, SYMBOLIC_ON_GPU)
        found |= zip(on_cpu, _on_cpu(on_cpu) if on_cpu else [], strict=True)
        if on_gpu:
            machine = facts_of_gpu(f"triton {importlib.metadata.version('triton')}")
            found |= zip(on_gpu, from_cache(on_gpu, machine, BUILD_FOR_GPU), strict=True)
        return [found[region] for region in regions]


def _is_on_cpu(trace: Trace) -> bool:
    """Whether there is flex attention in a trace, all of it on the CPU."""
    return bool(trace.attentions) and all(one.query.device == CPU for one in trace.attentions.values())


def _on_cpu(regions: Sequence[Region]) -> list[Fused | Refusal]:
    """Kernels for the CPU; where those of a region are for other sizes than it has, others that are made for these."""
    found = from_cache(regions, facts(), BUILD)
    for place, (region, result) in enumerate(zip(regions, found, strict=True)):
        if isinstance(result, Fused) and unmet_at_hints(result.conditions, region.symbols):
            sizes = ", ".join(str(hint_of(proxy.value)) for proxy in region.symbols)
            found[place : place + 1] = from_cache([region], {**facts(), "sizes": sizes}, BUILD)
    return found


def is_on_gpu(region: Region) -> bool:
    """Whether a region's tensors lie on CUDA."""
    return any(proxy.device.type == "cuda" for proxy in (*region.inputs, *region.outputs))


EXECUTOR = Inductor()
