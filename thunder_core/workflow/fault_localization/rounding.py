"""Decide whether two computations of the same result differ by more than floating-point rounding.

The errors of a result and of eager PyTorch's result are their differences from a computation in float64. The error of a
result may be a few times eager's error, plus some units in the last place. If it is larger, the float64 computation is
repeated on inputs whose last digits are changed, because the effect of these digits is rounding, too. In this way, a
fault of 1e-4 in float32 is distinguished from rounding even deep in a program.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from thunder_core.backend.claiming.comparison import (
    EIGHT_BIT_ROUNDING,
    Float64Computation,
    ValueComparison,
    blocks_of,
    describe_difference,
    largest_difference,
    largest_value,
)
from thunder_core.backend.claiming.comparison import ROUNDING as WITHOUT_REFERENCE
from thunder_core.foundation.options.tolerance import Tolerance

TIMES_EAGER = 2.0
TIMES_INPUTS = 4.0  # the allowed multiple of the effect of the inputs' last digits
UNITS: Mapping[torch.dtype, float] = {torch.bfloat16: 2.0, torch.float16: 2.0}  # in the last place of each element
USUAL_UNITS = 4.0  # units in the last place for the other dtypes
MEAN_UNITS = 0.5  # units in the last place for the root mean square of all errors
OVERFLOW_TOLERANCE = 0.05  # largest relative error of a value that overflows in eager PyTorch and not in float64


@dataclass(frozen=True)
class Allowance:
    """The allowed error of a result: `times_eager` times eager PyTorch's error, plus `floor` times the largest value.

    A recipe that changes results on purpose has a larger tolerance than rounding (`is_strict` is False).
    """

    times_eager: float = TIMES_EAGER
    floor: float = 0.0

    @classmethod
    def of(cls, tolerance: Tolerance, usual: Tolerance) -> Allowance:
        """Return the allowance of a recipe with this tolerance; `usual` is the tolerance for rounding."""
        if tolerance.times_eager <= usual.times_eager and tolerance.floor <= usual.floor:
            return cls()
        return cls(max(tolerance.times_eager, TIMES_EAGER), tolerance.floor)

    @property
    def is_strict(self) -> bool:
        """Whether only rounding is allowed."""
        return self == ROUNDING


ROUNDING = Allowance()


def rounding_difference(
    actual: torch.Tensor, expected: torch.Tensor, exact: Float64Computation, allowance: Allowance = ROUNDING
) -> ValueComparison:
    """Measure the difference of a result from eager PyTorch's result, which has the same shape and dtype.

    The `difference` of the returned measurement is None if the allowance covers it. Integers and booleans must be
    equal, unless eager PyTorch's own values differ from those in float64.
    """
    largest = largest_difference(actual, expected)
    if not largest:
        return ValueComparison(None, 0.0)
    if not (expected.is_floating_point() or expected.is_complex()):
        return _measure_integers(actual, expected, exact, largest, allowance)
    reference = exact()
    if reference is None or reference.shape != expected.shape:
        scale = largest_value(expected)
        allowed = max(allowance.floor, WITHOUT_REFERENCE.get(expected.dtype, EIGHT_BIT_ROUNDING)) * scale
        wrong = describe_difference(actual, expected, largest) if largest > allowed else None
        return ValueComparison(wrong, largest, largest, 0.0, allowed, scale)
    measured = compared_with_float64(reference, actual, expected, largest, allowance)
    perturbed = exact(perturbed=True) if measured.difference is not None else None
    if perturbed is not None and perturbed.shape == reference.shape:
        measured = compared_with_float64(reference, actual, expected, largest, allowance, perturbed)
    return measured


def _measure_integers(
    actual: torch.Tensor, expected: torch.Tensor, exact: Float64Computation, largest: float, allowance: Allowance
) -> ValueComparison:
    """Measure integers. As many elements may differ as differ between eager PyTorch and float64."""
    reference = exact()
    own = others = 0
    if reference is not None and reference.shape == expected.shape:
        own, others = (int(torch.ne(values, reference).sum()) for values in (expected, actual))
        perturbed = exact(perturbed=True)
        if perturbed is not None and perturbed.shape == reference.shape:
            own += int(torch.ne(perturbed, reference).sum())
    wrong = not own or others > allowance.times_eager * own
    return ValueComparison(
        describe_difference(actual, expected, largest) if wrong else None, largest, largest, 0.0, 0.0
    )


def compared_with_float64(
    reference: torch.Tensor,
    actual: torch.Tensor,
    expected: torch.Tensor,
    largest: float,
    allowance: Allowance,
    perturbed: torch.Tensor | None = None,
) -> ValueComparison:
    """Compare a result and eager PyTorch's result with the float64 results from exact and from perturbed inputs."""
    information = torch.finfo(expected.dtype)
    unit, smallest = information.eps, information.tiny
    units = UNITS.get(expected.dtype, USUAL_UNITS) * unit
    sums = ErrorSums(units)
    others = () if perturbed is None else (perturbed,)
    for block in blocks_of(actual, expected, reference, *others):
        sums.add(*block)
    allowed = allowance.times_eager * sums.eager_mistake + allowance.floor * sums.magnitude
    allowed += TIMES_INPUTS * sums.slack + smallest
    few = expected.numel() < 64  # a mean over few elements adds nothing to the largest error
    right = sums.same_non_finite and sums.excess <= allowed
    right = right and (few or sums.mean("mistake") <= sums.allowed_mean(allowance, unit, smallest))
    return ValueComparison(
        None if right else describe_difference(actual, expected, largest),
        largest,
        sums.mistake,
        sums.eager_mistake,
        allowed + units * sums.magnitude,
        sums.magnitude,
    )


@dataclass
class ErrorSums:
    """The largest errors and the sums of squares of a result and of eager PyTorch's result, collected in blocks.

    `excess` is the largest error minus `units` units in the last place of its element. `slack` is the effect of the
    last digits of the inputs.
    """

    units: float
    mistake: float = 0.0
    eager_mistake: float = 0.0
    magnitude: float = 0.0
    slack: float = 0.0
    excess: float = 0.0
    same_non_finite: bool = True
    count: int = 0
    squares: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(
        self,
        optimized_result: torch.Tensor,
        eager_result: torch.Tensor,
        exact: torch.Tensor,
        perturbed: torch.Tensor | None = None,
    ) -> None:
        """Add a block of results: the program's, eager PyTorch's, float64's, and float64's from perturbed inputs."""
        finite = eager_result.isfinite() & exact.isfinite()
        errors = {
            "magnitude": exact.abs().where(finite, 0.0),
            "mistake": (optimized_result - exact).abs().where(finite, 0.0).nan_to_num(nan=torch.inf),
            "eager_mistake": (eager_result - exact).abs().where(finite, 0.0),
        }
        if perturbed is not None:
            slack = (perturbed - exact).abs().where(finite, 0.0)
            errors["slack"] = slack.nan_to_num(nan=0.0, posinf=0.0)
        for name, values in errors.items():
            setattr(self, name, max(getattr(self, name), float(values.max())))
            self.squares[name] += float(values.square().sum())
        self.excess = max(self.excess, float((errors["mistake"] - self.units * errors["magnitude"]).max()))
        is_nearer = exact.isfinite() & (
            (optimized_result - exact).abs() <= OVERFLOW_TOLERANCE * exact.abs()
        )  # if eager PyTorch overflows
        same = (
            (optimized_result == eager_result) | (optimized_result.isnan() & eager_result.isnan()) | finite | is_nearer
        )
        self.same_non_finite = self.same_non_finite and bool(same.all())
        self.count += exact.numel()

    def mean(self, name: str) -> float:
        """Return the root mean square of the errors of a kind."""
        return math.sqrt(self.squares[name] / self.count)

    def allowed_mean(self, allowance: Allowance, unit: float, smallest: float) -> float:
        """Return the allowed mean error."""
        allowed = allowance.times_eager * (self.mean("eager_mistake") + self.mean("slack")) + smallest
        return allowed + (MEAN_UNITS * unit + allowance.floor) * self.mean("magnitude")
