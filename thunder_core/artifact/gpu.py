"""The kernels of an artifact that was made for a GPU which was not there: they are launched as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunder_core.artifact.manifest import KERNELS, CubinFacts, digest_of
from thunder_core.artifact.read import Artifact
from thunder_core.claiming.device_code import DeviceCode
from thunder_core.compiler import find_executor

GPU = "cuda"  # where the program of a target, and so its weights, will be


def kept_cubins(kernels: Iterable[DeviceCode]) -> tuple[tuple[CubinFacts, ...], Mapping[str, bytes]]:
    """What the manifest says of kernels, and the files that they go into."""
    named = [(f"{KERNELS}/{digest_of(code.image)[:16]}.cubin", code) for code in kernels]
    facts = tuple(CubinFacts(executor=code.executor, file=name, facts=dict(code.facts)) for name, code in named)
    return facts, {name: code.image for name, code in named}


def keep_cubins(artifact: Artifact) -> None:
    """Let the artifact's kernels be launched from now on; that this is their GPU was checked before."""
    kernels: dict[str, list[DeviceCode]] = {}
    for cubin in artifact.manifest.cubins:
        code = DeviceCode(cubin.executor, artifact.content(cubin.file), cubin.facts)
        kernels.setdefault(cubin.executor, []).append(code)
    for name, codes in kernels.items():
        find_executor(name).keep(codes)
