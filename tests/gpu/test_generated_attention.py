"""A token of `generate` for an absent Hopper GPU attends by Thunder's kernel, for all batches and lengths."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.printed_counts import printed_counts
from thunder_core.foundation import plugins

pytestmark = [
    pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton"),
    pytest.mark.timeout(900),
]
LAYERS = 4  # of the sample


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    """The printed calls and kernels of attention."""
    pytest.importorskip("transformers")
    return printed_counts("tests.gpu.generated_attention")


def test_each_program_for_a_token_attends_by_the_kernel(printed: dict[str, Any]) -> None:
    tokens = [program["calls"] for program in printed["programs"] if program["is filled"]]
    assert tokens == [{"attend_by_mask": LAYERS}] * len(tokens)
    assert len(tokens) > 0


def test_prompts_are_left_to_pytorch(printed: dict[str, Any]) -> None:
    """Except prompts of one token, whose attention is that of a token."""
    prompts = [program["calls"] for program in printed["programs"] if not program["is filled"]]
    assert {"attention": LAYERS} in prompts
    assert all(sum(calls.values()) == LAYERS for calls in prompts)


def test_one_part_and_several_parts_are_compiled_with_the_same_constants(printed: dict[str, Any]) -> None:
    several = [variant for variant in printed["variants"] if "tops" not in variant["constants"]]
    single = [variant for variant in printed["variants"] if "tops" in variant["constants"]]
    assert len(single) == len(several) > 0
    constants = [{name: value for name, value in each["constants"].items() if value} for each in (*single, *several)]
    assert constants == constants[:1] * len(constants)
