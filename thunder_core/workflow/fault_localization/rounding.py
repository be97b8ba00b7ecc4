"""Rounding: whether two computations of one result differ by more than floating-point arithmetic explains.

A result may be as far from the computation in float64 as eager PyTorch's is, times a factor, plus some units in the
last place. Where that is not enough, float64 is computed once more from inputs whose last digits are others: what
these change is rounding, too. So a fault of 1e-4 in float32 is told from rounding, at whatever depth it stands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from thunder_core.backend.claiming.comparison import (
    EIGHT_BITS,
    Exact,
    Measured,
    blocks_of,
    different_at,
    largest_difference,
    largest_value,
)
from thunder_core.backend.claiming.comparison import ROUNDING as WITHOUT_REFERENCE
from thunder_core.foundation.options.tolerance import Tolerance

TIMES_EAGER = 2.0
TIMES_INPUTS = 4.0  # of what the last digits of inputs change
UNITS: Mapping[torch.dtype, float] = {torch.bfloat16: 2.0, torch.float16: 2.0}  # in the last place of each element
USUAL_UNITS = 4.0
MEAN_UNITS = 0.5  # in the root of the mean square of all errors
NEARER = 0.05  # of a value that float64 holds and the dtype does not


@dataclass(frozen=True)
class Allowance:
    """The error that a result may have: so many times eager PyTorch's, and a part of the largest value, the `floor`.

    A recipe whose tolerance is looser than that of rounding computes something else on purpose (`is_strict` is False).
    """

    times_eager: float = TIMES_EAGER
    floor: float = 0.0

    @classmethod
    def of(cls, tolerance: Tolerance, usual: Tolerance) -> Allowance:
        """The allowance of a recipe with a tolerance, where that of rounding is the `usual` one."""
        if tolerance.times_eager <= usual.times_eager and tolerance.floor <= usual.floor:
            return cls()
        return cls(max(tolerance.times_eager, TIMES_EAGER), tolerance.floor)

    @property
    def is_strict(self) -> bool:
        """Whether nothing but rounding is allowed."""
        return self == ROUNDING


ROUNDING = Allowance()


def rounding_difference(
    actual: torch.Tensor, expected: torch.Tensor, exact: Exact, allowance: Allowance = ROUNDING
) -> Measured:
    """The difference of a result from eager PyTorch's, of one shape and dtype, and whether it is more than is allowed.

    Integers and booleans are to be equal, but where eager PyTorch's are not those of float64 either.
    """
    largest = largest_difference(actual, expected)
    if not largest:
        return Measured(None, 0.0)
    if not (expected.is_floating_point() or expected.is_complex()):
        return _counted(actual, expected, exact, largest, allowance)
    reference = exact()
    if reference is None or reference.shape != expected.shape:
        scale = largest_value(expected)
        allowed = max(allowance.floor, WITHOUT_REFERENCE.get(expected.dtype, EIGHT_BITS)) * scale
        wrong = different_at(actual, expected, largest) if largest > allowed else None
        return Measured(wrong, largest, largest, 0.0, allowed, scale)
    measured = compared_with_float64(reference, actual, expected, largest, allowance)
    perturbed = exact(perturbed=True) if measured.difference is not None else None
    if perturbed is not None and perturbed.shape == reference.shape:
        measured = compared_with_float64(reference, actual, expected, largest, allowance, perturbed)
    return measured


def _counted(
    actual: torch.Tensor, expected: torch.Tensor, exact: Exact, largest: float, allowance: Allowance
) -> Measured:
    """Integers must be equal, but for as many as eager PyTorch's own differ from float64's, as rounding decides."""
    reference = exact()
    own = others = 0
    if reference is not None and reference.shape == expected.shape:
        own, others = (int(torch.ne(one, reference).sum()) for one in (expected, actual))
        perturbed = exact(perturbed=True)
        if perturbed is not None and perturbed.shape == reference.shape:
            own += int(torch.ne(perturbed, reference).sum())
    wrong = not own or others > allowance.times_eager * own
    return Measured(different_at(actual, expected, largest) if wrong else None, largest, largest, 0.0, 0.0)


def compared_with_float64(
    reference: torch.Tensor,
    actual: torch.Tensor,
    expected: torch.Tensor,
    largest: float,
    allowance: Allowance,
    perturbed: torch.Tensor | None = None,
) -> Measured:
    """A result and eager PyTorch's beside the same in float64, and where the last digits of inputs are others."""
    information = torch.finfo(expected.dtype)
    unit, smallest = information.eps, information.tiny
    units = UNITS.get(expected.dtype, USUAL_UNITS) * unit
    found = ErrorSums(units)
    others = () if perturbed is None else (perturbed,)
    for block in blocks_of(actual, expected, reference, *others):
        found.add(*block)
    allowed = allowance.times_eager * found.eager_mistake + allowance.floor * found.magnitude
    allowed += TIMES_INPUTS * found.slack + smallest
    few = expected.numel() < 64  # a mean over so few elements says nothing that the largest does not
    right = found.same_non_finite and found.excess <= allowed
    right = right and (few or found.mean("mistake") <= found.allowed_mean(allowance, unit, smallest))
    return Measured(
        None if right else different_at(actual, expected, largest),
        largest,
        found.mistake,
        found.eager_mistake,
        allowed + units * found.magnitude,
        found.magnitude,
    )


@dataclass
class ErrorSums:
    """The errors of a result and of eager PyTorch's, block by block: the largest ones, and sums of their squares.

    `excess` is by how much the largest error is above so many `units` in the last place of its element; `slack` is
    what the last digits of inputs change.
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
        self, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, perturbed: torch.Tensor | None = None
    ) -> None:
        """Add a block of a result, of eager PyTorch's, of the one in float64, and of that from other last digits."""
        finite = theirs.isfinite() & exact.isfinite()
        errors = {
            "magnitude": exact.abs().where(finite, 0.0),
            "mistake": (ours - exact).abs().where(finite, 0.0).nan_to_num(nan=torch.inf),
            "eager_mistake": (theirs - exact).abs().where(finite, 0.0),
        }
        if perturbed is not None:
            slack = (perturbed - exact).abs().where(finite, 0.0)
            errors["slack"] = slack.nan_to_num(nan=0.0, posinf=0.0)
        for name, values in errors.items():
            setattr(self, name, max(getattr(self, name), float(values.max())))
            self.squares[name] += float(values.square().sum())
        self.excess = max(self.excess, float((errors["mistake"] - self.units * errors["magnitude"]).max()))
        is_nearer = exact.isfinite() & ((ours - exact).abs() <= NEARER * exact.abs())  # where eager PyTorch overflows
        same = (ours == theirs) | (ours.isnan() & theirs.isnan()) | finite | is_nearer
        self.same_non_finite = self.same_non_finite and bool(same.all())
        self.count += exact.numel()

    def mean(self, name: str) -> float:
        """The root of the mean of the squares of errors of a kind."""
        return math.sqrt(self.squares[name] / self.count)

    def allowed_mean(self, allowance: Allowance, unit: float, smallest: float) -> float:
        """The mean error that is allowed."""
        allowed = allowance.times_eager * (self.mean("eager_mistake") + self.mean("slack")) + smallest
        return allowed + (MEAN_UNITS * unit + allowance.floor) * self.mean("magnitude")
