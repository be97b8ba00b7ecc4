"""The instruction sets of this machine's processor, and how it computes products of narrow numbers, in words."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import ThunderError
from thunder_core.tracing.extension.processor import processor_name
from thunder_core.tracing.extension.requirement import Processor, instruction_sets
from thunder_core.workflow.pipeline.request.narrow_dtypes import INSTRUCTIONS, WIDENING

# The instruction sets that are reported, with their flags in Linux.
INSTRUCTION_SETS: Mapping[str, frozenset[str]] = {
    "AVX2": frozenset({"avx2"}),
    "AVX-512": frozenset({"avx512f"}),
    "VNNI": frozenset({"avx512_vnni", "avx_vnni"}),
    "AMX": frozenset({"amx_tile"}),
}
# The instructions that multiply narrow numbers.
MULTIPLIES: Mapping[str, Processor] = {
    **INSTRUCTIONS,
    "int8": Processor(("avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "asimddp")),
}
NATIVE, WIDENED, CONVERTED = "native", f"widened in registers by {WIDENING}", "converted (slow)"


def capability_in_words() -> str:
    """Return the processor's name, its instruction sets, and the vectors that PyTorch's kernels use."""
    available = [name for name, flags in INSTRUCTION_SETS.items() if flags & instruction_sets()]
    listed = ", ".join(available) or f"none of {', '.join(INSTRUCTION_SETS)}"
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{processor_name()}: {listed} (PyTorch uses {vectors})"


def dtypes_by_way(problem_of_widening: str | None) -> dict[str, list[str]]:
    """Return the narrow dtypes by the way in which products are computed: native, widened or converted."""
    other = WIDENED if problem_of_widening is None else CONVERTED
    dtypes: dict[str, list[str]] = {}
    for dtype, processor in MULTIPLIES.items():
        dtypes.setdefault(NATIVE if processor.missing() is None else other, []).append(dtype)
    return dtypes


def problem_of_widening() -> str | None:
    """Return the reason why this machine cannot run the executor that widens narrow numbers; None if it can."""
    try:
        executor: Executor = plugins.load("executors", WIDENING).EXECUTOR
        return executor.missing()
    except (ThunderError, ImportError, OSError) as error:
        return str(error)
