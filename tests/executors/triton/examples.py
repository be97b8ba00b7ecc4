"""For each operation, example calls with different kernels: they are compiled for a GPU, and run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from thunder_executors.triton.products.linear_products import TILES, VECTORS, WIDEST

Make = Callable[..., torch.Tensor]
ROWS, WIDTH, WORDS = 24, 256, 5120


def labels(make: Make) -> torch.Tensor:
    return make(ROWS, dtype=torch.int64)


def wide(make: Make, *shape: int) -> torch.Tensor:
    return make(*shape, dtype=torch.float32)


def heads(make: Make, count: int) -> torch.Tensor:
    return make(2, 12, count, 64).transpose(1, 2)


def gradient_of_norm(make: Make) -> Iterator[tuple[Any, ...]]:
    x, weight = make(ROWS, WIDTH), make(WIDTH)
    yield x, None, x, weight, 1e-6
    yield x, x, x, None, 1e-6


def weight_of_8_bits(make: Make) -> tuple[torch.Tensor, ...]:
    return make(80, WIDTH, dtype=torch.int8), make(80, dtype=torch.bfloat16)


def weight_of_4_bits(make: Make, groups: int) -> tuple[torch.Tensor, ...]:
    return make(2, WIDTH, 32, dtype=torch.uint8), make(groups, 80, 2, dtype=torch.bfloat16)


def decode_attention(make: Make) -> Iterator[tuple[Any, ...]]:
    cache = make(2, 2, 300, 64), make(2, 2, 300, 64)
    yield make(2, 2, 4, 64), *cache, make(2, 1, 1, 300) > 0, None, 0, 0.125
    yield make(2, 8, 1, 64), *cache, None, make(2, 1, dtype=torch.int64) + 70, -1, 0.125, True
    yield make(2, 2, 1, 37), make(2, 1, 9, 37), make(2, 1, 9, 100), make(1, 1, 1, 9), None, 0, 1.0


def linear(make: Make) -> Iterator[tuple[Any, ...]]:
    """Every tile that may be compared, with and without epilogues; float32 is multiplied without Tensor Cores."""
    weights = make(80, WIDTH), make(80), make(3, 80)
    for tile in VECTORS:
        yield make(3, WIDTH), weights[0], None, None, "", tile
        yield make(3, WIDTH), *weights, "", tile
    yield make(3, 37), make(5, 37), None, None, "gelu", VECTORS[0]
    for tile in {tile: None for tiles in TILES.values() for tile in tiles} if make(1).dtype.itemsize == 2 else ():
        yield make(3, WIDTH), weights[0], None, None, "", tile
        yield make(3, WIDTH), *weights, "gelu" if tile[1] <= WIDEST else "", tile
        yield make(3, 37), make(5, 37), None, None, "", tile


EXAMPLES: dict[str, Callable[[Make], Iterator[tuple[Any, ...]]]] = {
    "rms_norm": lambda make: iter([(make(ROWS, WIDTH), make(WIDTH), 1e-6), (make(ROWS, 37), None, 1e-6)]),
    "add_rms_norm": lambda make: iter([(make(ROWS, 5000), make(ROWS, 5000), make(5000), 1e-6)]),
    "rms_norm_input_gradient": gradient_of_norm,
    "rms_norm_weight_gradient": lambda make: iter(
        [(make(ROWS, WIDTH), make(ROWS, WIDTH), wide(make, ROWS), make(1).dtype)]
    ),
    "rotary": lambda make: iter([(heads(make, 8), heads(make, 2), make(1, 12, 64), make(1, 12, 64))]),
    "rotary_into_cache": lambda make: iter(
        [
            (
                *(heads(make, 8), heads(make, 2), heads(make, 2), make(1, 12, 64), make(1, 12, 64)),
                *(make(2, 2, 40, 64), make(2, 2, 40, 64), make(dtype=torch.int64)),
            )
        ]
    ),
    "rotary_gradient": lambda make: iter([(heads(make, 8), heads(make, 2), make(1, 12, 64), make(1, 12, 64))]),
    "gated": lambda make: iter(
        [(*make(ROWS, 2 * WIDTH).chunk(2, dim=-1), activation) for activation in ("silu", "gelu", "gelu_tanh")]
    ),
    "gated_gradient": lambda make: iter(
        [(make(ROWS, WIDTH),) * 3 + (activation,) for activation in ("silu", "gelu", "gelu_tanh")]
    ),
    "cross_entropy": lambda make: iter([(make(ROWS, WORDS), labels(make), -100, "mean")]),
    "cross_entropy_gradient": lambda make: iter(
        [(wide(make), make(ROWS, WORDS), labels(make), wide(make, ROWS), -100, "sum")]
    ),
    "linear_cross_entropy": lambda make: iter([(make(ROWS, WIDTH), make(WORDS, WIDTH), labels(make))]),
    "linear_cross_entropy_gradient": lambda make: iter(
        [(wide(make), make(ROWS, WIDTH), make(WORDS, WIDTH), labels(make), wide(make, ROWS) + 80)]
    ),
    "normalized_linear": lambda make: iter(
        [
            (make(1, WIDTH), None, make(WIDTH), 1e-6, make(80, WIDTH)),
            (make(1, WIDTH), make(1, WIDTH), make(WIDTH), 1e-6, *(make(80, WIDTH), make(48, WIDTH), make(16, WIDTH))),
            (make(2, 37), make(2, 37), None, 1e-6, make(5, 37), make(3, 37)),
        ]
    ),
    "normalized_gated": lambda make: iter(
        [
            (make(1, WIDTH), make(1, WIDTH), make(WIDTH), 1e-6, make(80, WIDTH), make(80, WIDTH), "silu"),
            (make(2, 37), None, None, 1e-6, make(5, 37), make(5, 37), "gelu"),
        ]
    ),
    "decode_attention": decode_attention,
    "linear": linear,
    "quantize_rows": lambda make: iter(
        [(make(ROWS, WIDTH), torch.int8), (make(ROWS, WIDTH).narrow(1, 1, 37), torch.float8_e4m3fn)]
    ),
    "int8_linear": lambda make: iter(
        [
            (make(3, WIDTH), *weight_of_8_bits(make), factors, tile)
            for factors in (None, make(WIDTH, dtype=torch.bfloat16))
            for tile in (16, 64)
        ]
    ),
    "int4_linear": lambda make: iter(
        [(make(3, WIDTH), *weight_of_4_bits(make, groups), tile) for groups in (4, 16) for tile in (16, 64)]
    ),
}


def empty_tensors(dtype: torch.dtype, device: str) -> Make:
    """Empty tensors of a dtype on a device. Under a FakeTensorMode the device need not exist."""

    def make(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return make


def random_tensors(dtype: torch.dtype, device: str) -> Make:
    """Random tensors of a dtype on a device; integers are zero."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (value if dtype.is_floating_point else torch.zeros(shape)).to(device, dtype)

    return make
