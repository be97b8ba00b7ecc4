"""The contenders of Thunder where `generate` is measured: eager PyTorch, and torch.compile with both kinds of cache.

Each has the model's parameters and code, and is another object than the model: what a compiler leaves on an object, no
other contender meets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from transformers import CompileConfig, PreTrainedModel

from thunder_core.workflow.pipeline.generation.generation_speed import Contender
from thunder_core.workflow.pipeline.request.bench_request import PREPARED

Model = TypeVar("Model", bound=torch.nn.Module)


def twin_of(model: Model) -> Model:
    """An object of its own with the very parameters, buffers and submodules of a model."""
    return copy.copy(model)


def eager(model: PreTrainedModel) -> Contender:
    """The model itself, as eager PyTorch runs it."""
    return Contender(model)


def inductor(model: PreTrainedModel) -> Contender:
    """The model's forward under `torch.compile` with symbolic sizes, for the library's dynamic cache."""
    twin = twin_of(model)
    vars(twin)["forward"] = torch.compile(model.forward, dynamic=True)
    return Contender(twin)


def inductor_static(model: PreTrainedModel) -> Contender:
    """The library's own way: a static cache, and `torch.compile` of the calls behind the prompt.

    On a CPU it has to be asked for, by a field that the library documents for that (`CompileConfig`); its default mode
    there is that of GPUs, CUDA graphs, which a CPU does without.
    """
    config = CompileConfig(mode="reduce-overhead" if model.device.type == "cuda" else "default")
    vars(config)["_compile_all_devices"] = True
    return Contender(twin_of(model), {"cache_implementation": "static", "compile_config": config})


CONTENDERS: Mapping[str, Callable[[PreTrainedModel], Contender]] = {
    "eager": eager,
    PREPARED: eager,
    "inductor": inductor,
    "inductor-static": inductor_static,
}
