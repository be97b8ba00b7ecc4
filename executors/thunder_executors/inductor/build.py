"""Generate the code of regions, compile their kernels together, and return machine code or refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass

from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import Region
from thunder_core.backend.fusion.watch import advance
from thunder_core.foundation.errors import CompilerFailed, OutOfDisk, ThunderError
from thunder_executors.inductor.building import library
from thunder_executors.inductor.building.compilers import Compilers, compilers
from thunder_executors.inductor.building.machine import processors
from thunder_executors.inductor.generate import CppKernel, GeneratedCode, Unsupported, generate, refusal_for
from thunder_executors.inductor.outputs import check_outputs
from thunder_executors.inductor.sizes import in_own_environment
from thunder_executors.inductor.value_checks import with_flag
from thunder_executors.inductor.wrapper import print_module

KERNELS_PER_UNIT = 48  # kernels in a translation unit, whose headers take 2.6 s to compile


@dataclass(frozen=True)
class Draft:
    """The generated code of a region: the wrapper, the kernels by unique names, and the conditions on symbols."""

    text: str
    kernels: Mapping[str, CppKernel]
    conditions: tuple[str, ...] = ()


def build(regions: Sequence[Region]) -> list[MachineCode | Refusal]:
    """Return, for each region, its machine code, or the refusal of Inductor or the compiler."""
    steps = 2 * len(regions)
    drafts = []
    for number, region in enumerate(regions):
        drafts.append(draft(region, number))
        advance(number + 1, steps)
    libraries = _compile([result for result in drafts if isinstance(result, Draft)])
    advance(steps, steps)
    return [
        result if isinstance(result, Refusal) else _machine_code(result, libraries[id(result)]) for result in drafts
    ]


def _compile(drafts: Sequence[Draft]) -> dict[int, bytes | Refusal]:
    """Return the shared object of each draft; many kernels share a compiler run, and several compilers run at once."""
    groups: list[list[Draft]] = [[]]
    for region_draft in drafts:
        if sum(len(earlier.kernels) for earlier in groups[-1]) >= KERNELS_PER_UNIT:
            groups.append([])
        groups[-1].append(region_draft)
    with ThreadPoolExecutor(max_workers=library.compilers_at_once()) as pool, compilers() as started:
        # Each run has a copy of this thread's context variables.
        running = [pool.submit(copy_context().run, _libraries, group, started) for group in groups]
        return {key: compiled for future in running for key, compiled in future.result().items()}


def draft(region: Region, number: int) -> Draft | Refusal:
    """Return the code that Inductor generates for a region, or the refusal if Inductor raises an error."""
    try:
        region = with_flag(in_own_environment(region))
        generated = generate(region)
        check_outputs(region, generated)
        text, kernels = _rename(generated, number)
        return Draft(print_module(text, kernels, region), kernels, generated.conditions)
    except Unsupported as error:
        return Refusal(str(error), lasting=True)
    except Exception as error:  # Inductor's passes may raise any exception
        return refusal_for(error)


def _rename(generated: GeneratedCode, number: int) -> tuple[str, dict[str, CppKernel]]:
    """Return the wrapper and its kernels with names that are unique across regions."""
    text, kernels = generated.wrapper, {}
    for index, (name, kernel) in sorted(enumerate(generated.kernels.items()), reverse=True):
        new = f"kernel_{number}_{index}"
        text = text.replace(f"{name}(", f"{new}(")
        kernels[new] = kernel
    return text, kernels


def _libraries(drafts: Sequence[Draft], started: Compilers) -> dict[int, bytes | Refusal]:
    """Return the shared object of each draft: one for all drafts, or one for each if they do not compile together."""
    kernels = {name: kernel for item in drafts for name, kernel in item.kernels.items()}
    if not kernels:
        return {id(item): b"" for item in drafts}
    try:
        together = library.compile_library(kernels, started)
        return {id(item): together for item in drafts}
    except (OutOfDisk, OSError) as error:  # no space or no folder for any library
        return {id(item): _refusal(error) for item in drafts}
    except (CompilerFailed, Unsupported) as error:
        if len(drafts) == 1:
            return {id(drafts[0]): _refusal(error)}
    return {key: compiled for item in drafts for key, compiled in _libraries([item], started).items()}


def _refusal(error: Exception) -> Refusal:
    return Refusal(error.what if isinstance(error, ThunderError) else str(error))


def _machine_code(region_draft: Draft, compiled: bytes | Refusal) -> MachineCode | Refusal:
    if isinstance(compiled, Refusal):
        return compiled
    return MachineCode(region_draft.text, compiled, processors()[1], region_draft.conditions)
