"""The cost of a search is proportional to the trace: twice the layers, twice the steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import thunder_core as thunder
from thunder_core.backend.claiming.claim import claim
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.backend.patterns import hugging_face, search
from thunder_core.tracing.ir.trace import Trace

PATTERNS = ("add_rms_norm", "rms_norm", "rotary_embedding", "swiglu", "geglu_tanh")


def layers(count: int) -> Trace:
    """The trace of a stack of Llama-like layers."""

    def stack(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        for _ in range(count):
            normed, x = hugging_face.add_rms_norm.function(x.tanh(), x, weight, 1e-6)
            query, key = hugging_face.rotary_embedding.function(normed, normed + 1, cos, sin)
            x = hugging_face.swiglu.function(query.sigmoid(), key.sigmoid())
        return x

    compiled = thunder.jit(stack, executors=["torch"])
    compiled(torch.ones(2, 3, 5, 8), torch.ones(8), torch.ones(1, 5, 8), torch.ones(1, 5, 8))
    return thunder.last_traces(compiled)[-3]


def test_steps_grow_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = OperatorExecutor("mine")
    for name in PATTERNS:
        pattern = getattr(hugging_face, name)
        executor.replaces(pattern)(pattern.function)
    steps = [0]
    step = search._expansions

    def counted(*args: object) -> object:
        steps[0] += 1
        return step(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "_expansions", counted)
    taken = []
    for count in (8, 16):
        steps[0] = 0
        trace = claim(layers(count), [executor])
        assert sum(bsym.executor == "mine" for bsym in trace.bound_symbols) == 3 * count
        taken.append(steps[0])
    assert taken[1] < 2.2 * taken[0]


def test_a_pattern_is_traced_once_for_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = thunder.pattern(lambda x, y: functional.silu(x) * y)
    runs = [0]
    traced = type(pattern)._trace

    def counted(*args: object) -> object:
        runs[0] += 1
        return traced(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(type(pattern), "_trace", counted)
    executor = OperatorExecutor("mine")
    executor.replaces(pattern)(pattern.function)
    trace = claim(layers(8), [executor])
    assert sum(bsym.executor == "mine" for bsym in trace.bound_symbols) == 8
    assert runs[0] == 1
