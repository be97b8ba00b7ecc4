"""Patterns of the models of transformers, and Thunder's operations that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from thunder_core.backend.patterns import hugging_face
from thunder_core.backend.patterns.pattern import Pattern
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.triton.cross_entropy import cross_entropy
from thunder_executors.triton.gated import gated
from thunder_executors.triton.linear_cross_entropy import linear_cross_entropy
from thunder_executors.triton.rms_norm import add_rms_norm, rms_norm
from thunder_executors.triton.rotary import rotary
from thunder_executors.triton.tensors import is_cuda_tensor, is_supported

Tensors = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Claim:
    """A pattern, the function that computes it with Thunder's kernels, and the condition for bound symbols."""

    pattern: Pattern
    function: Callable[..., Any]
    supports: Callable[[BoundSymbol], bool]


def takes_all(bsym: BoundSymbol) -> bool:
    """Whether Thunder's kernels support every tensor of a bound symbol."""
    return all(is_supported(proxy) for proxy in bsym.inputs)


def is_in_one_dtype(bsym: BoundSymbol) -> bool:
    """Whether Thunder's kernels support every tensor of a bound symbol, and all have one dtype."""
    return takes_all(bsym) and len({proxy.dtype for proxy in proxies(bsym)}) == 1


def is_in_float32(bsym: BoundSymbol) -> bool:
    """Whether all tensors are float32, so that roundings in between do not matter."""
    return takes_all(bsym) and {proxy.dtype for proxy in proxies(bsym)} == {torch.float32}


def takes_labels(bsym: BoundSymbol) -> bool:
    """Whether the last tensor is int64 labels, and Thunder's kernels support the others."""
    *others, labels = bsym.inputs
    return is_cuda_tensor(labels, torch.int64) and all(is_supported(proxy) for proxy in others)


def proxies(bsym: BoundSymbol) -> list[TensorProxy]:
    """Return the tensors that a bound symbol reads and returns."""
    return [proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy)]


def norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute RMSNorm with the rounding of Llama and T5."""
    result: Tensor = rms_norm(hidden, weight, eps)
    return result


def add_norm(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensors:
    """Compute RMSNorm of a sum, and the sum."""
    normalized, total = add_rms_norm(hidden, residual, weight, eps)
    return normalized, total


def norm_of_gemma(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute RMSNorm of Gemma, entirely in float32, so that the kernel rounds no intermediate value."""
    result: Tensor = rms_norm(hidden.float(), 1.0 + weight.float(), eps)
    return result.type_as(hidden)


def add_norm_of_gemma(hidden: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensors:
    """Compute RMSNorm of Gemma of a sum in float32, and the sum."""
    return add_norm(hidden, residual, 1.0 + weight, eps)


def turn(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Tensors:
    """Compute the rotary embedding of query and key in one launch."""
    turned_query, turned_key = rotary(query, key, cos, sin)
    return turned_query, turned_key


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `silu(gate) * up`."""
    result: Tensor = gated(gate, up, "silu")
    return result


def packed_swiglu(gate_and_up: Tensor) -> Tensor:
    """Return `silu(gate) * up` of the two halves of a tensor, which are not copied."""
    gate, up = gate_and_up.chunk(2, dim=-1)
    return swiglu(gate, up)


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`."""
    result: Tensor = gated(gate, up, "gelu")
    return result


def geglu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, approximated by tanh."""
    result: Tensor = gated(gate, up, "gelu_tanh")
    return result


def shift(labels: Tensor, ignored: int) -> Tensor:
    """Return the next label for each position; the last position has the ignored label."""
    return functional.pad(labels, (0, 1), value=ignored)[..., 1:].reshape(-1)


def loss(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """Return the mean cross-entropy of rows of logits."""
    result: Tensor = cross_entropy(logits, labels, ignored, "mean")[0]
    return result


def next_token_loss(logits: Tensor, labels: Tensor, vocabulary: int, ignored: int, reduction: str = "mean") -> Tensor:
    """Return the loss of a language model, in float32: the kernel widens the logits as it reads them."""
    rows = logits.view(-1, vocabulary)
    result: Tensor = cross_entropy(rows, shift(labels, ignored), ignored, reduction, in_float32=True)[0]
    return result


def linear_next_token_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, vocabulary: int, ignored: int, reduction: str = "mean"
) -> Tensor:
    """Return the loss of a language model from its last hidden states, without materializing all logits."""
    result: Tensor = linear_cross_entropy(hidden.flatten(0, -2), weight, shift(labels, ignored), ignored, reduction)[0]
    return result


def summed_next_token_loss(logits: Tensor, labels: Tensor, vocabulary: int, ignored: int) -> Tensor:
    """Return the sum of the losses of all tokens, in float32."""
    return next_token_loss(logits, labels, vocabulary, ignored, "sum")


def linear_summed_next_token_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, vocabulary: int, ignored: int
) -> Tensor:
    """Return the sum of the losses of all tokens from the last hidden states, without materializing all logits."""
    return linear_next_token_loss(hidden, weight, labels, vocabulary, ignored, "sum")


# Longer patterns come before shorter patterns. Gemma's norm comes before Llama's: without conversions of dtypes, it
# contains Llama's.
CLAIMS = (
    Claim(hugging_face.add_rms_norm_of_gemma, add_norm_of_gemma, is_in_float32),
    Claim(hugging_face.rms_norm_of_gemma, norm_of_gemma, takes_all),
    Claim(hugging_face.add_rms_norm, add_norm, takes_all),
    Claim(hugging_face.rms_norm, norm, takes_all),
    Claim(hugging_face.rms_norm_of_t5, norm, is_in_one_dtype),
    Claim(hugging_face.rotary_embedding, turn, takes_all),
    Claim(hugging_face.packed_swiglu, packed_swiglu, takes_all),
    Claim(hugging_face.swiglu, swiglu, takes_all),
    Claim(hugging_face.geglu, geglu, takes_all),
    Claim(hugging_face.geglu_tanh, geglu_tanh, takes_all),
    Claim(hugging_face.linear_next_token_loss, linear_next_token_loss, takes_labels),
    Claim(hugging_face.next_token_loss, next_token_loss, takes_labels),
    Claim(hugging_face.linear_summed_next_token_loss, linear_summed_next_token_loss, takes_labels),
    Claim(hugging_face.summed_next_token_loss, summed_next_token_loss, takes_labels),
    Claim(hugging_face.cross_entropy, loss, takes_labels),
)
