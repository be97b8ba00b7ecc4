"""The fixture that replaces the recording of CUDA graphs on the CPU."""

from __future__ import annotations

import pytest

from tests.executors.cudagraphs.stand_in import StandIn
from thunder_executors.cudagraphs import graph


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(graph, "CUDA", StandIn())
    return graph.CUDA
