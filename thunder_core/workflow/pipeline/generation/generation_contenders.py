"""The contenders in measurements of `generate`: eager PyTorch, and torch.compile with both kinds of cache.

Each contender has the model's parameters and code, but is a separate object, so that changes by a compiler do not
affect other contenders.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch
from transformers import CompileConfig, PreTrainedModel

from thunder_core.workflow.pipeline.generation.generation_speed import Contender
from thunder_core.workflow.pipeline.request.bench_request import INDUCTOR_MODES, PREPARED

Model = TypeVar("Model", bound=torch.nn.Module)


def twin_of(model: Model) -> Model:
    """Return a separate object with the same parameters, buffers and submodules as a model."""
    return copy.copy(model)


def eager(model: PreTrainedModel) -> Contender:
    """Return the model itself, run by eager PyTorch."""
    return Contender(model)


def inductor(model: PreTrainedModel) -> Contender:
    """Return the model with its forward compiled by `torch.compile` with symbolic sizes, for the dynamic cache."""
    twin = twin_of(model)
    vars(twin)["forward"] = torch.compile(model.forward, dynamic=True)
    return Contender(twin)


def inductor_static(model: PreTrainedModel, mode: str | None = None) -> Contender:
    """Return the library's own method: a static cache, and `torch.compile` for the calls after the prompt.

    On a CPU, this must be requested by a field that the library documents (`CompileConfig`). Its default mode is for
    GPUs, with CUDA graphs, which a CPU does not have.
    """
    config = CompileConfig(mode=mode or ("reduce-overhead" if model.device.type == "cuda" else "default"))
    vars(config)["_compile_all_devices"] = True
    return Contender(twin_of(model), {"cache_implementation": "static", "compile_config": config})


CONTENDERS: Mapping[str, Callable[[PreTrainedModel], Contender]] = {
    "eager": eager,
    PREPARED: eager,
    "inductor": inductor,
    **{f"inductor-{mode}": partial(inductor_static, mode=mode) for mode in INDUCTOR_MODES},
    "inductor-static": inductor_static,
}
