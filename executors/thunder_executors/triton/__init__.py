"""Thunder's Triton kernels on CUDA: norms, rotary embedding, attention of a token, gated activations, losses, and
quantization.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton
from torch.nn import functional

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_executors.triton import (
    cached_rotary,
    cross_entropy,
    gated,
    linear_cross_entropy,
    normalized_linear,
    quantize,
    quantized_linear,
    rms_norm,
    rotary,
)
from thunder_executors.triton.ahead import cubins, device_code
from thunder_executors.triton.attention import decode_attention
from thunder_executors.triton.attention.calls import claim_cache_attention
from thunder_executors.triton.cache_writes import join_cache_writes
from thunder_executors.triton.driver import keep
from thunder_executors.triton.hugging_face import CLAIMS
from thunder_executors.triton.launch import INTERPRETED
from thunder_executors.triton.norm_products import join_norm_products
from thunder_executors.triton.operations import OPERATORS
from thunder_executors.triton.products import linear
from thunder_executors.triton.products.linear_products import claim_linear_layers
from thunder_executors.triton.tensors import is_supported
from thunder_executors.triton.weights import claim_products

KERNELS = (
    rms_norm,
    rotary,
    cached_rotary,
    gated,
    cross_entropy,
    linear_cross_entropy,
    quantize,
    quantized_linear,
    normalized_linear,
    linear,
    decode_attention,
)


@dataclass(eq=False)
class Triton(OperatorExecutor):
    """Claims functions of PyTorch, and patterns of transformers models, for which it has a kernel, on CUDA tensors."""

    before: ClassVar[tuple[str, ...]] = ("sdpa", "nvfuser", "inductor")
    name: str = "triton"

    @property
    def claims(self) -> str:
        """The replaced patterns and functions of PyTorch, and the available operations."""
        return f"{super().claims} on CUDA, with Triton {triton.__version__}; operations: {', '.join(OPERATORS)}"

    def missing(self) -> str | None:
        """Return the reason why there is no GPU; None if there is one, or with Triton's interpreter."""
        return None if INTERPRETED else Cuda().missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return None, because Triton compiles for every GPU; under its interpreter, the reason why it cannot."""
        return "TRITON_INTERPRET is set, and Triton's interpreter cannot compile" if INTERPRETED else None

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with kernels in place of the operations that they compute, and of products if faster."""
        name, budget = self.name, TuningBudget()
        claimed = claim_products(super().claim_all(claim_cache_attention(trace, name)), name)
        layers = claim_linear_layers(join_cache_writes(claimed, name), name, budget, after_norms=False)
        return claim_linear_layers(join_norm_products(layers, name), name, budget, after_norms=True)

    def device_code(self, trace: Trace, target: str) -> Sequence[DeviceCode]:
        """Return the cubins of the kernels that the executor's bound symbols of a trace launch."""
        return device_code(trace, self.name, target)

    def keep(self, kernels: Iterable[DeviceCode]) -> None:
        """Store cubins: a launch with the specialization of a cubin runs the cubin instead of compiling the kernel."""
        keep(cubins(kernels))


EXECUTOR = Triton()

for claim in CLAIMS:
    EXECUTOR.replaces(claim.pattern, supports=claim.supports)(claim.function)


def argument(bsym: BoundSymbol, position: int, name: str, default: Any = None) -> Any:
    """Return an argument of a call, passed by position or by name."""
    return bsym.args[position] if len(bsym.args) > position else bsym.kwargs.get(name, default)


def is_over_rows(bsym: BoundSymbol) -> bool:
    """Whether an RMSNorm is over the last dimension only, with an explicit epsilon."""
    weight = argument(bsym, 2, "weight")
    return (
        is_supported(argument(bsym, 0, "input"))
        and (weight is None or is_supported(weight))
        and len(argument(bsym, 1, "normalized_shape")) == 1
        and isinstance(argument(bsym, 3, "eps"), float)
    )


def takes_labels(bsym: BoundSymbol) -> bool:
    """Whether a cross-entropy takes rows of logits with one label each, without weights and label smoothing."""
    logits, labels = argument(bsym, 0, "input"), argument(bsym, 1, "target")
    unusual = (
        argument(bsym, 2, "weight"),
        argument(bsym, 3, "size_average"),
        argument(bsym, 5, "reduce"),
        argument(bsym, 7, "label_smoothing", 0.0) or None,
    )
    return (
        is_supported(logits)
        and len(logits.shape) == 2
        and isinstance(labels, TensorProxy)
        and len(labels.shape) == 1
        and labels.dtype == torch.int64
        and unusual == (None, None, None, None)
    )


@EXECUTOR.implements(functional.rms_norm, supports=is_over_rows)
def norm(
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Compute PyTorch's rms_norm over the last dimension."""
    result: torch.Tensor = rms_norm.rms_norm(input, weight, eps)
    return result


@EXECUTOR.implements(functional.cross_entropy, supports=takes_labels)
def loss(
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    target: torch.Tensor,
    weight: None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Compute PyTorch's cross_entropy of rows of logits."""
    result: torch.Tensor = cross_entropy.cross_entropy(input, target, ignore_index, reduction)[0]
    return result
