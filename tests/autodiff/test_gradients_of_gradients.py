"""A gradient that a program computes with `create_graph=True`, differentiated by a backward pass after the program."""

from __future__ import annotations

import copy
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import nn

import thunder_core as thunder
from thunder_core.backend.runtime.autograd_signature import AutogradSignature
from thunder_core.foundation.errors import NotDifferentiable
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative

functional = nn.functional
SAVE_RESULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in ("tanh", "sigmoid", "exp", "expm1", "sqrt", "rsqrt", "reciprocal", "relu", "tan", "sin")
} | {
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(0).expand(8),
    "elu": functional.elu,
    "norm": lambda x: x.norm().expand(8),
    "cumprod": lambda x: x.cumprod(0),
    "prod": lambda x: x.prod().expand(8),
    "dropout": lambda x: functional.dropout(x, 0.5).tanh(),
    "in place": lambda x: (x * 2).tanh_() * 2,
}
CUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "detached": lambda x: x.tanh().detach() * x,
    "detached and written": lambda x: x.tanh().detach().mul_(x),
    "straight through": lambda x: x + (x.round() - x).detach(),
    "gumbel": lambda x: functional.gumbel_softmax(x, hard=True, dim=0) * x,
    "no grad": lambda x: x.exp() * torch.no_grad()(torch.tanh)(x),
    "leaf again": lambda x: x.exp().detach().requires_grad_() * x,
}


def penalty(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def penalized(x: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        return slope.sin().sum()

    return penalized


def gradient(function: Callable[[torch.Tensor], torch.Tensor], seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    x = torch.linspace(0.1, 1, 8, dtype=torch.float64).requires_grad_()
    function(x).backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("name", [*SAVE_RESULTS, *CUTS])
def test_backward_after_the_program_gives_the_second_derivative_of_eager(name: str) -> None:
    function = penalty((SAVE_RESULTS | CUTS)[name])
    compiled = thunder.jit(function, executors=("torch",))
    for seed in range(2):
        torch.testing.assert_close(gradient(compiled, seed), gradient(function, seed))


@pytest.mark.parametrize("name", ["tanh", "exp", "softmax", "sqrt"])
def test_a_third_derivative_matches_eager(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return penalty(lambda y: penalty(SAVE_RESULTS[name])(y) * y)(x)

    compiled = thunder.jit(function, executors=("torch",))
    torch.testing.assert_close(gradient(compiled, 0), gradient(function, 0))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Sigmoid())
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layers(x))
        return result


def loss_of(critic: Critic, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    value = critic(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return value.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


def test_a_gradient_penalty_trains_as_in_eager() -> None:
    torch.manual_seed(0)
    ours, theirs = Critic(), Critic()
    theirs.load_state_dict(ours.state_dict())
    compiled = thunder.jit(loss_of)
    for critic, loss in ((ours, compiled), (theirs, loss_of)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss(critic, torch.randn(6, 4)).backward()
            optimizer.step()
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


class WritingCritic(torch.nn.Module):
    """A critic that writes to buffers: running statistics, and the vectors of spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6)
        self.last = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(torch.nn.functional.leaky_relu(self.norm(self.first(x)), 0.2))
        return scores


def penalized(critic: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    scores = critic(x)
    (gradient,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    loss = (gradient.norm(2, 1) - 1).square().mean() + scores.mean()
    loss.backward()
    return loss.detach()


def test_step_with_a_gradient_penalty_is_one_program_that_matches_eager() -> None:
    torch.manual_seed(0)
    critic = WritingCritic()
    twin = copy.deepcopy(critic)
    compiled = thunder.jit(lambda x: penalized(twin, x))
    for _ in range(3):
        critic.zero_grad(set_to_none=False)
        twin.zero_grad(set_to_none=False)
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(x), penalized(critic, x))
        pairs = zip(twin.parameters(), critic.parameters(), strict=True)
        assert all(torch.allclose(ours.grad, eager.grad, atol=1e-6) for ours, eager in pairs)  # type: ignore[arg-type]
        torch.testing.assert_close(dict(twin.named_buffers()), dict(critic.named_buffers()))


class Smoothed(nn.Module):
    """A module whose result depends on a buffer both before and after a write to the buffer."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.register_buffer("average", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.first(x).tanh()
        scaled = features * self.average.clone()
        with torch.no_grad():
            self.average.mul_(0.9).add_(features.mean(0), alpha=0.1)
        return scaled * self.average.clone()


class Clipped(nn.Module):
    """A module that writes to its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.first.weight.clamp_(-0.2, 0.2)
        return self.first(x).tanh()


@pytest.mark.parametrize("kind", [WritingCritic, Smoothed, Clipped])
def test_a_gradient_penalty_through_a_compiled_module_that_writes_trains_as_in_eager(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    eager = kind()
    twin = copy.deepcopy(eager)
    compiled = thunder.jit(twin)
    for module, critic in ((eager, eager), (twin, compiled)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            real, fake = torch.randn(5, 4), torch.randn(5, 4)
            difference = 0 if kind is Clipped else critic(fake).mean() - critic(real).mean()
            x = torch.lerp(real, fake, 0.3).requires_grad_()
            (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            (difference + (gradient.norm(2, 1) - 1).square().mean()).backward()
            optimizer.step()
    torch.testing.assert_close(twin.state_dict(), eager.state_dict())


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_hessian_through_a_compiled_batch_norm_matches_eager(vectorize: bool) -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    twin = copy.deepcopy(eager)
    compiled = thunder.jit(twin)
    x = torch.randn(5, 4)
    found, expected = (
        torch.autograd.functional.hessian(lambda x, f=f: f(x).square().sum(), x, vectorize=vectorize)  # type: ignore[no-untyped-call]
        for f in (compiled, eager)
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(dict(twin.named_buffers()), dict(eager.named_buffers()))


def test_only_buffers_that_results_depend_on_are_copied_before_each_call() -> None:
    norm, smoothed = (differentiated(module) for module in (nn.BatchNorm1d(4), Smoothed()))
    assert (len(norm.written), norm.kept) == (3, ())
    assert smoothed.kept == smoothed.written
    assert len(smoothed.written) == 1


def differentiated(module: nn.Module) -> AutogradSignature:
    """Return the autograd signature of a module's program."""
    x = torch.randn(5, 4, requires_grad=True)
    with mock.patch.object(ProgramDerivative, "bridge", autospec=True, side_effect=ProgramDerivative.bridge) as bridge:
        thunder.jit(module)(x).sum().backward()
    signature: AutogradSignature = bridge.call_args.args[0].signature
    return signature


def test_second_derivative_of_a_program_that_writes_to_overlapping_inputs_is_refused_with_a_fix() -> None:
    @thunder.jit
    def function(x: torch.Tensor, buffer: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        buffer.add_(1)
        return (x * view.clone()).sin()

    buffer, x = torch.ones(4), torch.ones(4, requires_grad=True)
    with pytest.raises(NotDifferentiable, match="compile the whole function that asks for derivatives"):
        torch.autograd.grad(function(x, buffer, buffer[:]).sum(), x, create_graph=True)
