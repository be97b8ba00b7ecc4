"""The environment of a run: interpreter, libraries and hardware."""

from __future__ import annotations

import os
import platform

import torch

from thunder_core.foundation.tested_versions import installed_version
from thunder_core.workflow.benchmark.machine import processor_name
from thunder_core.workflow.report.contents import Environment, Gpu

LIBRARIES = ("transformers", "triton", "torchao", "safetensors", "numpy")


def describe_environment() -> Environment:
    """Return the Python version, the libraries and the hardware of this process."""
    return Environment(
        python=platform.python_version(),
        torch=torch.__version__,
        libraries={name: version for name in LIBRARIES if (version := installed_version(name)) is not None},
        platform=platform.platform(),
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_bytes=_memory(),
        cuda=torch.version.cuda,
        gpus=tuple(_gpu(index) for index in range(torch.cuda.device_count())),
    )


def _memory() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= names.keys():
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gpu(index: int) -> Gpu:
    gpu = torch.cuda.get_device_properties(index)
    return Gpu(name=gpu.name, capability=f"{gpu.major}.{gpu.minor}", memory_bytes=gpu.total_memory)
