"""A model whose eager results are not finite, or all zeros, is never validated as perfect."""

from __future__ import annotations

import math

import pytest
import torch

from thunder_core.foundation.errors import AllZero, NotFinite, OutOfTolerance
from thunder_core.passes.recipe import Tolerance
from thunder_core.workflow.validation import ValidationReport, validate
from thunder_core.workflow.validation.comparison import ValidationSettings


class Masked(torch.nn.Module):
    """A weighted input, a mask with any values, and a loss."""

    def __init__(self, weight: float, mask: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), weight))
        self.mask = mask

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return values, a mask of floats, a mask of booleans, and the loss."""
        y = self.weight * x
        mask = torch.zeros_like(y).masked_fill(x > 1.5, self.mask)
        return {"loss": y.square().sum(), "y": y, "mask": mask, "nothing": y < -1e9}


def check(model: torch.nn.Module, optimized: object = None, **options: object) -> ValidationReport:
    """Compare the model, or a replacement, with the model on two inputs."""
    inputs = [{"x": torch.tensor([1.0, 2.0, 3.0])}, {"x": torch.tensor([1.0, 1.0, 3.0])}]
    return validate(
        optimized or model, model, inputs, Tolerance(floor=4e-6), ValidationSettings(language_model=False, **options)
    )


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("weight", "message"), [(math.nan, "NaN: all 2"), (math.inf, "infinite: all 2"), (-math.inf, "infinite: all 2")]
)
def test_non_finite_eager_outputs_are_refused(train: bool, weight: float, message: str) -> None:
    with pytest.raises(
        NotFinite, match=rf"`loss`, and \d more is infinite .* in eager PyTorch itself \({message}"
    ) as caught:
        check(Masked(weight), train=train)
    assert (caught.value.code, caught.value.status) == ("TH0403", 4)
    assert "--allow-non-finite" in caught.value.fix
    assert isinstance(caught.value.report, ValidationReport)
    assert caught.value.report.outputs[0].remark == message


def test_non_finite_eager_outputs_may_be_accepted_with_a_note() -> None:
    report = check(Masked(2.0, mask=-math.inf), allow_non_finite=True)
    assert report.passed
    assert {output.name: output.remark for output in report.outputs if output.remark} == {"mask": "infinite: 3 of 6"}
    assert report.ranked[0].name == "mask"
    (note,) = report.notes
    assert note.startswith("not finite in eager PyTorch or the reference: `mask` (infinite: 3 of 6); only finite")
    with pytest.raises(NotFinite, match="`mask` is infinite"):
        check(Masked(2.0, mask=-math.inf))


def test_accepted_non_finite_values_must_be_at_the_same_places_and_other_values_near() -> None:
    model = Masked(2.0, mask=math.nan)
    for change in (lambda out: out | {"mask": torch.zeros(3)}, lambda out: out | {"y": out["y"] * 1.01}):
        with pytest.raises(OutOfTolerance):
            check(model, lambda change=change, **inputs: change(model(**inputs)), allow_non_finite=True)


class Narrow(torch.nn.Module):
    """A model that overflows in the dtype of its weights and not in a wider dtype, or the other way round."""

    def __init__(self, *, wide_is_broken: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 1e30))
        self.wide_is_broken = wide_is_broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the square, which overflows in float32, or NaN in float64 alone."""
        if self.wide_is_broken:
            return self.weight * x * (math.nan if self.weight.dtype == torch.float64 else 1.0)
        return (self.weight * x).square()


def test_eager_and_the_reference_are_both_looked_at() -> None:
    with pytest.raises(NotFinite, match="in eager PyTorch itself"):
        check(Narrow(wide_is_broken=False))
    with pytest.raises(NotFinite, match="in the float64 reference"):
        check(Narrow(wide_is_broken=True))


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_agreement_on_zeros_alone_is_refused(train: bool) -> None:
    with pytest.raises(AllZero, match="gradient" if train else "output") as caught:
        check(Masked(0.0), train=train)
    assert (caught.value.code, caught.value.status) == ("TH0405", 4)
    report = check(Masked(0.0), train=train, allow_non_finite=True)
    assert report.vacuous
    assert any("all zeros in eager PyTorch on every input: `loss` (all zeros), `y`" in note for note in report.notes)


def test_some_outputs_of_zeros_are_noted_and_pass() -> None:
    report = check(Masked(2.0))
    assert (report.passed, report.vacuous) == (True, False)
    assert report.notes == ("all zeros in eager PyTorch on every input: `mask` (all zeros)",)
    assert [output.remark for output in report.outputs] == ["", "", "all zeros", ""]


def test_integers_may_all_be_zero_and_complex_numbers_be_none() -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.long() * 0, torch.complex(x, x * math.nan)

    with pytest.raises(NotFinite, match="`1` is infinite or NaN"):
        check(Both())
