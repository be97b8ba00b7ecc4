"""Garbage is collected where much memory is held, and not where little is, since that takes time."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.processes import run_python
from thunder_core.foundation.memory_limits import private_memory
from thunder_core.workflow.models.memory import release_memory as module
from thunder_core.workflow.models.memory.release_memory import release_memory


class Cycle:
    """An object that holds a tensor and itself, so that only the collector frees it."""

    def __init__(self, numel: int) -> None:
        self.own, self.tensor = self, torch.ones(numel)


# What other tests left behind in this process is freed at any time, so the memory is read in a process of its own.
MEASURED = """
import gc, sys
from tests.models.test_release_memory import Cycle
from thunder_core.foundation.memory_limits import private_memory
from thunder_core.workflow.models.memory.release_memory import release_memory

gc.collect()
before = private_memory()
Cycle(int(sys.argv[1]) << 18)
held = private_memory()
release_memory(before)
print(held - before >> 20, private_memory() - before >> 20)
"""


@pytest.mark.parametrize("mib", [300, 500])
def test_large_garbage_is_collected_and_given_back(mib):
    run = run_python("-c", MEASURED, str(mib))
    assert run.returncode == 0, run.stderr
    held, left = map(int, run.stdout.split())
    assert held > mib - 20
    assert left < mib // 4


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
