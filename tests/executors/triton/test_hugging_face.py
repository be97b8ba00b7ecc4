"""Operations of transformers' models are claimed in every layer, run on our kernels, and equal eager."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutput

import thunder_core as thunder
from tests.executors.triton.closeness import assert_close, draw
from tests.families import assert_same, first_claimed_lines, gradients, inputs_for, sample
from thunder_core.backend.patterns import hugging_face
from thunder_core.backend.patterns.pattern import Pattern
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.triton.hugging_face import CLAIMS
from thunder_executors.triton.launch import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")

DECODER = {"norm": 1, "add_norm": 4, "turn": 2, "swiglu": 2}
GEMMA = {"norm_of_gemma": 5, "add_norm_of_gemma": 4, "turn": 2, "geglu_tanh": 2}
CLAIMED: dict[tuple[str, str], dict[str, int]] = {
    ("llama", "float32"): DECODER,
    ("llama", "bfloat16"): DECODER,
    ("qwen3", "float32"): {**DECODER, "norm": 5},  # also of queries and keys
    ("gemma2", "float32"): GEMMA,
    # The sum is rounded to bfloat16 before it is normalized in float32.
    ("gemma2", "bfloat16"): {
        **{name: n for name, n in GEMMA.items() if name != "add_norm_of_gemma"},
        "norm_of_gemma": 9,
    },
    ("phi3", "float32"): {**{name: n for name, n in DECODER.items() if name != "swiglu"}, "packed_swiglu": 2},
}
SIZES = {"batch": 2, "seq": 3}


def compiled_with_triton(subject: Any) -> Any:
    return thunder.jit(subject, executors=["triton", "torch"])


def lines(compiled: Any) -> list[BoundSymbol]:
    return [bsym for bsym in first_claimed_lines(compiled) if bsym.executor == "triton"]


def claimed(compiled: Any) -> dict[str, int]:
    return dict(Counter(bsym.symbol.short_name for bsym in lines(compiled)))


@pytest.mark.parametrize(("name", "dtype"), CLAIMED)
def test_every_layer_is_claimed_and_equals_eager(name: str, dtype: str) -> None:
    loaded = sample(name, dtype)
    inputs = inputs_for(loaded, **SIZES)
    compiled = compiled_with_triton(loaded.model)
    with torch.no_grad():
        assert_same(compiled(**inputs), loaded.model(**inputs))
    assert claimed(compiled) == CLAIMED[name, dtype]


def test_the_trace_shows_the_operations_of_a_kernel() -> None:
    loaded = sample("llama")
    compiled = compiled_with_triton(loaded.model)
    with torch.no_grad():
        compiled(**inputs_for(loaded, **SIZES))
    text = str(thunder.last_traces(compiled)[-1])
    norm = next(line for line in lines(compiled) if line.symbol.short_name == "norm")
    assert {"torch.rsqrt", "torch.Tensor.mean"} <= {part.symbol.name for part in norm.subsymbols}
    start = text.index("norm(", text.index("def computation"))
    assert "[triton]" in text[start : start + 200]
    assert "#   " in text[start : start + 400]
    assert "torch.rsqrt(" in text[start : start + 800]


def test_a_model_is_trained_with_eagers_gradients() -> None:
    loaded = sample("llama")
    inputs = inputs_for(loaded, **SIZES, labels=True)
    compiled = compiled_with_triton(loaded.model)
    assert_same(*(gradients(model, loaded.model, inputs) for model in (compiled, loaded.model)))
    assert claimed(compiled) == {**DECODER, "next_token_loss": 1}


@pytest.mark.parametrize("training", [False, True])
def test_a_single_program_with_our_kernels_serves_all_lengths(training: bool) -> None:
    """No kernel depends on its launch sizes, so the executor adds no constraint."""
    loaded = sample("llama")
    compiled = thunder.jit(loaded.model, executors=["triton"], cache="symbolic values")
    for batch, seq in ((2, 3), (1, 5)):
        inputs = inputs_for(loaded, batch=batch, seq=seq, labels=training)
        if training:
            assert_same(*(gradients(model, loaded.model, inputs) for model in (compiled, loaded.model)))
        else:
            with torch.no_grad():
                assert_same(compiled(**inputs), loaded.model(**inputs))
    assert DECODER.items() <= claimed(compiled).items()
    assert thunder.cache_misses(compiled) == 1
    assert not [
        str(constraint) for constraint in thunder.last_program(compiled).constraints if "triton" in str(constraint)
    ]


@pytest.mark.parametrize("count", [{}, {"num_items_in_batch": torch.tensor(3)}], ids=["mean", "of a Trainer"])
def test_the_head_joins_the_loss_if_the_logits_are_unread(count: dict[str, Any]) -> None:
    loaded = sample("llama", "bfloat16")
    inputs = {**inputs_for(loaded, **SIZES, labels=True), **count}
    compiled = compiled_with_triton(lambda **inputs: loaded.model(**inputs).loss)
    with torch.no_grad():
        ours, eager = compiled(**inputs), loaded.model(**inputs).loss
    assert ours.dtype == eager.dtype == torch.float32
    assert_close(ours, eager, torch.bfloat16)
    assert claimed(compiled)["linear_summed_next_token_loss" if count else "linear_next_token_loss"] == 1


class LossAlone(torch.nn.Module):
    """A model that returns its loss alone, as a Trainer reads it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Any) -> CausalLMOutput:
        return CausalLMOutput(loss=self.model(**batch).loss)


@pytest.mark.parametrize("count", [{}, {"num_items_in_batch": torch.tensor(3)}], ids=["mean", "of a Trainer"])
def test_a_model_that_returns_its_loss_alone_is_trained_without_logits(count: dict[str, Any]) -> None:
    loaded = sample("llama")
    model = LossAlone(loaded.model)
    inputs = {**inputs_for(loaded, **SIZES, labels=True), **count}
    compiled = compiled_with_triton(model)
    assert_same(*(gradients(trained, loaded.model, inputs) for trained in (compiled, model)))
    assert claimed(compiled)["linear_summed_next_token_loss" if count else "linear_next_token_loss"] == 1


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")], ids=str)
def test_t5s_norm_is_claimed_if_it_rounds_like_our_kernel(dtypes: tuple[str, str]) -> None:
    x, weight = draw(3, 5, dtype=getattr(torch, dtypes[0])), draw(5, dtype=getattr(torch, dtypes[1]), seed=1)

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = hugging_face.rms_norm_of_t5(x, weight, 1e-6)
        return found

    compiled = compiled_with_triton(program)
    assert_close(compiled(x, weight), program(x, weight))
    assert claimed(compiled) == ({"norm": 1} if dtypes[0] == dtypes[1] else {})


def test_geglu_and_the_loss_of_rows_are_claimed() -> None:
    def program(gate: torch.Tensor, up: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional.gelu(gate) * up, labels, ignore_index=-100)

    compiled = compiled_with_triton(program)
    arguments = draw(3, 5), draw(3, 5, seed=1), torch.tensor([2, -100, 0])
    assert_close(compiled(*arguments), program(*arguments))
    assert claimed(compiled) == {"geglu": 1, "loss": 1}


def test_float64_inputs_are_not_claimed() -> None:
    def program(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(gate) * up

    compiled = compiled_with_triton(program)
    compiled(draw(3, 5).double(), draw(3, 5).double())
    assert claimed(compiled) == {}


def test_every_pattern_but_one_has_a_kernel() -> None:
    patterns = {value for value in vars(hugging_face).values() if isinstance(value, Pattern)}
    assert {each.pattern for each in CLAIMS} == patterns - {hugging_face.gelu_tanh}
