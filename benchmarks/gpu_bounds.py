"""The lower bounds of the GPU benchmark's times: the bytes that a call must read, and the operations of its products.

A call takes at least the time of its bytes at the memory bandwidth, and the time of its products at the peak rate of
the tensor cores. The share of a row is this bound divided by the measured time.

Usage: python -m benchmarks.gpu_bounds REPORT [--layers 16]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_contenders import PROMPT, SIZES, TOKENS, VOCABULARY

LAYERS = 16
BFLOAT16 = 2  # bytes
PASSES = 3  # forward, gradients of inputs, and gradients of weights, with as many operations each
TERA = 1e12


@dataclass(frozen=True)
class Limits:
    """The bytes and the operations of a GPU in a second; `None` if they are unknown."""

    bandwidth: float | None
    rate: float | None


@dataclass(frozen=True)
class Work:
    """The bytes that a call moves at least, and the operations (multiplications and additions) of its products."""

    bytes: float = 0.0
    operations: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.operations + other.operations)

    def __mul__(self, factor: float) -> Work:
        return Work(self.bytes * factor, self.operations * factor)


# The data sheets' bandwidth, and rate of dense products in bfloat16; a longer name comes before its beginning.
DATA_SHEETS: dict[str, Limits] = {
    "NVIDIA B200": Limits(8.0 * TERA, 2250 * TERA),
    "NVIDIA GH200 480GB": Limits(4.0 * TERA, 989 * TERA),
    "NVIDIA H200 NVL": Limits(4.8 * TERA, 835 * TERA),
    "NVIDIA H200": Limits(4.8 * TERA, 989 * TERA),
    "NVIDIA H100 NVL": Limits(3.9 * TERA, 835 * TERA),
    "NVIDIA H100 PCIe": Limits(2.0 * TERA, 756 * TERA),
    "NVIDIA H100": Limits(3.35 * TERA, 989 * TERA),
    "NVIDIA A100-SXM4-80GB": Limits(2.04 * TERA, 312 * TERA),
    "NVIDIA A100 80GB PCIe": Limits(1.94 * TERA, 312 * TERA),
    "NVIDIA A100": Limits(1.56 * TERA, 312 * TERA),
    "NVIDIA L40S": Limits(0.864 * TERA, 362 * TERA),
    "NVIDIA L4": Limits(0.3 * TERA, 121 * TERA),
    "NVIDIA GeForce RTX 4090": Limits(1.01 * TERA, 165 * TERA),
}
UNKNOWN = Limits(None, None)


def limits_of(properties: Any) -> Limits:
    """Return the limits of a GPU: the bandwidth from its driver if it states one, and else the data sheet's.

    `properties` are those of `torch.cuda.get_device_properties`. Memory transfers data twice in a cycle.
    """
    sheet = next((limits for name, limits in DATA_SHEETS.items() if properties.name.startswith(name)), UNKNOWN)
    kilohertz, bits = (getattr(properties, name, 0) or 0 for name in ("memory_clock_rate", "memory_bus_width"))
    stated = 2 * 1e3 * kilohertz * bits / 8
    return Limits(stated or sheet.bandwidth, sheet.rate)


def limits_in(report: Mapping[str, Any]) -> tuple[Limits, Limits]:
    """Return the limits of a report's GPU: those of its properties, and those of a measured copy and large product."""
    stated, measured = report.get("peak"), report["limits"]
    peak = Limits(**stated) if stated else limits_of(argparse.Namespace(name=report["gpu"]))
    return peak, Limits(measured["copy_gb_per_s"] * 1e9, measured["product_tflop_per_s"] * TERA)


def weights_of_layer() -> int:
    """Return the number of elements of a layer's matrices."""
    hidden, head = SIZES["hidden_size"], SIZES["head_dim"]
    attention = 2 * SIZES["num_attention_heads"] + 2 * SIZES["num_key_value_heads"]
    return int(hidden * (attention * head + 3 * SIZES["intermediate_size"]))


def product_of_rows(weights: float, rows: int) -> Work:
    """Return the work of multiplying rows by weights; the rows themselves are few bytes."""
    return Work(BFLOAT16 * weights, 2.0 * weights * rows)


def head_work(rows: int) -> Work:
    """Return the work of the logits of some tokens."""
    return product_of_rows(VOCABULARY * SIZES["hidden_size"], rows)


def operations_of_attention(pairs: float) -> float:
    """Return the operations of a layer's two products of attention, for pairs of a query and a key."""
    return 2 * 2.0 * SIZES["num_attention_heads"] * SIZES["head_dim"] * pairs


def time_of(row: Mapping[str, Any]) -> float:
    """Return the milliseconds of a call among calls that do not synchronize, or else of a call alone."""
    return float(row.get("queued_ms", row["median_ms"]))


def prompt_work(batch: int, length: int, layers: int, *, logits: int) -> Work:
    """Return the work of prompts with causal attention, and of the logits of `logits` tokens of each prompt."""
    attention = Work(operations=operations_of_attention(batch * length * length / 2))
    return (product_of_rows(weights_of_layer(), batch * length) + attention) * layers + head_work(batch * logits)


def token_work(filled: int, layers: int) -> Work:
    """Return the work of a token, which reads all weights and the keys and values of `filled` tokens."""
    keys_and_values = 2 * SIZES["num_key_value_heads"] * SIZES["head_dim"] * filled
    attention = Work(BFLOAT16 * keys_and_values, operations_of_attention(filled))
    return (product_of_rows(weights_of_layer(), 1) + attention) * layers + head_work(1)


def work_of(shape: str, layers: int = LAYERS, *, trains: bool = False) -> list[Work]:
    """Return the work of a call of the benchmark, one entry for each step that waits for the previous one."""
    if shape == "decode":
        return [token_work(PROMPT + 1, layers)]
    if shape.endswith("tokens"):
        tokens = [token_work(PROMPT + number, layers) for number in range(1, TOKENS)]
        return [prompt_work(1, PROMPT, layers, logits=1), *tokens]
    batch, length = map(int, shape.split(" x "))
    if trains:
        return [prompt_work(batch, length, layers, logits=length) * PASSES]
    return [prompt_work(batch, length, layers, logits=1)]


def bound_ms(works: Iterable[Work], limits: Limits) -> float | None:
    """Return the milliseconds that steps take at least; None if the limits are unknown."""
    if limits.bandwidth is None or limits.rate is None:
        return None
    return 1e3 * sum(max(work.bytes / limits.bandwidth, work.operations / limits.rate) for work in works)


def shares_of(row: Mapping[str, Any], peak: Limits, measured: Limits, layers: int = LAYERS) -> dict[str, float]:
    """Return the bounds of a row, and their shares of the time of a call among calls that do not synchronize."""
    works = work_of(row["shape"], layers, trains=row["job"].endswith("train"))
    bounds = {"bound": bound_ms(works, peak), "measured_bound": bound_ms(works, measured)}
    found = {name: bound for name, bound in bounds.items() if bound is not None}
    return {f"{name}_ms": bound for name, bound in found.items()} | {
        f"{name}_share": bound / time_of(row) for name, bound in found.items()
    }


def lines_of(report: Mapping[str, Any], layers: int) -> Iterator[str]:
    """Yield a table of the shares of all rows of a report."""
    yield f"{'job':16} {'shape':10} {'way':28} {'ms':>9} {'bound':>9} {'share':>7} {'of measured bound':>18}"
    for row in report["rows"]:
        if "error" not in row:
            found = shares_of(row, *limits_in(report), layers)
            values = (found.get(name, math.nan) for name in ("bound_ms", "bound_share", "measured_bound_share"))
            head = f"{row['job']:16} {row['shape']:10} {row['way']:28} {time_of(row):9.3f}"
            yield "{} {:9.3f} {:7.1%} {:18.1%}".format(head, *values)


def main() -> None:
    """Print the shares of a report that the benchmark wrote."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    options = parser.parse_args()
    print("\n".join(lines_of(json.loads(options.report.read_text(encoding="utf-8")), options.layers)))


if __name__ == "__main__":
    main()
