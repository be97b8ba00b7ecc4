"""The kernels of an artifact that was cross-compiled for a GPU; they are launched as they were stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.foundation.errors import ArtifactForeign, EnvironmentLacks, UnknownName
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.workflow.artifact.format.manifest import KERNELS, CubinFacts
from thunder_core.workflow.artifact.format.read import Artifact

GPU = "cuda"  # the device of a cross-compiled program and its weights


def stored_cubins(kernels: Iterable[DeviceCode]) -> tuple[tuple[CubinFacts, ...], Mapping[str, bytes]]:
    """Return the facts of kernels for a manifest, and the kernels' files."""
    codes_by_file = [(f"{KERNELS}/{digest_of(code.image)[:16]}.cubin", code) for code in kernels]
    facts = tuple(CubinFacts(executor=code.executor, file=name, facts=dict(code.facts)) for name, code in codes_by_file)
    return facts, {name: code.image for name, code in codes_by_file}


Cubins = Mapping[str, list[DeviceCode]]


def read_cubins(artifact: Artifact) -> Cubins:
    """Read and verify an artifact's kernels, by the names of the executors that launch them.

    The caller has checked the architecture of the GPU.

    Raises `ArtifactForeign` if an executor is not available.
    """
    kernels: dict[str, list[DeviceCode]] = {}
    for cubin in artifact.manifest.cubins:
        code = DeviceCode(cubin.executor, artifact.content(cubin.file), cubin.facts)
        kernels.setdefault(cubin.executor, []).append(code)
    for name in kernels:
        launcher(name)
    return kernels


def launcher(name: str) -> Executor:
    """Return the executor that launches kernels, by its name; raise `ArtifactForeign` if it is not available."""
    try:
        return find_executor(name)
    except (UnknownName, EnvironmentLacks) as error:
        raise ArtifactForeign(
            f"the executor {name} of the artifact's kernels is not available: {error.what}",
            fix="install the executor's package, or make the artifact again",
        ) from error


def keep_cubins(kernels: Cubins) -> None:
    """Register kernels with their executors, for every program of this process that launches the same kernels."""
    for name, codes in kernels.items():
        launcher(name).keep(codes)
