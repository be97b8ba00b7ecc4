"""The model families that every test of whole models runs on, and the comparison of their outputs with eager's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import thunder_core as thunder
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "bert", "vit", "t5")
WITH_CACHE = tuple(name for name in FAMILIES if name not in ("bert", "vit", "t5"))
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}


def sample(name: str, dtype: str = "float32") -> LoadedModel:
    """A small model of the family with seeded weights."""
    return load_model(ModelRequest(sample=SAMPLES[name], dtype=dtype))


def inputs_for(
    loaded: LoadedModel, *, seed: int = 1, batch: int = 2, seq: int = 12, labels: bool = False
) -> dict[str, Any]:
    """Seeded keyword arguments for the model."""
    return dict(example_inputs(loaded, batch=batch, seq=seq, seed=seed, labels=labels))


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in an output with its path, in nested objects of any type."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}[{index}]")
    elif hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        yield from tensors(vars(value), path)


def gradients(called: Any, model: torch.nn.Module, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The gradients of a model's parameters for the loss of a call of the model, eager or compiled."""
    model.zero_grad()
    called(**inputs).loss.backward()
    return gradients_of(model)


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the gradients of a model's parameters."""
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def first_claimed_lines(compiled: Any) -> tuple[BoundSymbol, ...]:
    """The lines of the first trace of the latest call in which executors have claimed lines."""
    traces = (trace.bound_symbols for trace in thunder.last_traces(compiled))
    return next(lines for lines in traces if any(line.executor for line in lines))


def assert_same(ours: Any, eager: Any) -> None:
    """Check for the same structure, classes and metadata, and for values that are equal except for rounding."""
    assert type(ours) is type(eager)
    mine, theirs = list(tensors(ours)), list(tensors(eager))
    assert [path for path, _ in mine] == [path for path, _ in theirs]
    assert theirs, "nothing was compared"
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        assert a.dtype == b.dtype, path
        tolerance = TOLERANCE.get(a.dtype, 0)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda told, path=path: f"{path}: {told}")
