"""Flex attention: results and gradients match eager PyTorch for all score functions, masks and lengths."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as library
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import thunder_core as thunder

GENERATOR = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(2, 2, 5, 4, generator=GENERATOR) for _ in range(3))
HEADS = torch.randn(2, 4, 5, 4, generator=GENERATOR)
BIAS = torch.randn(2, 5, 5, generator=GENERATOR)
LENGTHS = torch.tensor([3, 5])
SLOPES = {"tanh": 0.5}


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def padded(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Each query of the first row has at least one key; in the second head, the first query has none."""
    return (i >= j) & (j < LENGTHS[b]) & (i >= h)


def relative(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + (i - j) * 0.1


def blocks(mask: Callable[..., Tensor], batch: int | None = None) -> Any:
    return create_block_mask(mask, batch, 2 if batch else None, 5, 5, "cpu")


CAUSAL, PADDED = blocks(causal), blocks(padded, 2)


def halves() -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return flex_attention(Q, K, V.double(), relative, PADDED)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "alone": lambda: flex_attention(Q, K, V),
    "score": lambda: flex_attention(Q, K, V, relative),
    "closure": lambda: flex_attention(Q, K, V, lambda s, b, h, i, j: torch.tanh(s) * SLOPES["tanh"] + BIAS[h, i, j]),
    "fixed items": lambda: flex_attention(Q, K, V, lambda s, b, h, i, j: s * BIAS[0, 1, 2] + BIAS[1][i, j]),
    "infinite": lambda: flex_attention(Q, K, V, lambda s, b, h, i, j: torch.where(i >= j, s, float("-inf"))),
    "mask": lambda: flex_attention(Q, K, V, block_mask=CAUSAL),
    "mask and score": lambda: flex_attention(Q, K, V, relative, PADDED),
    "mask made inside": lambda: flex_attention(Q, K, V, block_mask=blocks(padded, 2)),
    "masks joined": lambda: flex_attention(Q, K, V, block_mask=blocks(library.or_masks(causal, padded), 2)),
    "cropped mask": lambda: flex_attention(Q[:, :, :3], K, V, block_mask=CAUSAL._adjust(3, 5)),
    "grouped heads": lambda: flex_attention(HEADS, K, V, relative, enable_gqa=True),
    "shared batch": lambda: flex_attention(Q, K[:1], V[:1], block_mask=PADDED),
    "logsumexp": lambda: flex_attention(Q, K, V, block_mask=PADDED, return_aux=AuxRequest(lse=True)),
    "options": lambda: flex_attention(Q, K, V, scale=0.3, kernel_options={"BLOCK_M": 64, "PRESCALE_QK": True}),
    "half precision": lambda: flex_attention(Q.half(), K.half(), V.half(), relative),
    "double precision": lambda: flex_attention(Q.double(), K.double(), V.double(), relative),
    "other layout": lambda: flex_attention(*(tensor.transpose(1, 2) for tensor in (Q, K, V))),
    "twice": lambda: flex_attention(flex_attention(Q, K, V, relative), K, V, relative, CAUSAL),
}


def eager(program: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the result of the operator without Dynamo, which would be slow."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        return program()


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_match_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(PROGRAMS[name])
    expected = eager(PROGRAMS[name], monkeypatch)
    for _ in range(2):
        result = compiled()
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
    if isinstance(result, Tensor):
        assert result.stride() == expected.stride()
    assert thunder.cache_misses(compiled) == 1


def test_autocast_casts_the_arguments_of_the_operator() -> None:
    with warnings.catch_warnings(action="ignore"):
        expected = halves()
    result = thunder.jit(halves)()
    assert result.dtype is torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_gradients_reach_the_closure_of_the_score_function() -> None:
    """Eager PyTorch does not differentiate with respect to queries, keys and values on the CPU."""
    bias = BIAS.clone().requires_grad_()

    def program() -> Tensor:
        return flex_attention(Q, K, V, lambda s, b, h, i, j: s + bias[h, i, j] * bias[0, 0, 0], PADDED)

    with warnings.catch_warnings(action="ignore"):
        expected = program()
    result = thunder.jit(program)()
    gradients = (torch.autograd.grad(out.sin().sum(), bias)[0] for out in (result, expected))
    torch.testing.assert_close(*gradients)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        thunder.jit(flex_attention)(Q.clone().requires_grad_(), K, V)


def test_functions_and_their_reads_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(PROGRAMS["closure"])
    results = []
    for slope in (0.5, 2.0):
        monkeypatch.setitem(SLOPES, "tanh", slope)
        results.append(compiled())
        torch.testing.assert_close(results[-1], eager(PROGRAMS["closure"], monkeypatch), rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 2
    attend = thunder.jit(lambda score, mask: flex_attention(Q, K, V, score, mask))
    for score, mask in ((relative, CAUSAL), (relative, PADDED), (None, PADDED), (relative, CAUSAL)):
        expected = eager(lambda score=score, mask=mask: flex_attention(Q, K, V, score, mask), monkeypatch)
        torch.testing.assert_close(attend(score, mask), expected, rtol=0, atol=0)


def test_one_program_serves_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor, lengths: Tensor) -> Tensor:
        size = x.shape[2]
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (j < lengths[b]), 2, None, size, size, "cpu", 4)
        return flex_attention(x, x, x, relative, mask)

    compiled = thunder.jit(program, cache="symbolic values")
    for size in (5, 7, 9, 16):
        x, lengths = torch.randn(2, 2, size, 4, generator=GENERATOR), torch.tensor([size, 2])
        expected = eager(lambda x=x, lengths=lengths: program(x, lengths), monkeypatch)
        torch.testing.assert_close(compiled(x, lengths), expected, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@torch.no_grad()
def test_model_of_transformers_is_traced_without_the_functions_it_compiles() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=50)).eval()
    model.requires_grad_(False)
    ids, mask = torch.arange(18).view(2, 9), torch.ones(2, 9, dtype=torch.int64)
    mask[1, :3] = 0
    expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    model.set_attn_implementation("flex_attention")
    compiled = thunder.jit(model)
    for _ in range(2):
        result = compiled(input_ids=ids, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(result[mask == 1], expected[mask == 1])
    assert thunder.cache_misses(compiled) == 1


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception] | tuple[type[Exception], ...], str]] = {
    "heads": (lambda: flex_attention(HEADS, K, V), ValueError, "Try setting enable_gqa=True"),
    "length": (
        lambda: flex_attention(Q[:, :, :3], K, V, None, CAUSAL),
        (ValueError, RuntimeError),
        "for a larger length",
    ),
    "tuple": (lambda: flex_attention(Q, K, V, lambda s, *_: (s,)), TypeError, "where.. received an invalid"),
    "shape": (lambda: flex_attention(Q, K, V, lambda s, *_: s + BIAS), RuntimeError, "must match the size"),
    "value": (lambda: flex_attention(Q, K, V, lambda s, b, h, i, j: s * i.item()), RuntimeError, "calling .item"),
    "random": (lambda: flex_attention(Q, K, V, lambda s, *_: s + torch.rand(())), RuntimeError, "called random"),
    "maximum": (
        lambda: flex_attention(Q, K, V, return_aux=AuxRequest(max_scores=True)),
        NotImplementedError,
        "max scores is not supported on CPU",
    ),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", ERRORS)
def test_errors_match_eager(name: str) -> None:
    program, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        thunder.jit(program)()
