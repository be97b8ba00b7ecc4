"""Rounded divisions of floating-point numbers, which Inductor computes differently from PyTorch for some numbers.

PyTorch rounds the exact quotient, so that `1.0 // 0.1` is 9. Inductor rounds the floating-point quotient, which is 10.
In 16 bits, PyTorch rounds the quotient to 16 bits first. Inductor's remainder is the difference to a product with such
a quotient: for `1e6 % 0.1`, it has no correct digit, and for an infinite divisor, it is NaN. PyTorch's quotient of an
infinite number, rounded down, is NaN, and Inductor's is infinite.
"""

from __future__ import annotations

import math

from thunder_core.tracing.analysis.data_errors import returns_integers, second_argument
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors.inductor.value_checks import name_of


def divides_as_pytorch(operation: BoundSymbol) -> bool:
    """Whether Inductor computes an operation as PyTorch does; false for remainders and rounded divisions of floats.

    An exception are quotients by a constant power of two that are rounded towards zero, because they are exact.
    """
    name, divisor = name_of(operation), second_argument(operation)
    if name not in ("div", "floor_divide", "remainder") or returns_integers(operation):
        return True
    rounding = operation.kwargs.get("rounding_mode")  # a keyword-only argument
    if name == "div" and rounding is None:
        return True
    return rounding == "trunc" and is_finite_constant(divisor) and is_power_of_two(divisor)


def is_finite_constant(number: object) -> bool:
    """Whether a divisor is a finite number that is the same in each call."""
    return type(number) in (int, float) and math.isfinite(number)  # type: ignore[arg-type]


def is_power_of_two(number: float) -> bool:
    """Whether the magnitude of a number is a power of two, such as 0.5 or 4."""
    mantissa, _ = math.frexp(number)
    return abs(mantissa) == 0.5
