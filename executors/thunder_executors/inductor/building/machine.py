"""The machine that kernels are compiled for: its processors and its compiler. Nothing here imports Inductor."""

from __future__ import annotations

import sys

import torch

from thunder_core.backend.claiming.device_code import target_of_programs
from thunder_core.backend.claiming.tuning import tuning_seconds
from thunder_core.tracing.extension.processor import allowed_vectors
from thunder_core.tracing.extension.requirement import compiler_version, cxx_name, instruction_sets

# Microarchitecture levels by the names of `-march`, with their required and their optional instruction sets.
PROCESSORS = (
    (
        "x86-64-v4",
        ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd", "avx2", "fma", "bmi2", "f16c"),
        ("avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    ),
    ("x86-64-v3", ("avx2", "fma", "bmi2", "f16c"), ()),
)

WITHOUT_AVX512 = frozenset({"avx2", "default"})  # values of `ATEN_CPU_CAPABILITY`


def processors() -> tuple[str, tuple[str, ...]]:
    """Return the microarchitecture level to compile for (`-march`), and the instruction sets that its code may use.

    With `ATEN_CPU_CAPABILITY=avx2`, kernels for AVX2 are compiled on every processor, for artifacts that run on more
    processors than this one.
    """
    levels = PROCESSORS[1:] if allowed_vectors() in WITHOUT_AVX512 else PROCESSORS
    for name, needs, extras in levels:
        if set(needs) <= instruction_sets():
            return name, (*needs, *(extra for extra in extras if extra in instruction_sets()))
    return "native", tuple(sorted(instruction_sets()))


def facts() -> dict[str, str]:
    """Return the facts about this machine that determine a region's machine code, for the cache key."""
    name, needs = processors()
    return {
        "compiler": compiler_version(cxx_name()),
        "hardware": f"{name} {' '.join(needs)}",
        "python": sys.implementation.cache_tag,  # the library is an extension module
        "threads": str(torch.get_num_threads()),  # decides how loops are divided
        "torch": torch.__version__,
    }


def architecture(device: torch.device | None = None) -> str:
    """Return the GPU architecture to compile for, such as `sm_90`: the target, or that of a GPU of this machine, or "".

    The GPU is `device`, or the current GPU.
    """
    return target_of_programs() or architecture_here(device)


def architecture_here(device: torch.device | None = None) -> str:
    """Return the architecture of a GPU of this machine, or of the current GPU; empty without a GPU."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device)) if torch.cuda.is_available() else ""


def facts_of_gpu(compiler: str, device: torch.device) -> dict[str, str]:
    """Return the facts that determine a region's machine code for a GPU, for the cache key."""
    hardware = {"compiler": compiler, "hardware": architecture(device), "torch": torch.__version__}
    return {**hardware, **tuning_facts(device)}


def tuning_facts(device: torch.device) -> dict[str, str]:
    """Return the GPU and the seconds of the measurements that choose configurations; empty if nothing is measured."""
    if target_of_programs() or not torch.cuda.is_available() or not (seconds := tuning_seconds()):
        return {}
    return {"tuning": f"{seconds:g} seconds on {torch.cuda.get_device_name(device)}"}
