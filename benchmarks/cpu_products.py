"""Matrix products on the CPU by each way that PyTorch offers, and by Thunder's kernels.

A way multiplies one input with several weights of a shape in turn, in float32 on one thread. The weights together have
more bytes than a cache, as in a model, where each weight is read once in a call. The ways run in turn in one process,
in random order. The figures are CPU microseconds of one product: the median of the rounds divided by the number of
weights. Each result is freed before the next one is computed, as in a model, so that all results have the same memory;
if a process kept them, the system would give it new pages for each, which can take as long as the product.

- `linear`: `torch.nn.functional.linear`, which calls MKL.
- `transposed`: `x @ w`, where `w` is the contiguous transpose of the weight, made ahead.
- `MKL packed`, `oneDNN packed`: the operators that Inductor calls for frozen weights, if PyTorch has them.
- `Inductor`: the fastest of its C++ template and PyTorch's kernels, with packed weights (`freezing`, `max_autotune`).
- `packed-linear`: Thunder's kernel, which reads a weight in place.
- `packed once`: the same kernel with weights that were packed ahead (executor `prepacked-linear`).

Usage: python -m benchmarks.cpu_products [--shapes 128x512x1376 ...] [--rounds 21]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from benchmarks.steady import in_turn
from thunder_executors.packed_linear.kernel import library_of
from thunder_executors.packed_linear.packed_weights import PackedWeights
from thunder_executors.packed_linear.product_kinds import FLOAT32, PREPACKED
from thunder_executors.packed_linear.source import NAME, PACK

SHAPES = (
    "1x512x512", "1x512x1376", "1x512x8192", "4x512x1376", "8x512x1376", "32x512x1376", "128x512x512", "128x512x1376",
    "128x1376x512", "128x512x8192", "512x384x384", "512x384x1536", "512x1536x384",
)  # fmt: skip
WEIGHT_BYTES = 1 << 27  # bytes of all weights of a shape
MAX_WEIGHTS = 24
Way = Callable[[], torch.Tensor]  # computes all products, and returns the last one


def last_of(multiply: Callable[[Any], torch.Tensor], forms: Sequence[Any]) -> Way:
    """Return a way that multiplies by each form of a weight in turn."""

    def way() -> torch.Tensor:
        for form in forms[:-1]:
            multiply(form)
        return multiply(forms[-1])

    return way


def by_linear(x: torch.Tensor, weights: list[torch.Tensor]) -> Way:
    return last_of(partial(functional.linear, x), weights)


def by_transposed(x: torch.Tensor, weights: list[torch.Tensor]) -> Way:
    return last_of(x.matmul, [weight.t().contiguous() for weight in weights])


def by_mkl(x: torch.Tensor, weights: list[torch.Tensor]) -> Way:
    operators: Any = torch.ops.mkl
    packed = [operators._mkl_reorder_linear_weight(weight, x.shape[0]) for weight in weights]
    pairs = list(zip(packed, weights, strict=True))
    return last_of(lambda pair: operators._mkl_linear(x, *pair, None, x.shape[0]), pairs)


def by_onednn(x: torch.Tensor, weights: list[torch.Tensor]) -> Way:
    operators: Any = torch.ops.mkldnn
    packed = [operators._reorder_linear_weight(weight, x.shape[0]) for weight in weights]
    return last_of(lambda weight: operators._linear_pointwise(x, weight, None, "none", [], ""), packed)


def by_inductor(x: torch.Tensor, weights: list[torch.Tensor]) -> Way:
    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(map(torch.nn.Parameter, weights))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            results = [functional.linear(x, weight) for weight in self.weights]
            # a number of each result is read, so that all are computed and their memory is used again
            return results[-1], torch.stack([result[0, 0] for result in results])

    options = {"freezing": True, "max_autotune": True, "max_autotune_gemm_backends": "ATEN,CPP"}
    compiled = torch.compile(Layers().eval(), options=options)
    return lambda: compiled(x)[0]


def by_kernel(x: torch.Tensor, weights: list[torch.Tensor], *, packed: bool) -> Way:
    kind = PREPACKED if packed else FLOAT32
    library = library_of(kind)
    kernel = library.function(NAME)
    pack = PackedWeights.of(library.function(PACK)) if packed else None
    forms = [pack(weight) for weight in weights] if pack else weights
    (rows, depth), columns = x.shape, weights[0].shape[0]

    def multiply(weight: torch.Tensor) -> torch.Tensor:
        result = torch.empty(rows, columns)
        kernel(x, weight, weight, result, rows, depth, columns, depth, depth, 0, 0)
        return result

    return last_of(multiply, forms)


WAYS: dict[str, Callable[[torch.Tensor, list[torch.Tensor]], Way]] = {
    "linear": by_linear,
    "transposed": by_transposed,
    "MKL packed": by_mkl,
    "oneDNN packed": by_onednn,
    "Inductor": by_inductor,
    "packed-linear": lambda x, weights: by_kernel(x, weights, packed=False),
    "packed once": lambda x, weights: by_kernel(x, weights, packed=True),
}


def microseconds(shape: str, rounds: int) -> dict[str, float | None]:
    """Return the CPU microseconds of one product by each way; None for a way that this PyTorch does not have."""
    rows, depth, columns = map(int, shape.split("x"))
    count = max(2, min(MAX_WEIGHTS, WEIGHT_BYTES // (4 * depth * columns)))
    x, weights = torch.randn(rows, depth), [torch.randn(columns, depth) / depth**0.5 for _ in range(count)]
    expected = functional.linear(x, weights[-1])
    ways: dict[str, Way] = {}
    for name, make in WAYS.items():
        try:
            ways[name] = make(x, weights)
        except (AttributeError, NotImplementedError):  # this PyTorch has no such operator
            continue
        torch.testing.assert_close(ways[name](), expected, atol=1e-4, rtol=1e-4)
    times = in_turn(ways, rounds, time.thread_time, shuffled=True)
    return {name: 1e3 * times[name] / count if name in times else None for name in WAYS}


def main() -> None:
    """Print a table of the ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="rows x depth x columns")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'rows x in x out':>16}  " + "  ".join(f"{name:>13}" for name in WAYS))
    for shape in arguments.shapes:
        torch.manual_seed(0)
        torch.compiler.reset()
        with torch.no_grad():
            times = microseconds(shape, arguments.rounds)
        cells = (f"{'-' if value is None else f'{value:.0f}':>13}" for value in times.values())
        print(f"{shape:>16}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
