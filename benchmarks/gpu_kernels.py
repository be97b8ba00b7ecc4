"""The time of each Triton kernel of Thunder on a GPU, and the bound that follows from the bytes that it must move.

Each operation runs on one example of a realistic size in bfloat16, with a cold L2 cache. Its bytes are those of its
inputs and results, each once. The bound is the time of a copy of as many bytes or, for products of many rows, the time
of as many operations in a large matrix product, if that is longer.

Usage: python -m benchmarks.gpu_kernels [--operations rms_norm gated] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thunder_core.foundation import plugins

Make = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the examples: `rows` of prompts and training, `slots` of a cache, and the sizes of a model."""

    rows: int = 8192
    width: int = 2048
    inner: int = 8192
    heads: int = 32
    groups: int = 8
    head: int = 64
    words: int = 128_256
    slots: int = 4096


@dataclass(frozen=True)
class Case:
    """The arguments of a call, and the floating-point operations of its products.

    `nbytes` are the bytes that the call moves, if these are not the bytes of all tensors.
    """

    arguments: tuple[Any, ...]
    operations: float = 0.0
    nbytes: int | None = None


def heads(make: Make, positions: int, count: int, sizes: Sizes) -> torch.Tensor:
    """Queries or keys of a prompt, (1, heads, positions, head)."""
    return make(1, positions, count, sizes.head).transpose(1, 2)


def rotary(make: Make, s: Sizes) -> Case:
    """Queries, keys, and the tables of a prompt."""
    tables = make(1, s.rows, s.head), make(1, s.rows, s.head)
    return Case((heads(make, s.rows, s.heads, s), heads(make, s.rows, s.groups, s), *tables))


def rotary_into_cache(make: Make, s: Sizes) -> Case:
    """A token with a static cache, of which one slot is written."""
    rows = heads(make, 1, s.heads, s), heads(make, 1, s.groups, s), heads(make, 1, s.groups, s)
    tables = make(1, 1, s.head), make(1, 1, s.head)
    cache = make(1, s.groups, s.slots, s.head), make(1, s.groups, s.slots, s.head)
    written = sum(tensor.nbytes for tensor in rows)
    nbytes = written + sum(tensor.nbytes for tensor in (*rows, *tables))
    return Case((*rows, *tables, *cache, make(dtype=torch.int64)), nbytes=nbytes)


def labels(make: Make, s: Sizes) -> torch.Tensor:
    """The label of each row."""
    return make(s.rows, dtype=torch.int64)


def scales(make: Make, s: Sizes) -> torch.Tensor:
    """A number for each row in float32."""
    return make(s.rows, dtype=torch.float32)


def head_loss(make: Make, s: Sizes) -> Case:
    """Rows, the weight of the output layer, and labels."""
    arguments = (make(s.rows, s.width), make(s.words, s.width), labels(make, s))
    return Case(arguments, operations=2.0 * s.rows * s.width * s.words)


def gradient_of_head(make: Make, s: Sizes) -> Case:
    """The gradients of the output layer and its loss: logits are computed again, and both gradients are products."""
    first = make(dtype=torch.float32)
    case = head_loss(make, s)
    return Case((first, *case.arguments, scales(make, s) + 80), 3 * case.operations)


def one_row(make: Make, s: Sizes) -> tuple[Any, ...]:
    """A row with its residual, and the weight and epsilon of its norm."""
    return make(1, s.width), make(1, s.width), make(s.width), 1e-6


CASES: dict[str, Callable[[Make, Sizes], Case]] = {
    "rms_norm": lambda make, s: Case((make(s.rows, s.width), make(s.width), 1e-6)),
    "add_rms_norm": lambda make, s: Case((make(s.rows, s.width), make(s.rows, s.width), make(s.width), 1e-6)),
    "rms_norm_input_gradient": lambda make, s: Case(
        (make(s.rows, s.width), make(s.rows, s.width), make(s.rows, s.width), make(s.width), 1e-6)
    ),
    "rms_norm_weight_gradient": lambda make, s: Case(
        (make(s.rows, s.width), make(s.rows, s.width), scales(make, s), make(1).dtype)
    ),
    "rotary": rotary,
    "rotary_gradient": rotary,
    "rotary_into_cache": rotary_into_cache,
    "gated": lambda make, s: Case((*make(s.rows, 2 * s.inner).chunk(2, dim=-1), "silu")),
    "gated_gradient": lambda make, s: Case((*(make(s.rows, s.inner) for _ in range(3)), "silu")),
    "cross_entropy": lambda make, s: Case((make(s.rows, s.words), labels(make, s), -100, "mean")),
    "cross_entropy_gradient": lambda make, s: Case(
        (make(dtype=torch.float32), make(s.rows, s.words), labels(make, s), scales(make, s), -100, "mean")
    ),
    "linear_cross_entropy": head_loss,
    "linear_cross_entropy_gradient": gradient_of_head,
    "normalized_linear": lambda make, s: Case(
        (
            *one_row(make, s),
            *(make(count * s.head, s.width) for count in (s.heads, s.groups, s.groups)),
        )
    ),
    "normalized_gated": lambda make, s: Case(
        (*one_row(make, s), make(s.inner, s.width), make(s.inner, s.width), "silu")
    ),
    "decode_attention": lambda make, s: Case(
        (
            make(1, s.groups, s.heads // s.groups, s.head),
            *(make(1, s.groups, s.slots, s.head) for _ in range(2)),
            make(1, 1, 1, s.slots) == make(1, 1, 1, s.slots),
            None,
            0,
            s.head**-0.5,
        )
    ),
    "linear": lambda make, s: Case(
        (make(1, s.width), make(s.inner, s.width), None, make(1, s.inner), "", (1, 4, 512, 4, 0))
    ),
    "quantize_rows": lambda make, s: Case((make(s.rows, s.width), torch.int8)),
    "int8_linear": lambda make, s: Case(
        (make(1, s.width), make(s.inner, s.width, dtype=torch.int8), make(s.inner), None, 16)
    ),
    "int4_linear": lambda make, s: Case(
        (
            make(1, s.width),
            make(s.inner // 64, s.width, 32, dtype=torch.uint8),
            make(s.width // 32, s.inner, 2),
            16,
        )
    ),
}


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors among values, each memory once."""
    sequence = values if isinstance(values, Sequence) else (values,)
    tensors = [value for value in sequence if isinstance(value, torch.Tensor)]
    return list({tensor.data_ptr(): tensor for tensor in tensors}.values())


def random_tensors(device: str) -> Make:
    """Random tensors in bfloat16 on a device; integers are zero."""

    def make(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        is_float = dtype.is_floating_point
        return (torch.randn if is_float else torch.zeros)(shape, dtype=dtype, device=device)

    return make


def measure(
    name: str, make: Make, sizes: Sizes, limits: dict[str, float], milliseconds: Callable[[Any], float]
) -> dict[str, Any]:
    """Run an operation, time it, and compare the time with its bound."""
    from thunder_executors.triton.operations import OPERATORS

    case = CASES[name](make, sizes)
    operator = OPERATORS[name]
    results = tensors_in(operator(*case.arguments))
    nbytes = sum(tensor.nbytes for tensor in (*tensors_in(case.arguments), *results))
    nbytes = nbytes if case.nbytes is None else case.nbytes
    by_bytes = nbytes / limits["copy_gb_per_s"] / 1e6
    by_operations = case.operations / limits["product_tflop_per_s"] / 1e9
    time = milliseconds(lambda: operator(*case.arguments))
    bound = max(by_bytes, by_operations)
    return {
        "operation": name,
        "bytes": nbytes,
        "flop": case.operations,
        "ms": time,
        "gb_per_s": nbytes / time / 1e6,
        "bound_ms": bound,
        "bound": "product" if by_operations > by_bytes else "copy",
        "share": bound / time,
    }


def line_of(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"{row['operation']:32} failed: {row['error']}"
    return (
        f"{row['operation']:32} {row['bytes'] / 1e6:9.2f} MB {row['ms']:9.4f} ms {row['gb_per_s']:8.0f} GB/s"
        f"  bound {row['bound_ms']:9.4f} ms ({row['bound']})  {row['share']:6.1%}"
    )


def main() -> int:
    """Measure all kernels, print a table, and write all figures; return 1 if a kernel fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    plugins.load("executors", "triton")
    from benchmarks.gpu import limits
    from thunder_executors.triton.measurement import milliseconds

    report: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "limits": limits()}
    torch.cuda.empty_cache()
    print(json.dumps(report), flush=True)
    report["rows"] = []
    for name in options.operations:
        try:
            row = measure(name, random_tensors("cuda"), Sizes(), report["limits"], milliseconds)
        except Exception as error:  # the other kernels are measured all the same
            row = {"operation": name, "error": f"{type(error).__name__}: {error}"[:500]}
        report["rows"].append(row)
        print(line_of(row), flush=True)
        torch.cuda.empty_cache()
        if options.out:
            options.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return int(any("error" in row for row in report["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
