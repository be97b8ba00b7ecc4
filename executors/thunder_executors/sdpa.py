"""Scaled dot product attention on CUDA: the fastest backend of PyTorch that supports the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from thunder_core.backend.claiming.executor import Executor
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

# On Hopper, cuDNN's kernels come first; PyTorch by default prefers FlashAttention 2, written for Ampere.
PRIORITY = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
_LOCK = RLock()
# The operations of the fused backends.
KERNELS = {
    f"torch.ops.aten._scaled_dot_product_{name}_attention": backend
    for name, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
        ("efficient", SDPBackend.EFFICIENT_ATTENTION),
    )
}
# Whether a backend supports the inputs, by PyTorch's own rules; math supports all inputs.
RULES: dict[SDPBackend, Callable[[SDPAParams], bool]] = {
    SDPBackend.CUDNN_ATTENTION: can_use_cudnn_attention,
    SDPBackend.FLASH_ATTENTION: can_use_flash_attention,
    SDPBackend.EFFICIENT_ATTENTION: can_use_efficient_attention,
    SDPBackend.MATH: lambda params: True,
}


def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """PyTorch's scaled_dot_product_attention, with the backends tried in the order of `PRIORITY`."""
    return _attention_from(SDPBackend.CUDNN_ATTENTION, args, kwargs)


def cudnn_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Attention by cuDNN, if it supports the inputs."""
    return _attention_from(SDPBackend.CUDNN_ATTENTION, args, kwargs)


def flash_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """FlashAttention, if it is the first backend that supports the inputs."""
    return _attention_from(SDPBackend.FLASH_ATTENTION, args, kwargs)


def efficient_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Memory-efficient attention, if it is the first backend that supports the inputs."""
    return _attention_from(SDPBackend.EFFICIENT_ATTENTION, args, kwargs)


def math_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Attention without a fused kernel, if no fused kernel supports the inputs."""
    return _attention_from(SDPBackend.MATH, args, kwargs)


def _attention_from(first: SDPBackend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Compute attention with the backends from `first` on.

    The earlier backends are known not to support such inputs. PyTorch's choice of backends is a setting of the process,
    so only one thread at a time changes the setting.
    """
    with _LOCK, sdpa_kernel(list(PRIORITY[PRIORITY.index(first) :]), set_priority=True):
        return scaled_dot_product_attention(*args, **kwargs)


FUNCTIONS: dict[SDPBackend | None, Callable[..., torch.Tensor]] = {
    None: attention,
    SDPBackend.CUDNN_ATTENTION: cudnn_attention,
    SDPBackend.FLASH_ATTENTION: flash_attention,
    SDPBackend.EFFICIENT_ATTENTION: efficient_attention,
    SDPBackend.MATH: math_attention,
}


def backend_for(bsym: BoundSymbol) -> SDPBackend | None:
    """Return the backend for a bound symbol's inputs on this machine's GPU; None if there is no GPU.

    Returns None for symbolic sizes too, because the choice depends on the sizes.
    """
    if Cuda().missing() or environment_of(bsym.inputs) is not None:
        return None
    arguments: dict[str, Any] = dict(zip(NAMES, bsym.args, strict=False)) | dict(bsym.kwargs)
    with FakeTensorMode():
        tensors: list[Any] = [_like(arguments.get(name)) for name in NAMES[:4]]
    rest = (arguments.get("dropout_p", 0.0), arguments.get("is_causal", False), arguments.get("enable_gqa", False))
    params: SDPAParams = SDPAParams(*tensors, *rest)  # type: ignore[call-arg]
    return next(backend for backend in PRIORITY if RULES[backend](params))


def choice_of_pytorch(bsym: BoundSymbol) -> SDPBackend | None:
    """Return the fused backend that PyTorch chose while tracing; None for math, and on another device."""
    names = (operation.symbol.name.rpartition(".")[0] for operation in bsym.at_level("aten"))
    return next((KERNELS[name] for name in names if name in KERNELS), None)


def _like(proxy: TensorProxy | None) -> torch.Tensor | None:
    """Return a tensor with the metadata of a proxy and no data; None for None."""
    if proxy is None:
        return None
    fake = torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
    return fake.requires_grad_(proxy.requires_grad)


@dataclass(frozen=True)
class ScaledDotProductAttention(Executor):
    """Claims attention on CUDA tensors."""

    symbolic_sizes: ClassVar[bool] = True
    before: ClassVar[tuple[str, ...]] = ("triton", "nvfuser", "inductor")
    name: str = "sdpa"

    @property
    def claims(self) -> str:
        """The claimed operation: attention on CUDA."""
        return f"{ATTENTION} on CUDA: cuDNN, flash, memory-efficient or math, the first that supports the inputs"

    def missing(self) -> str | None:
        """Return the reason why there is no GPU; None if there is one."""
        return Cuda().missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return None: the kernels are PyTorch's, where the program will run."""
        return None

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """Return the bound symbol as a call of its backend, which for a GPU elsewhere is chosen there.

        Returns None if PyTorch chooses that backend by default, so that the call may be part of a region.
        """
        on_cuda = all(p.device.type == "cuda" for p in bsym.inputs if isinstance(p, TensorProxy))
        if bsym.symbol.name != ATTENTION or not on_cuda:
            return None
        backend = backend_for(bsym)
        if backend is not None and backend is choice_of_pytorch(bsym):
            return None
        function = FUNCTIONS[backend]
        return replace(bsym, symbol=Symbol(f"{__name__}.{function.__name__}", function), executor=self.name)


EXECUTOR = ScaledDotProductAttention()
