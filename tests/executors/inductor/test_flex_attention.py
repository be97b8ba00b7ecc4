"""Flex attention on the CPU: one kernel for scores, functions, mask, softmax and product.

Equal ones are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import thunder_core as thunder
from thunder_core.backend.fusion.fuse import Fused, Refusal
from thunder_core.backend.fusion.region import Region
from thunder_executors.inductor import Inductor
from thunder_executors.inductor.flex_attention import with_threads_of_call

LENGTH = 40
GENERATOR = torch.Generator().manual_seed(0)
QUERY = torch.randn(2, LENGTH, 4, 16, generator=GENERATOR).transpose(1, 2)
KEY, VALUE = (torch.randn(2, LENGTH, 2, 16, generator=GENERATOR).transpose(1, 2) for _ in range(2))
BIAS = torch.randn(4, generator=GENERATOR)


def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s * BIAS[0] + (i - j) * BIAS[h]


def late(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """A mask with which queries at the beginning of the second row have no keys."""
    return (i >= j) & (i >= b * 3)


MASK = create_block_mask(late, 2, None, LENGTH, LENGTH, "cpu", 16)


def layers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    for _ in range(2):
        query = flex_attention(query, key, value, score, MASK, enable_gqa=True)
    return query


@torch.no_grad()
def test_attention_is_one_kernel_which_an_artifact_keeps(tmp_path: Path) -> None:
    compiled = thunder.jit(layers, executors=("inductor", "torch"))
    expected = thunder.jit(layers)(QUERY, KEY, VALUE)
    result = compiled(QUERY, KEY, VALUE)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert result.stride() == expected.stride() and not result[1, :, :3].any()
    trace = thunder.last_traces(compiled)[-1]
    assert [line.symbol.name for line in trace.bound_symbols if line.executor] == ["attention_0", "attention_0"]
    assert not trace.refused
    loaded = thunder.load(thunder.save(compiled, tmp_path / "attention.thunder"), layers)
    torch.testing.assert_close(loaded(QUERY, KEY, VALUE), result, rtol=0, atol=0)


class Counting(Inductor):
    """A compiler that records and refuses every region."""

    given: list[Region] = []  # noqa: RUF012 - of the class

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Refuse all regions."""
        self.given.extend(regions)
        return [Refusal("not here") for _ in regions]


def offered(program: Callable[..., Any], *args: Any, **options: Any) -> tuple[list[Region], Any]:
    """The flex attentions that the executor received, and the resulting trace."""
    Counting.given.clear()
    compiled = thunder.jit(program, executors=(Counting(), "torch"), **options)
    torch.testing.assert_close(compiled(*args), program(*args), rtol=0, atol=0)
    regions = [region for region in Counting.given if region.operations[0].symbol.short_name == "flex_attention"]
    return regions, thunder.last_traces(compiled)[-1]


@pytest.fixture(autouse=True)
def without_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the operator in eager PyTorch without Dynamo."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def test_a_refused_attention_is_reported_with_its_reason() -> None:
    regions, trace = offered(layers, QUERY, KEY, VALUE)
    assert len(regions) == 1  # both calls are equal
    assert {refusal.reason for refusal in trace.refused} == {"not here"}
    assert "softmax" in str(trace)


def entangled(query: Tensor, key: Tensor, value: Tensor) -> Any:
    return flex_attention(query, key, value, score, MASK, enable_gqa=True, return_aux=AuxRequest(lse=True))


def in_place(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A write to the result afterwards is not a part of the kernel."""
    return flex_attention(query, key, value, score, MASK, enable_gqa=True).mul_(2)


def test_functions_with_more_results_than_flex_attention_are_not_fused() -> None:
    regions, trace = offered(entangled, QUERY, KEY, VALUE)
    assert not regions and any("more results of flex attention" in refusal.reason for refusal in trace.refused)
    regions, _ = offered(in_place, QUERY, KEY, VALUE)
    assert len(regions) == 1


def test_functions_that_do_more_are_not_fused() -> None:
    seen: list[int] = []

    def noting(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen.append(1)
        return s

    def program(query: Tensor) -> Tensor:
        return flex_attention(query, query, query, noting)

    Counting.given.clear()
    thunder.jit(program, executors=(Counting(), "torch"))(QUERY)
    assert seen == [1] and not [region for region in Counting.given if len(region.operations) == 1]


def test_buffers_are_there_for_all_threads_of_a_call() -> None:
    source = "int64_t num_thread = 4;\nbuffer.allocate(num_thread * size);"
    assert with_threads_of_call(source).startswith("int64_t num_thread = at::get_num_threads();")
