"""Where a run took place: interpreter, libraries and hardware."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import torch

from thunder_core.benchmark.machine import processor_name
from thunder_core.validation.report import Facts

LIBRARIES = ("transformers", "triton", "torchao", "safetensors", "numpy")


class Gpu(Facts):
    """One GPU that PyTorch can use."""

    name: str
    capability: str
    memory_bytes: int


class Environment(Facts):
    """What a result may depend on besides the model and the recipe."""

    python: str
    torch: str
    libraries: dict[str, str]
    """Versions of the other libraries that matter and are installed."""
    platform: str
    processor: str
    cores: int
    threads: int
    """The number of threads that PyTorch computes with."""
    memory_bytes: int | None
    cuda: str | None
    """The CUDA version that PyTorch was built for."""
    gpus: tuple[Gpu, ...]


def describe_environment() -> Environment:
    """The environment of this process."""
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        libraries={name: version for name in LIBRARIES if (version := _version_of(name)) is not None},
        platform=platform.platform(),
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_bytes=_memory(),
        cuda=torch.version.cuda,
        gpus=tuple(_gpu(index) for index in range(torch.cuda.device_count())),
    )


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= names.keys():
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu(index: int) -> Gpu:
    found = torch.cuda.get_device_properties(index)
    return Gpu(name=found.name, capability=f"{found.major}.{found.minor}", memory_bytes=found.total_memory)
