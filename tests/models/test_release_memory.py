"""Garbage is collected where much memory is held, and not where little is, since that takes time."""

from __future__ import annotations

import gc

import pytest
import torch

from thunder_core.workflow.models.memory import release_memory as module
from thunder_core.workflow.models.memory.memory_limits import private_memory
from thunder_core.workflow.models.memory.release_memory import release_memory


class Cycle:
    """An object that holds a tensor and itself, so that only the collector frees it."""

    def __init__(self, numel: int) -> None:
        self.own, self.tensor = self, torch.ones(numel)


@pytest.mark.parametrize("mib", [300, 500])
def test_large_garbage_is_collected_and_given_back(mib):
    gc.collect()
    before = private_memory()
    Cycle(mib << 18)
    assert private_memory() > before + (mib - 20 << 20)
    release_memory(before)
    assert private_memory() < before + (mib // 2 << 20)  # other objects of the process move, too


def test_small_garbage_is_left_to_the_collector(monkeypatch):
    gc.collect()
    monkeypatch.setattr(module.gc, "collect", lambda: pytest.fail("it takes time"))
    before = private_memory()
    Cycle(8 << 18)
    release_memory(before)


@pytest.mark.parametrize("unknown", ["before", "now"])
def test_garbage_is_collected_where_memory_is_not_known(unknown, monkeypatch):
    collected = []
    monkeypatch.setattr(module.gc, "collect", lambda: collected.append(1))
    monkeypatch.setattr(module, "private_memory", lambda: None if unknown == "now" else 1)
    release_memory(None if unknown == "before" else 1)
    assert collected
