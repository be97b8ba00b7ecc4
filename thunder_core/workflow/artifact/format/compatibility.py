"""Checks whether an artifact can run here: the version of PyTorch, the devices, the machine and the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thunder_core.backend.fusion.machine_code import machine
from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.tracing.extension.processor import CAPABILITY
from thunder_core.tracing.extension.requirement import instruction_sets
from thunder_core.workflow.artifact.format.manifest import Manifest

MAKE_AGAIN_FIX = "make the artifact again on this machine"


def require_compatible(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` if an artifact cannot run here; the check runs no code of the artifact."""
    require_torch(manifest)
    require_devices(manifest)
    require_architecture(manifest)
    require_machine(manifest)
    require_instructions(manifest)


def require_torch(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` for another minor version of PyTorch, whose operations may differ."""
    if minor(manifest.torch) != minor(torch.__version__):
        raise ArtifactForeign(
            f"the artifact was made with PyTorch {manifest.torch}, but this is PyTorch {torch.__version__}",
            fix="install that version of PyTorch, or make the artifact again with this version",
        )


def minor(version: str) -> tuple[str, ...]:
    """Return the first two numbers of a version."""
    return tuple(version.split(".")[:2])


def require_devices(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` if a program runs on a device that is missing here."""
    for device in devices_of(manifest):
        present = device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()
        if not present:
            raise ArtifactForeign(
                f"the artifact's programs run on {device}, which this machine or this build of PyTorch does not have",
                fix="load the artifact on a machine with this device, or make it again with another --device",
            )


def devices_of(manifest: Manifest) -> tuple[torch.device, ...]:
    """Return the devices that the programs of an artifact run on, without duplicates."""
    return tuple(dict.fromkeys(torch.device(name) for program in manifest.programs for name in program.devices))


def require_architecture(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` if the kernels are machine code for another GPU architecture than this machine's."""
    if not manifest.target:
        return
    gpus = [device for device in devices_of(manifest) if device.type == "cuda"]
    for device in gpus or [torch.device("cuda")]:
        here = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
        if here != manifest.target:
            raise ArtifactForeign(
                f"the artifact's kernels are machine code for {manifest.target}, but the GPU "
                f"{torch.cuda.get_device_name(device)} is {here}",
                fix=f"load the artifact on such a GPU, or make it again with --target {here}",
            )


def require_machine(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` for compiled regions of another system, processor family or version of Python."""
    if manifest.machine and manifest.machine != machine():
        raise ArtifactForeign(
            f"the artifact's compiled regions run on {manifest.machine}, but this is {machine()}", fix=MAKE_AGAIN_FIX
        )


def require_instructions(manifest: Manifest) -> None:
    """Raise `ArtifactForeign` for compiled regions with instructions that this CPU does not have."""
    missing = sorted(manifest.needs - instruction_sets())
    if missing:
        raise ArtifactForeign(
            f"the artifact's compiled regions use instructions that this CPU lacks: {', '.join(missing)}",
            fix=f"load the artifact on a CPU that has them, or {MAKE_AGAIN_FIX}{narrower_fix(missing)}",
        )


def narrower_fix(missing: Sequence[str]) -> str:
    """Return how to make the artifact on a machine with AVX-512 without AVX-512; empty if this CPU also lacks AVX2."""
    if "avx2" not in instruction_sets() or not all(name.startswith(("avx512", "amx")) for name in missing):
        return ""
    return f", or on the other one with {CAPABILITY}=avx2 in its environment"
