"""Base classes of quantized layers, by the way in which they quantize the rows of a weight.

The codes and their scales are buffers, so no optimizer changes them. The property `weight` computes the weight that
they represent, for models that read the weight or its dtype.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thunder_core.backend.quantization.integers import column_factors, quantize_rows, rotate, rotation
from thunder_core.foundation.errors import NothingToTrain

# For tensor parallelism: maps the name of a layer's tensor to the dimension of the tensor that has the rows of the
# weight, and the dimension that has its columns. None means that the tensor has no such dimension.
Divisions = Mapping[str, tuple[int | None, int | None]]
TRAIN_QUANTIZED = (
    "train adapters: use the recipe nf4-lora, or add adapters (such as PEFT's LoRA) to the model and freeze the other "
    "parameters before you compile it with int8-weight-only or int4-weight-only; to train all weights, use bf16; for "
    "inference, call model.eval() first"
)
GROUP_SIZES = (64, 32, 16)  # the group sizes to try, in this order, if none is set


@dataclass(frozen=True)
class LayerSettings:
    """The settings of a layer: the columns of a group, and the rank and scale of a trained adapter."""

    group_size: int = GROUP_SIZES[0]
    rank: int = 8
    alpha: float = 16.0


class QuantizedLayer(torch.nn.Module):
    """A layer with a quantized weight (rows, columns); `dtype` is the dtype of the float weight.

    If `is_empty` is set, the buffers have their shapes and no values yet, and the weight's values are not read.
    `importance` is the mean square of each column's inputs, which weights errors. `shared` are the buffers of a layer
    with the same weight and the same `quantize`, which the new layer uses too.
    """

    codes: Tensor
    scales: Tensor
    in_groups: ClassVar[bool] = False
    divisions: ClassVar[Divisions] = {}  # empty for a layer that cannot be divided

    def __init__(
        self,
        weight: Tensor,
        settings: LayerSettings,
        *,
        importance: Tensor | None = None,
        is_empty: bool = False,
        shared: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.rows, self.columns = weight.shape
        self.settings = settings
        self.dtype = weight.dtype
        for name, tensor in (shared or self._buffers_of(weight.detach(), importance, is_empty)).items():
            self.register_buffer(name, tensor)

    def _buffers_of(self, weight: Tensor, importance: Tensor | None, is_empty: bool) -> Mapping[str, Tensor]:
        if not is_empty:
            return self.quantize(weight, importance)
        described = self.quantize(weight.to("meta"), importance)
        return {name: torch.empty_like(tensor, device=weight.device) for name, tensor in described.items()}

    @abstractmethod
    def quantize(self, weight: Tensor, importance: Tensor | None) -> Mapping[str, Tensor]:
        """Quantize the float weight, and return the layer's buffers by name."""

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The weight that the codes represent, in the dtype of the float weight."""

    @property
    def weight_bytes(self) -> int:
        """The size of the float weight in bytes."""
        return self.rows * self.columns * self.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """The size of the codes with their scales in bytes."""
        return sum(tensor.nbytes for tensor in self.buffers(recurse=False))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLayer:
        """Apply `fn` to codes and scales, but keep their dtypes, which determine the memory traffic."""
        dtypes = {name: tensor.dtype for name, tensor in self.named_buffers(recurse=False)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, dtype in dtypes.items():
            self._buffers[name] = self.get_buffer(name).to(dtype)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return self

    def extra_repr(self) -> str:
        """Return the sizes of the weight, and of its groups."""
        groups = f", group_size={self.settings.group_size}" if self.in_groups else ""
        return f"rows={self.rows}, columns={self.columns}{groups}"


def require_trained(model: torch.nn.Module, recipe: str) -> None:
    """Raise `NothingToTrain` for a model in training mode with quantized weights and without trained parameters."""
    if not model.training or any(parameter.requires_grad for parameter in model.parameters()):
        return
    layer = next((module for module in model.modules() if isinstance(module, QuantizedLayer)), None)
    if layer is not None:
        raise NothingToTrain(
            f"the weights of this {type(model).__name__} are quantized ({type(layer).__name__}) and frozen, so the "
            f"recipe {recipe} has no gradients to reduce",
            fix=TRAIN_QUANTIZED,
        )


class ScaledRowsLayer(QuantizedLayer):
    """A weight of codes with one scale for each row."""

    code_dtype: ClassVar[torch.dtype] = torch.int8

    def quantize(self, weight: Tensor, importance: Tensor | None) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return codes (rows, columns) and scales (rows,)."""
        return self._scale(weight, lambda rows: rows)

    def _scale(self, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Mapping[str, Tensor]:
        """Return the codes and scales of the rows of a weight after `change` has changed the rows."""
        codes, scales = quantize_rows(weight, self.code_dtype, change)
        return {"codes": codes, "scales": scales}

    @property
    def weight(self) -> Tensor:
        """The codes times the scales of their rows."""
        return (self.codes.float() * self.scales.float()[:, None]).to(self.dtype)


class BalancedColumnsLayer(ScaledRowsLayer):
    """A weight whose columns were divided by `factors` before its rows were scaled."""

    factors: Tensor

    def quantize(self, weight: Tensor, importance: Tensor | None) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return codes (rows, columns), scales (rows,) and factors (columns,)."""
        factors = column_factors(weight)
        return {**self._scale(weight, lambda rows: rows / factors), "factors": factors}

    @property
    def weight(self) -> Tensor:
        """The codes times the scales of their rows and the factors of their columns."""
        return (self.codes.float() * self.scales.float()[:, None] * self.factors.float()).to(self.dtype)


class RotatedRowsLayer(ScaledRowsLayer):
    """A weight whose rows were rotated before they were scaled, like the inputs that it is multiplied with."""

    def quantize(self, weight: Tensor, importance: Tensor | None) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return codes (rows, columns) and scales (rows,)."""
        return self._scale(weight, lambda rows: self._rotate(rows.float()))

    @property
    def weight(self) -> Tensor:
        """The codes times the scales of their rows, rotated back."""
        return self._rotate(self.codes.float() * self.scales.float()[:, None]).to(self.dtype)

    def _rotate(self, weight: Tensor) -> Tensor:
        return rotate(weight, rotation(self.columns).to(weight.device))


class BFloat16Layer(QuantizedLayer):
    """A weight in bfloat16."""

    def quantize(self, weight: Tensor, importance: Tensor | None) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return the rounded weight."""
        return {"codes": weight.bfloat16()}

    @property
    def weight(self) -> Tensor:
        """The rounded weight, in the dtype of the float weight."""
        return self.codes.to(self.dtype)
