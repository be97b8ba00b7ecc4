"""The kernels of an artifact that was made for a GPU which was not there: they are launched as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.foundation.errors import ArtifactForeign, EnvironmentLacks, UnknownName
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.workflow.artifact.format.manifest import KERNELS, CubinFacts
from thunder_core.workflow.artifact.format.read import Artifact

GPU = "cuda"  # where the program of a target, and so its weights, will be


def kept_cubins(kernels: Iterable[DeviceCode]) -> tuple[tuple[CubinFacts, ...], Mapping[str, bytes]]:
    """The facts of kernels for a manifest, and the files that they go into."""
    named = [(f"{KERNELS}/{digest_of(code.image)[:16]}.cubin", code) for code in kernels]
    facts = tuple(CubinFacts(executor=code.executor, file=name, facts=dict(code.facts)) for name, code in named)
    return facts, {name: code.image for name, code in named}


Cubins = Mapping[str, list[DeviceCode]]


def read_cubins(artifact: Artifact) -> Cubins:
    """The artifact's kernels by the executors that launch them, verified; that this is their GPU was checked before.

    Raises `ArtifactForeign` for an executor that is not to be had here.
    """
    kernels: dict[str, list[DeviceCode]] = {}
    for cubin in artifact.manifest.cubins:
        code = DeviceCode(cubin.executor, artifact.content(cubin.file), cubin.facts)
        kernels.setdefault(cubin.executor, []).append(code)
    for name in kernels:
        launcher(name)
    return kernels


def launcher(name: str) -> Executor:
    """The executor that launches kernels, by its name."""
    try:
        return find_executor(name)
    except (UnknownName, EnvironmentLacks) as error:
        raise ArtifactForeign(
            f"the executor {name} of the artifact's kernels is not available: {error.what}",
            fix="install the executor's package, or make the artifact again",
        ) from error


def keep_cubins(kernels: Cubins) -> None:
    """Let kernels be launched from now on, by every program of this process that launches the same."""
    for name, codes in kernels.items():
        launcher(name).keep(codes)
