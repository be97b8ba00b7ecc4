"""Inductor, PyTorch's compiler: whole regions as fused kernels for the CPU or CUDA, cached as machine code."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, cast

import torch

from thunder_core.backend.fusion.attention import claim_attention
from thunder_core.backend.fusion.conditions import find_unmet_at_hints
from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.machine_code import SHARED_OBJECT, machine_code_of
from thunder_core.backend.fusion.region import Region
from thunder_core.backend.fusion.wrapping import unwrap
from thunder_core.foundation import plugins
from thunder_core.tracing.extension.requirement import CxxCompiler
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.inductor.building.machine import architecture, facts, facts_of_gpu
from thunder_executors.inductor.numbers import formula_of, takes_numbers
from thunder_executors.inductor.precision.divisions import divides_as_pytorch
from thunder_executors.inductor.region_cache import BUILD, BUILD_FOR_GPU, load_or_build
from thunder_executors.inductor.value_checks import is_checked, name_of

DTYPES = frozenset(
    {
        torch.float64, torch.float32, torch.bfloat16, torch.float16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    }
)  # fmt: skip
IMAGES_OF = "thunder_executors.inductor.launch:images_of"  # imports Triton, which a machine without a GPU may lack
FP8 = torch.float8_e4m3fn
FP8_CAPABILITY = 89  # the lowest compute capability of GPUs that convert numbers to E4M3 (Ada)
CPU = torch.device("cpu")
# An operation whose meta kernel refuses dtypes that its CPU kernel accepts. Inductor runs meta kernels, so PyTorch
# computes the operation on the CPU.
GROUPED_MM = torch.ops.aten._grouped_mm.default
AS_STRIDED = tuple(
    getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)
# Operations that Inductor computes differently from PyTorch. Its decomposition of `multilabel_margin_loss` also counts
# labels after the first -1, which ends a row. Inductor measures the offset of `as_strided` from the tensor's first
# element, not from the start of the storage.
# `tests/executors/inductor/test_known_faults.py` shows when an operation may be removed from this set.
MISCOMPILED = frozenset({torch.ops.aten.multilabel_margin_loss_forward.default, *AS_STRIDED})


@cache
def saturates_fp8() -> bool:
    """Whether PyTorch rounds large numbers to the largest 8-bit float, as Triton does; PyTorch 2.11 returns NaN."""
    return bool(torch.tensor(1e4).to(FP8).float().isfinite())


def rounds_to_fp8(devices: Set[torch.device]) -> bool:
    """Whether kernels for a GPU round numbers to 8-bit floats as PyTorch does."""
    if {device.type for device in devices} != {"cuda"} or not saturates_fp8():
        return False
    return all(int(architecture(device).removeprefix("sm_") or 0) >= FP8_CAPABILITY for device in devices)


def is_conversion_or_thunder_operator(operation: BoundSymbol) -> bool:
    """Whether an operation converts dtypes, or is an operator of Thunder, which a region calls as in eager PyTorch."""
    name = operation.symbol.name
    return name.startswith(("torch.ops.thunder.", "torch.ops.aten._to_copy"))


def is_any_of_bytes(operation: BoundSymbol) -> bool:
    """Whether an operation is `any` of uint8 numbers, whose result is uint8 in PyTorch, and bool in Inductor."""
    return name_of(operation) == "any" and any(proxy.dtype is torch.uint8 for proxy in operation.tensors)


@dataclass(frozen=True)
class Inductor(FusionExecutor):
    """Fuses operations on dense tensors of the usual dtypes, on the CPU or on one GPU."""

    symbolic_sizes: ClassVar[bool] = True  # regions may have symbolic sizes
    name: str = "inductor"
    updates: bool = True  # a region may write a result into an input that nothing reads later

    @property
    def claims(self) -> str:
        """A description of the regions that the executor claims."""
        return "regions on the CPU, as C++ kernels, and on CUDA, as Triton kernels; equal regions are compiled once"

    def missing(self) -> str | None:
        """Return the reason why no C++ compiler works; None if one works, or if there is a GPU."""
        return None if torch.cuda.is_available() else self.missing_on(CPU)

    def missing_on(self, device: torch.device) -> str | None:
        """Return the reason why no C++ compiler works if the device is the CPU; None if one works."""
        return CxxCompiler().missing() if device.type == "cpu" else None

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return the reason why Triton, which compiles kernels for a GPU, cannot be used; None if it can."""
        return None if plugins.is_installed("triton") else 'needs triton: pip install "thunder-optimize[triton]"'

    def fuses(self, bsym: BoundSymbol) -> bool:
        """Whether Inductor supports a bound symbol's devices, dtypes, numbers and value checks as PyTorch does."""
        tensors = [
            p
            for operation in bsym.operations
            for p in (*operation.inputs, *operation.outputs)
            if isinstance(p, TensorProxy)
        ]
        devices = {proxy.device for proxy in tensors}
        with_numbers = [operation for operation in bsym.operations if takes_numbers(operation)]
        if with_numbers and not all(
            formula_of(operation) is not None and devices == {CPU} for operation in with_numbers
        ):
            return False
        if len(devices) > 1 or any(proxy.dtype not in (*DTYPES, FP8) for proxy in tensors):
            return False
        if any(proxy.dtype == FP8 for proxy in tensors) and not (
            rounds_to_fp8(devices) and all(map(is_conversion_or_thunder_operator, bsym.operations))
        ):
            return False
        if devices == {CPU} and any(operation.symbol.target is GROUPED_MM for operation in bsym.operations):
            return False
        if not all(map(is_checked, bsym.operations)) or any(
            operation.symbol.target in MISCOMPILED for operation in bsym.operations
        ):
            return False
        if not all(map(divides_as_pytorch, bsym.operations)) or any(map(is_any_of_bytes, bsym.operations)):
            return False
        kinds = {device.type for device in devices}
        return kinds <= {"cpu"} or (kinds == {"cuda"} and plugins.is_installed("triton") and bool(architecture()))

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with regions; flex attentions become regions first, if all of them are on the CPU."""
        return super().claim_all(claim_attention(trace, self) if has_only_cpu_attention(trace) else trace)

    def kernels_in_regions(self, trace: Trace) -> frozenset[bytes]:
        """Return the machine code of the kernels for a GPU within the executor's regions."""
        codes = (
            machine_code_of(bsym.symbol.target) for bsym in unwrap(trace.bound_symbols) if bsym.executor == self.name
        )
        libraries = {code.library for code in codes if code is not None}
        on_gpu = [library for library in libraries if not library.startswith(SHARED_OBJECT)]
        if not on_gpu:
            return frozenset()
        images_of = cast("Callable[[bytes], Iterable[tuple[str, bytes]]]", plugins.import_object(IMAGES_OF))
        return frozenset(image for library in on_gpu for _, image in images_of(library))

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Return kernels from the cache, or from Inductor and the compiler of the device."""
        on_cpu = [region for region in regions if not is_on_gpu(region)]
        by_gpu: dict[torch.device, list[Region]] = {}
        for region in filter(is_on_gpu, regions):
            by_gpu.setdefault(region.device, []).append(region)
        compiled: dict[Region, Fused | Refusal] = {}
        if on_cpu:
            compiled |= zip(on_cpu, compile_for_sizes(on_cpu, facts(), BUILD), strict=True)
        for device, on_gpu in by_gpu.items():
            machine = facts_of_gpu(f"triton {importlib.metadata.version('triton')}", device)
            compiled |= zip(on_gpu, compile_for_sizes(on_gpu, machine, BUILD_FOR_GPU), strict=True)
        return [compiled[region] for region in regions]


def has_only_cpu_attention(trace: Trace) -> bool:
    """Whether a trace has flex attention, and all of it is on the CPU."""
    return bool(trace.attentions) and all(attention.query.device == CPU for attention in trace.attentions.values())


def compile_for_sizes(regions: Sequence[Region], machine: Mapping[str, str], builder: str) -> list[Fused | Refusal]:
    """Return the kernels of regions. If a region's cached kernels are for other sizes, return kernels for its sizes.

    `builder` is the `module:function` that builds kernels.
    """
    compiled = load_or_build(regions, machine, builder)
    for index, (region, result) in enumerate(zip(regions, compiled, strict=True)):
        if isinstance(result, Fused) and find_unmet_at_hints(result.conditions, region.symbols):
            sizes = ", ".join(str(hint_of(proxy.value)) for proxy in region.symbols)
            compiled[index : index + 1] = load_or_build([region], {**machine, "sizes": sizes}, builder)
    return compiled


def is_on_gpu(region: Region) -> bool:
    """Whether a region's tensors are on CUDA."""
    return any(proxy.device.type == "cuda" for proxy in (*region.inputs, *region.outputs))


EXECUTOR = Inductor()
