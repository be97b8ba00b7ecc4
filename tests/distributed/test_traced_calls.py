"""The facts that an artifact of several ranks stores about its calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline import ranks_optimization
from thunder_core.workflow.pipeline.ranks_optimization import RanksOptimization
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.plan import Plan


def test_traced_calls_of_a_second_attempt_to_write_are_the_same(monkeypatch: Any) -> None:
    rank = SimpleNamespace(ask=lambda command: ["digest", "digest"], parts=2)
    monkeypatch.setattr(ranks_optimization, "rank_of", lambda session: rank)
    request: Any = SimpleNamespace(train=True, dynamic={}, target="")
    optimization: Any = object.__new__(RanksOptimization)
    optimization.session = SimpleNamespace(seed=0, loaded=None, purpose=Purpose(train=True))
    nothing: Any = None
    optimization.plan = Plan(request, nothing, InputSize(batch=4, seq=3), None, None, (), nothing)
    optimization.example = {"input_ids": torch.arange(12).view(4, 3)}
    first, second = optimization.traced_calls(), optimization.traced_calls()
    assert first.random_inputs == second.random_inputs == {"batch": 2, "seq": 3, "seed": 0}
    assert torch.equal(first.example["input_ids"], torch.arange(6).view(2, 3))
    assert torch.equal(second.example["input_ids"], first.example["input_ids"])
