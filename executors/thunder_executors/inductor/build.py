"""From regions to what runs them: generate, compile together, and say of each what came of it."""

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
from thunder_executors.inductor.wrapper import printed

TOGETHER = 48  # kernels in a translation unit, after which another one is begun: their headers take 2.6 s


@dataclass(frozen=True)
class Draft:
    """A region as text, and its kernels, whose names no other region of this build has; `conditions` on its symbols."""

    text: str
    kernels: Mapping[str, CppKernel]
    conditions: tuple[str, ...] = ()


def build(regions: Sequence[Region]) -> list[MachineCode | Refusal]:
    """For each region its machine code, or why Inductor or the compiler did not take it."""
    steps = 2 * len(regions)
    drafts = []
    for number, region in enumerate(regions):
        drafts.append(draft(region, number))
        advance(number + 1, steps)
    libraries = _compiled([one for one in drafts if isinstance(one, Draft)])
    advance(steps, steps)
    return [one if isinstance(one, Refusal) else _whole(one, libraries[id(one)]) for one in drafts]


def _compiled(drafts: Sequence[Draft]) -> dict[int, bytes | Refusal]:
    """The shared object of each draft: many kernels share a compiler's run, and as many run as there is room for."""
    groups: list[list[Draft]] = [[]]
    for one in drafts:
        if sum(len(other.kernels) for other in groups[-1]) >= TOGETHER:
            groups.append([])
        groups[-1].append(one)
    with ThreadPoolExecutor(max_workers=library.compilers_at_once()) as pool, compilers() as started:
        running = [  # with this thread's settings
            pool.submit(copy_context().run, _libraries, group, started) for group in groups
        ]
        return {key: found for one in running for key, found in one.result().items()}


def draft(region: Region, number: int) -> Draft | Refusal:
    """The code that Inductor makes of a region; whatever it raises is a reason to leave the region to others."""
    try:
        region = with_flag(in_own_environment(region))
        generated = generate(region)
        check_outputs(region, generated)
        text, kernels = _renamed(generated, number)
        return Draft(printed(text, kernels, region), kernels, generated.conditions)
    except Unsupported as error:
        return Refusal(str(error), lasting=True)
    except Exception as error:  # Inductor raises what its passes raise
        return refusal_for(error)


def _renamed(generated: GeneratedCode, number: int) -> tuple[str, dict[str, CppKernel]]:
    """The wrapper and its kernels with names that tell regions apart."""
    text, kernels = generated.wrapper, {}
    for place, (name, kernel) in sorted(enumerate(generated.kernels.items()), reverse=True):
        new = f"kernel_{number}_{place}"
        text = text.replace(f"{name}(", f"{new}(")
        kernels[new] = kernel
    return text, kernels


def _libraries(drafts: Sequence[Draft], started: Compilers) -> dict[int, bytes | Refusal]:
    """The shared object of each draft: one for all, or one each where together they do not compile."""
    kernels = {name: kernel for one in drafts for name, kernel in one.kernels.items()}
    if not kernels:
        return {id(one): b"" for one in drafts}
    try:
        together = library.compiled(kernels, started)
        return {id(one): together for one in drafts}
    except (OutOfDisk, OSError) as error:  # no room, or no folder, for any of them
        return {id(one): _refused(error) for one in drafts}
    except (CompilerFailed, Unsupported) as error:
        if len(drafts) == 1:
            return {id(drafts[0]): _refused(error)}
    return {key: found for one in drafts for key, found in _libraries([one], started).items()}


def _refused(error: Exception) -> Refusal:
    return Refusal(error.what if isinstance(error, ThunderError) else str(error))


def _whole(one: Draft, found: bytes | Refusal) -> MachineCode | Refusal:
    if isinstance(found, Refusal):
        return found
    return MachineCode(one.text, found, processors()[1], one.conditions)
