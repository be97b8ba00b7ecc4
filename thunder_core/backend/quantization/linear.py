"""Linear layers with quantized weights, which replace `torch.nn.Linear`.

Each layer approximates the float layer, up to the quantization error. The result has the dtype of the input.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from thunder_core.backend.quantization.input_rows import (
    Reduce,
    bfloat16_of,
    no_reduction,
    require_no_gradient,
    scale_rows,
    to_compute_dtype,
)
from thunder_core.backend.quantization.integers import (
    LARGEST_CODE,
    MAX_ROTATED_COLUMNS,
    dequantize_groups,
    pack,
    quantize_groups,
    unpack,
)
from thunder_core.backend.quantization.layers import (
    BalancedColumnsLayer,
    BFloat16Layer,
    Divisions,
    LayerSettings,
    QuantizedLayer,
    RotatedRowsLayer,
    ScaledRowsLayer,
)
from thunder_core.backend.quantization.normal_float import dequantize_normal, quantize_normal
from thunder_core.backend.quantization.products import OPERATIONS

int8_product, int4_product = OPERATIONS["int8_product"], OPERATIONS["int4_product"]
normal_product, integer_product = OPERATIONS["normal_product"], OPERATIONS["integer_product"]
rotated_rows, fp8_product = OPERATIONS["rotated_rows"], OPERATIONS["fp8_product"]
BY_ROWS: Divisions = {"codes": (0, 1), "scales": (0, None), "bias": (0, None)}


class QuantizedLinear(QuantizedLayer):
    """A layer that multiplies rows (..., columns) by its weight, and adds its bias, which is not quantized.

    If `sums_exactly` is set, the sum of the products of several ranks equals the result of one process, bit by bit.
    """

    sums_exactly: ClassVar[bool] = False

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        settings: LayerSettings,
        *,
        importance: Tensor | None = None,
        is_empty: bool = False,
        shared: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(weight, settings, importance=importance, is_empty=is_empty, shared=shared)
        self.in_features, self.out_features = self.columns, self.rows
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach(), requires_grad=False)

    @abstractmethod
    def product(self, x: Tensor, reduce: Reduce = no_reduction) -> Tensor:
        """Return rows (n, columns) times the weight, in any floating-point dtype.

        If each rank has some columns, `reduce` is the reduction over the ranks, which sums the products.
        """

    @property
    def inseparable_columns(self) -> int:
        """The number of adjacent columns that must be on one rank, because they are quantized together."""
        return 1

    def part(self, name: str, dimension: int, start: int, stop: int) -> Tensor | None:
        """Return the named tensor for some rows of the weight (dimension 0) or some columns (dimension 1)."""
        tensor: Tensor | None = getattr(self, name)
        own = self.divisions[name][dimension]
        if tensor is None or own is None:
            return tensor
        divisor = (self.rows, self.columns)[dimension] // tensor.shape[own]
        return tensor.narrow(own, start // divisor, (stop - start) // divisor)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the result (..., rows of the weight), in the dtype of `input`."""
        result = self.product(input.reshape(-1, self.columns)).to(input.dtype).view(*input.shape[:-1], self.rows)
        return result if self.bias is None else result + self.bias.to(input.dtype)


class Int8WeightOnlyLinear(BalancedColumnsLayer, QuantizedLinear):
    """An 8-bit weight with a scale for each row and a factor for each column; inputs are not quantized."""

    divisions: ClassVar[Divisions] = {**BY_ROWS, "factors": (None, 0)}

    def product(self, x: Tensor, reduce: Reduce = no_reduction) -> Tensor:
        """Compute the product by the operation `thunder.int8_product`."""
        return reduce(int8_product(to_compute_dtype(x) * self.factors, self.codes, self.scales), "sum")


class Int8DynamicLinear(RotatedRowsLayer, QuantizedLinear):
    """Weight and input rows in 8 bits each, with a scale for each row; input rows are scaled at each call.

    Both are rotated first. Products of integers are exact, and processors have instructions for them (VNNI, AMX).
    """

    divisions: ClassVar[Divisions] = BY_ROWS
    sums_exactly = True

    @property
    def inseparable_columns(self) -> int:
        """The number of columns that are rotated together."""
        return math.gcd(self.columns, MAX_ROTATED_COLUMNS)

    def product(self, x: Tensor, reduce: Reduce = no_reduction) -> Tensor:
        """Compute the product by `thunder.integer_product`; raise `NotDifferentiable` if a gradient is needed."""
        require_no_gradient(x, "to 8 bits (int8-dynamic)")
        rows, scales = scale_rows(rotated_rows(to_compute_dtype(x)), LARGEST_CODE[torch.int8], reduce)
        result = reduce(integer_product(rows.round().to(torch.int8), self.codes), "sum")
        return result.to(rows.dtype) * scales * self.scales.float()


class FP8Linear(ScaledRowsLayer, QuantizedLinear):
    """Weight and input rows as 8-bit floats (E4M3), with a scale for each row.

    On CUDA, `thunder.fp8_product` multiplies the codes, by instructions for 8-bit floats if the GPU has them. Otherwise
    the same codes are multiplied as bfloat16 numbers, which represent them exactly; a float64 reference multiplies in
    float64.
    """

    code_dtype = torch.float8_e4m3fn
    divisions: ClassVar[Divisions] = BY_ROWS

    def product(self, x: Tensor, reduce: Reduce = no_reduction) -> Tensor:
        """Scale rows to the range of E4M3, multiply, and scale back.

        Raise `NotDifferentiable` if a gradient is needed.
        """
        largest = LARGEST_CODE[torch.float8_e4m3fn]
        require_no_gradient(x, "to 8-bit floats (fp8)")
        rows, scales = scale_rows(x, largest, reduce)
        codes = rows.clamp(-largest, largest).to(torch.float8_e4m3fn)
        if x.device.type == "cuda" and x.dtype != torch.float64:
            result: Tensor = fp8_product(codes, scales, self.codes, self.scales)
        else:
            weight = self.codes.double() if x.dtype == torch.float64 else bfloat16_of(self.codes)
            result = functional.linear(to_compute_dtype(codes, x.dtype), weight).to(rows.dtype)
            result = result * scales * self.scales.float()
        return reduce(result, "sum")


class Int4WeightOnlyLinear(QuantizedLinear):
    """A 4-bit weight with a scale and a zero point for each group of columns; inputs are not quantized."""

    scales_and_zeros: Tensor
    in_groups = True
    divisions: ClassVar[Divisions] = {"codes": (0, 1), "scales_and_zeros": (1, 0), "bias": (0, None)}

    def quantize(self, weight: Tensor, importance: Tensor | None) -> Mapping[str, Tensor]:
        """Return packed codes (blocks, columns, 32), and scales and zeros (groups, rows, 2)."""
        codes, scales_and_zeros = quantize_groups(weight, self.settings.group_size, importance)
        return {"codes": pack(codes), "scales_and_zeros": scales_and_zeros}

    @property
    def weight(self) -> Tensor:
        """The codes times the scales of their groups, plus the zeros."""
        return dequantize_groups(unpack(self.codes)[: self.rows], self.scales_and_zeros, torch.float32).to(self.dtype)

    @property
    def inseparable_columns(self) -> int:
        """The number of columns of a group."""
        return self.settings.group_size

    def part(self, name: str, dimension: int, start: int, stop: int) -> Tensor | None:
        """Return the named tensor for some rows or columns of the weight; rows of codes are packed again."""
        if name == "codes" and dimension == 0:
            return pack(unpack(self.codes)[start:stop])
        return super().part(name, dimension, start, stop)

    def product(self, x: Tensor, reduce: Reduce = no_reduction) -> Tensor:
        """Compute the product by the operation `thunder.int4_product`."""
        return reduce(int4_product(to_compute_dtype(x), self.codes, self.scales_and_zeros), "sum")


class NormalFloatLoRALinear(QuantizedLinear):
    """A frozen weight in NormalFloat, and two trained low-rank matrices: QLoRA (arXiv:2305.14314).

    The result is `x W' + (alpha / rank) x A' B'`; B is initially zero, so that the layer initially equals the frozen
    layer.
    """

    in_groups = True

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        settings: LayerSettings,
        *,
        importance: Tensor | None = None,
        is_empty: bool = False,
        shared: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(weight, bias, settings, importance=importance, is_empty=is_empty, shared=shared)
        generator = torch.Generator(weight.device if weight.device.type != "meta" else "cpu").manual_seed(self.columns)
        narrow = torch.empty(settings.rank, self.columns, dtype=self.dtype, device=weight.device)
        bound = (3 / self.columns) ** 0.5  # LoRA's initialization: the uniform distribution has variance 1 / columns
        self.lora_a = torch.nn.Parameter(narrow if is_empty else narrow.uniform_(-bound, bound, generator=generator))
        self.lora_b = torch.nn.Parameter(torch.zeros(self.rows, settings.rank, dtype=self.dtype, device=weight.device))

    def quantize(self, weight: Tensor, importance: Tensor | None) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return codes (rows, columns / 2) and scales (rows, groups)."""
        codes, scales = quantize_normal(weight, self.settings.group_size)
        return {"codes": codes, "scales": scales}

    @property
    def weight(self) -> Tensor:
        """The values of the codes times the scales of their groups, without the trained matrices."""
        return dequantize_normal(self.codes, self.scales, self.dtype)

    def product(self, x: Tensor, reduce: Reduce = no_reduction) -> Tensor:
        """Compute the sum of the products by `thunder.normal_product` and by the two matrices."""
        adapted = functional.linear(functional.linear(x, self.lora_a.to(x.dtype)), self.lora_b.to(x.dtype))
        frozen: Tensor = normal_product(to_compute_dtype(x), self.codes, self.scales)
        return reduce(frozen.to(x.dtype) + adapted * (self.settings.alpha / self.settings.rank), "sum")


class BFloat16Linear(BFloat16Layer, QuantizedLinear):
    """A weight in bfloat16, multiplied by rows converted to bfloat16."""

    divisions: ClassVar[Divisions] = {"codes": (0, 1), "bias": (0, None)}

    def product(self, x: Tensor, reduce: Reduce = no_reduction) -> Tensor:
        """Multiply rows and weight in bfloat16.

        PyTorch's kernel chooses the accumulation, and rounds the result once.
        """
        return reduce(functional.linear(to_compute_dtype(x), to_compute_dtype(self.codes, x.dtype)), "sum")
