"""A token of a Llama of 1B parameters on an absent Hopper GPU: programs, graphs, launches, copied bytes and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.decode_counts import LAYERS, SIZES
from thunder_core.foundation import plugins

pytestmark = pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton")
ROOT = Path(__file__).resolve().parents[2]
FEW = 2  # layers, of a model that shows by its difference what a layer costs
# Of a layer: by Inductor the rotation of queries, that of keys, and the position of the token; two norms and SwiGLU;
# two joined products; the two other products, and two writes into the cache.
LAYER = {"inductor": 3, "triton": 3, "joined": 2, "torch": 4, "sdpa": 1}


@pytest.fixture(scope="module")
def counts() -> dict[int, dict[str, Any]]:
    """The counts by the number of layers; Triton's interpreter, which the tests enable, compiles nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    command = [sys.executable, "-m", "tests.gpu.decode_counts", str(FEW), str(LAYERS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return {int(layers): found for layers, found in json.loads(done.stdout.splitlines()[-1]).items()}


def test_two_programs_generate_64_tokens(counts: dict[int, dict[str, Any]]) -> None:
    assert [found["programs"] for found in counts.values()] == [2, 2]


def test_a_token_is_one_graph(counts: dict[int, dict[str, Any]]) -> None:
    for found in counts.values():
        assert (found["graphs"], found["outside of graphs"]) == (1, 0)


def test_no_parameter_and_no_cache_is_copied_before_a_replay(counts: dict[int, dict[str, Any]]) -> None:
    """The graph reads 9 weights, a cache and its length of each layer in place, and 4 tensors of the whole model."""
    for layers, found in counts.items():
        assert set(found["copied"]) == {f"kwargs[{name!r}]" for name in ("input_ids", "position_ids", "attention_mask")}
        assert sum(found["copied"].values()) < 128
        assert found["parameters"] == 12 * layers + 4


def test_a_layer_is_13_launches(counts: dict[int, dict[str, Any]]) -> None:
    few, many = counts[FEW]["launches"], counts[LAYERS]["launches"]
    assert {name: (many[name] - few[name]) / (LAYERS - FEW) for name in many} == LAYER
    assert sum(many.values()) <= 13 * LAYERS + 6


def test_a_token_takes_the_memory_of_its_logits(counts: dict[int, dict[str, Any]]) -> None:
    for found in counts.values():
        assert found["own memory"] == 2 * SIZES["vocab_size"]
