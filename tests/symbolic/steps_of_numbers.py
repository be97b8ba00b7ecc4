"""Steps of random programs that compute numbers from sizes and other numbers."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Number = Any  # an integer or a float, whichever the program computes
Row = Callable[[Tensor, Tensor, Number, Number], Any]


def math_of(n: Number) -> Number:
    return n.bit_length() if isinstance(n, int) else n.is_integer()


def halved(n: Number) -> Number:
    turns = 0
    while n > 1 and n % 2 == 0:
        n, turns = n // 2, turns + 1
    return n * 10 + turns


def counted_down(n: Number, stop: Number) -> Number:
    total = 0
    for number in range(min(n, 6), -stop, -2):
        if number == stop:
            break
        total += number
    else:
        total -= 1
    return total


def sides(n: Number, m: Number, size: Number) -> Number:
    if n > m:
        return n - m if size > 3 else n + size
    if n == size or m % 2:
        return size * 2
    return -m if n < 0 else m


NUMBERS: tuple[Row, ...] = (
    lambda x, y, n, m: x.shape[n % x.dim()],
    lambda x, y, n, m: x.size(-1),
    lambda x, y, n, m: x.numel(),
    lambda x, y, n, m: len(x),
    lambda x, y, n, m: x.stride(0),
    lambda x, y, n, m: x.shape[0] - y.shape[-1],
    lambda x, y, n, m: n + m,
    lambda x, y, n, m: n - m,
    lambda x, y, n, m: n * m,
    lambda x, y, n, m: n // m,
    lambda x, y, n, m: n % m,
    lambda x, y, n, m: n / m,
    lambda x, y, n, m: divmod(n, 3),
    lambda x, y, n, m: n ** (m % 3),
    lambda x, y, n, m: n**2,
    lambda x, y, n, m: 2 ** (n % 5),
    lambda x, y, n, m: abs(n),
    lambda x, y, n, m: -n,
    lambda x, y, n, m: min(n, m),
    lambda x, y, n, m: max(n, m, 1),
    lambda x, y, n, m: min(x.shape),
    lambda x, y, n, m: sum(x.shape),
    lambda x, y, n, m: n if n > m else m + 1,
    lambda x, y, n, m: n == m,
    lambda x, y, n, m: not n,
    lambda x, y, n, m: n and m,
    lambda x, y, n, m: 0 < n <= m,
    lambda x, y, n, m: (n + 7) // 8 * 8,
    lambda x, y, n, m: -n // 4,
    lambda x, y, n, m: n % -3,
    lambda x, y, n, m: int(n / 2),
    lambda x, y, n, m: round(n * 0.3, 1),
    lambda x, y, n, m: float(n),
    lambda x, y, n, m: n >> 1,
    lambda x, y, n, m: n & 3,
    lambda x, y, n, m: n ^ m,
    lambda x, y, n, m: math_of(n),
    lambda x, y, n, m: f"{n}-{m}",
    lambda x, y, n, m: operator.index(n),
    lambda x, y, n, m: n in (1, 2, 3),
    lambda x, y, n, m: x.stride(),
    lambda x, y, n, m: x.shape,
    lambda x, y, n, m: bool(n) + 1,
    lambda x, y, n, m: n * 0.5,
    lambda x, y, n, m: n + 0.25,
    lambda x, y, n, m: x.shape[0] / 2,
    lambda x, y, n, m: x.shape[0] // max(y.shape[0], 1),
    lambda x, y, n, m: x.shape[0] % max(n, 1),
    lambda x, y, n, m: x.shape[0] // n,
    lambda x, y, n, m: -x.shape[0] // 3,
    lambda x, y, n, m: 7 % n,
    lambda x, y, n, m: -7 // n,
    lambda x, y, n, m: n // -2,
    lambda x, y, n, m: divmod(n, m),
    lambda x, y, n, m: divmod(x.shape[0], y.shape[0]),
    lambda x, y, n, m: pow(n, 2, 5),
    lambda x, y, n, m: n | m,
    lambda x, y, n, m: n << 2,
    lambda x, y, n, m: ~n,
    lambda x, y, n, m: math.ceil(n / 2),
    lambda x, y, n, m: math.floor(-n * 0.3),
    lambda x, y, n, m: math.sqrt(abs(n)),
    lambda x, y, n, m: math.trunc(n / 3),
    lambda x, y, n, m: int(x.shape[0] * 0.5),
    lambda x, y, n, m: round(n / 3),
    lambda x, y, n, m: x.storage_offset(),
    lambda x, y, n, m: x.is_contiguous(),
    lambda x, y, n, m: x.transpose(0, -1).is_contiguous(),
    lambda x, y, n, m: x.shape == y.shape,
    lambda x, y, n, m: x.shape[0] == y.shape[0],
    lambda x, y, n, m: x.shape[0] != y.shape[-1],
    lambda x, y, n, m: x.shape[0] < y.shape[-1] <= n,
    lambda x, y, n, m: x.shape[-1] - n == x.shape[0],
    lambda x, y, n, m: x.shape[0] * x.shape[-1] > y.numel(),
    lambda x, y, n, m: x.numel() // x.shape[0],
    lambda x, y, n, m: x.numel() // x.shape[-1] % 2,
    lambda x, y, n, m: max(x.shape) - min(y.shape),
    lambda x, y, n, m: sorted(x.shape),
    lambda x, y, n, m: sorted([n, m], reverse=True),
    lambda x, y, n, m: sum(range(min(n, 5))),
    lambda x, y, n, m: len(range(n)),
    lambda x, y, n, m: len(range(x.shape[0], 0, -2)),
    lambda x, y, n, m: list(range(x.shape[0] - 1, -1, -1))[:2],
    lambda x, y, n, m: [i * m for i in range(x.shape[0])],
    lambda x, y, n, m: (n, x.shape[0]) == (x.shape[0], n),
    lambda x, y, n, m: isinstance(n, int) and not isinstance(n, bool),
    lambda x, y, n, m: type(n).__name__,
    lambda x, y, n, m: {n: m}.get(x.shape[0], -1),
    lambda x, y, n, m: "ab" * min(n, 3),
    lambda x, y, n, m: [n] * min(x.shape[0], 3),
    lambda x, y, n, m: slice(n, m).indices(x.shape[0]),
    lambda x, y, n, m: torch.Size([x.shape[0], 2]).numel(),
    lambda x, y, n, m: (x.shape + y.shape)[1],
    lambda x, y, n, m: x.shape[1:],
    lambda x, y, n, m: list(x.shape),
    lambda x, y, n, m: x.ndim * n,
    lambda x, y, n, m: x.element_size() * x.numel(),
    lambda x, y, n, m: x.nbytes,
    lambda x, y, n, m: any(size == 1 for size in x.shape),
    lambda x, y, n, m: all(size > n for size in x.shape),
    lambda x, y, n, m: x.shape[0] - 1 or n,
    lambda x, y, n, m: n if x.shape[0] % 2 == 0 else x.shape[-1],
    lambda x, y, n, m: bool(x.shape[0]) + (n > 0),
    lambda x, y, n, m: x.shape[0] in (1, 2, n),
    lambda x, y, n, m: n.conjugate(),
    lambda x, y, n, m: math.isclose(n, m),
    lambda x, y, n, m: math.gcd(x.shape[0], 6),
    lambda x, y, n, m: str(x.shape[0]),
    lambda x, y, n, m: max((size for size in x.shape if size != n), default=n),
    lambda x, y, n, m: functools.reduce(operator.mul, x.shape, 1),
    lambda x, y, n, m: math.prod(x.shape[1:]),
    lambda x, y, n, m: operator.mul(n, m) == n * m,
    lambda x, y, n, m: n == x.shape[0] or m == x.shape[-1],
    lambda x, y, n, m: not x.shape[0] - y.shape[0],
    lambda x, y, n, m: halved(x.shape[0]),
    lambda x, y, n, m: counted_down(n, x.shape[-1]),
    lambda x, y, n, m: sides(n, m, x.shape[0]),
    lambda x, y, n, m: float(x.shape[0]) ** 0.5,
    lambda x, y, n, m: n.is_integer() if isinstance(n, float) else n.bit_length(),
    lambda x, y, n, m: x.dim() == y.dim() and x.shape[-1] == y.shape[-1],
    lambda x, y, n, m: hash(n) == hash(m),
    lambda x, y, n, m: x.stride(-1) * x.shape[-1],
    lambda x, y, n, m: x.is_floating_point() + n,
)
