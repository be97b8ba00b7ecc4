"""Mixed precision and quantization in parallel training: several steps equal those of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

MODULE = "tests.distributed.recipes.mixed_precision"
CASES: dict[str, tuple[Any, ...]] = {
    "bf16 + fsdp equals PyTorch": ("bf16_with_fsdp_equals_pytorch", ("bf16", "fsdp")),
    "fsdp + bf16 equals PyTorch": ("bf16_with_fsdp_equals_pytorch", ("fsdp", "bf16")),
    "fsdp + bf16 equals a policy of FSDP2": ("bf16_with_fsdp_equals_a_policy",),
    "bf16 + fsdp gathers in bfloat16": ("bf16_with_fsdp_gathers_bfloat16",),
    "casts and views of parameters are not saved": ("casts_and_views_are_not_saved",),
    "bf16 + ddp equals PyTorch": ("bf16_with_ddp_equals_pytorch",),
    "bf16 + tensor-parallel equals PyTorch": ("bf16_with_tensor_parallel_equals_pytorch",),
    "autocast with ddp equals PyTorch": ("autocast_equals_pytorch", "ddp"),
    "autocast with fsdp equals PyTorch": ("autocast_equals_pytorch", "fsdp"),
    "fsdp trains adapters of frozen codes": ("adapters_of_quantized_layers_equal_pytorch", "fsdp", "int8-weight-only"),
    "ddp trains adapters of frozen codes": ("adapters_of_quantized_layers_equal_pytorch", "ddp", "int8-weight-only"),
    "fsdp trains adapters of codes in 4 bits": (
        *("adapters_of_llama_equal_pytorch", "own"),
        *("int4-weight-only", "Int4WeightOnlyLinear"),
    ),
    "fsdp refuses to train frozen codes": ("frozen_codes_are_refused", "fsdp"),
    "ddp refuses to train frozen codes": ("frozen_codes_are_refused", "ddp"),
    "the command trains with bf16 and fsdp": ("the_command_trains_float_weights",),
}


@pytest.mark.parametrize("case", CASES)
def test_mixed_precision_on_two_ranks(ranks: Ranks, case: str) -> None:
    ranks.run(MODULE, *CASES[case])


@pytest.mark.parametrize("case", ["replicated_shards", "tensor_parallel_and_fsdp"])
def test_mixed_precision_on_a_mesh(four_ranks: Ranks, case: str) -> None:
    four_ranks.run(MODULE, f"bf16_with_{case}_equals_pytorch")


@pytest.mark.parametrize(
    ("scheme", "kind"), [("int8-weight-only", "Int8WeightOnlyLinear"), ("int4-weight-only", "Int4WeightOnlyLinear")]
)
def test_fsdp_trains_adapters_of_peft(ranks: Ranks, scheme: str, kind: str) -> None:
    pytest.importorskip("peft", reason="needs the package peft")
    ranks.run(MODULE, "adapters_of_llama_equal_pytorch", "peft", scheme, kind)
