"""A training step passes if its gradients equal eager's for the same random numbers, and fails otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from thunder_core.foundation.errors import NoLoss, NotComparable, NotFinite, OtherRandomNumbers, OutOfTolerance
from thunder_core.passes.recipe import Tolerance
from thunder_core.workflow.validation import ValidationReport, validate
from thunder_core.workflow.validation.comparison import ValidationSettings
from thunder_core.workflow.validation.draws import DrawnValues
from thunder_core.workflow.validation.gradients import loss_of, preserve_gradients


class Net(torch.nn.Module):
    """Attention with biases, dropout, a running mean and a frozen scale; its loss is the mean square."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))
        self.dropout = torch.nn.Dropout(dropout)
        self.norm = torch.nn.BatchNorm1d(8)
        self.scale = torch.nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the values that it is computed from."""
        weights = (self.query(x) @ self.key(x).mT).softmax(-1)
        y = self.norm(self.dropout(weights @ self.value(x)) * self.scale)
        return {"loss": y.square().mean() + y.pow(3).sum(), "y": y}


@pytest.fixture
def net() -> Net:
    """The net with seeded weights, in train mode."""
    torch.manual_seed(0)
    return Net().train()


def check(
    optimized: Callable[..., object], net: torch.nn.Module, *, count: int = 2, **options: object
) -> ValidationReport:
    """Validate a training step on two inputs, or on the given number."""
    inputs = [{"x": torch.randn(6, 8, generator=torch.Generator().manual_seed(n))} for n in range(count)]
    return validate(
        optimized, net, inputs, Tolerance(floor=4e-6), ValidationSettings(language_model=False, train=True, **options)
    )


def test_loss_outputs_and_gradients_are_compared_and_no_mark_is_left(net: Net) -> None:
    net.query.weight.grad = torch.full((8, 8), 7.0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    report = check(net, net)
    names = [output.name for output in report.outputs]
    assert names[:2] == ["loss", "y"]
    gradients = [f"{name}.grad" for name, one in net.named_parameters() if one.requires_grad]
    assert names[2:] == [*gradients, *(f"{name} after the call" for name, _ in net.named_buffers())]
    assert report.reference_dtype == "float64"
    assert report.notes == ()
    assert all(output.optimized == output.eager for output in report.outputs)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert [name for name, one in net.named_parameters() if one.grad is not None] == ["query.weight"]
    assert (net.query.weight.grad == 7.0).all()


def test_a_gradient_of_rounding_alone_is_compared_with_the_largest(net: Net) -> None:
    report = check(net, net, count=1)
    by_name = {output.name: output for output in report.outputs}
    key = by_name["key.bias.grad"]
    assert key.optimized.maximum > 1e-10  # the gradient is zero: softmax ignores a constant that all its values share
    assert key.scale == max(output.scale for name, output in by_name.items() if name.endswith(".grad"))
    assert by_name["key.weight.grad"].scale < key.scale

    assert check(changed(net, "key.bias", lambda gradient: gradient + 1e-7), net).passed


class Changed(torch.autograd.Function):
    """An identity function that changes the gradient."""

    @staticmethod
    def forward(ctx, tensor, change):
        ctx.change = change
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def changed(net: Net, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., object]:
    """The net with a change of the gradient of one parameter."""

    def run(**inputs: torch.Tensor) -> object:
        parameters = dict(net.named_parameters())
        parameters[name] = Changed.apply(parameters[name], change)
        return torch.func.functional_call(net, parameters, (), inputs)

    return run


def test_a_wrong_gradient_is_out_of_tolerance(net: Net) -> None:
    with pytest.raises(OutOfTolerance, match=r"`value\.weight\.grad` differs from the float64"):
        check(changed(net, "value.weight", lambda gradient: gradient * 1.001), net)


def test_a_gradient_too_many_cannot_be_compared(net: Net) -> None:
    def run(**inputs: torch.Tensor) -> object:
        net.scale.grad = torch.zeros(8)
        return net(**inputs)

    with pytest.raises(NotComparable, match=r"`scale\.grad` is a tensor of float32 and shape \[8\] in the optimized"):
        check(run, net)


def test_other_random_numbers_are_refused(net: Net) -> None:
    def run(**inputs: torch.Tensor) -> object:
        torch.rand(1)
        return net(**inputs)

    with pytest.raises(OtherRandomNumbers, match="other random numbers") as caught:
        check(run, net)
    assert (caught.value.code, caught.value.status) == ("TH0404", 4)


class Noise(torch.nn.Module):
    """A model that draws random numbers in the dtype of its weights: they differ in another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return a noisy loss."""
        return ((self.weight * torch.randn_like(self.weight)).sum() + x.sum(),)


def test_reference_computes_with_the_random_numbers_of_eager() -> None:
    report = check(noise := Noise(), noise)
    assert (report.reference_dtype, report.notes) == ("float64", ())
    assert all(0 < output.eager.maximum < 1e-5 for output in report.outputs if output.name.startswith("["))


class MoreNoise(Noise):
    """A model that draws more numbers in float64."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return a noisy loss."""
        count = 2 if self.weight.dtype == torch.float64 else 1
        return ((self.weight * torch.rand(count, 64)).sum() + x.sum(),)


def test_a_reference_that_draws_other_numbers_is_ignored() -> None:
    report = check(noise := MoreNoise(), noise)
    assert report.reference_dtype == "float32"  # the dtype of eager
    assert report.notes[0] == "the random numbers differ in float64, so the reference is float32"


def test_only_operations_that_advance_a_generator_are_recorded() -> None:
    draws = DrawnValues(())
    with draws.record():
        torch.nn.functional.dropout(torch.ones(4), 0.5)
        torch.nn.functional.scaled_dot_product_attention(*(torch.ones(1, 1, 2, 8) for _ in range(3)))
    assert [name for name, _ in draws.draws] == ["aten.bernoulli_.float"]
    assert draws.agree_with(draws)
    assert not draws.agree_with(DrawnValues(()))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_non_finite_eager_gradients_cannot_be_compared(net: Net, value: float) -> None:
    with torch.no_grad():
        net.value.weight[0, 0] = value
    with pytest.raises(NotFinite, match="in eager PyTorch itself") as caught:
        check(net, net)
    assert (caught.value.code, caught.value.status) == ("TH0403", 4)


LOSSES = {
    "nothing": None,
    "no loss": {"logits": torch.ones(2)},
    "none": {"loss": None},
    "not one number": (torch.ones(2, requires_grad=True),),
    "a constant": {"loss": torch.tensor(1.0)},
}


@pytest.mark.parametrize("kind", LOSSES)
def test_outputs_without_a_loss_are_refused(kind: str) -> None:
    with pytest.raises(NoLoss):
        loss_of(LOSSES[kind])


def test_gradients_come_back_after_an_error(net: Net) -> None:
    net.scale.grad = kept = torch.ones(8)
    with pytest.raises(ValueError, match="on the way"), preserve_gradients(net):
        assert net.scale.grad is None
        raise ValueError("on the way")
    assert net.scale.grad is kept
