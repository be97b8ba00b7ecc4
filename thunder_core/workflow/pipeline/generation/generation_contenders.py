"""The contenders in measurements of `generate`: eager PyTorch, and torch.compile with both kinds of KV cache.

A compiled contender is a copy that shares the model's parameters and code, so that changes by its compiler do not
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
    """Return the model with its forward compiled by `torch.compile` for symbolic sizes, because the KV cache grows."""
    twin = twin_of(model)
    vars(twin)["forward"] = torch.compile(model.forward, dynamic=True)
    return Contender(twin)


def inductor_static(model: PreTrainedModel, mode: str | None = None) -> Contender:
    """Return the model compiled as transformers does: with a static KV cache, and `torch.compile` after the prompt.

    On a CPU, transformers compiles only if a field of `CompileConfig` is set. The default mode of `CompileConfig` uses
    CUDA graphs, which a CPU does not have.
    """
    config = CompileConfig(mode=mode or ("reduce-overhead" if model.device.type == "cuda" else "default"))
    vars(config)["_compile_all_devices"] = True
    return Contender(twin_of(model), {"cache_implementation": "static", "compile_config": config})


# The contenders by their names in `--against`. For `PREPARED`, the caller passes the model that the recipe prepared.
CONTENDERS: Mapping[str, Callable[[PreTrainedModel], Contender]] = {
    "eager": eager,
    PREPARED: eager,
    "inductor": inductor,
    **{f"inductor-{mode}": partial(inductor_static, mode=mode) for mode in INDUCTOR_MODES},
    "inductor-static": inductor_static,
}
