"""Programs that write in place, or save tensors of unknown sizes, have a compiled backward wherever eager has one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import thunder_core as thunder

Program = Callable[[Tensor, Tensor], Any]
COMPILED: dict[str, Program] = {}
RECORDED: dict[str, Program] = {}
REFUSED: dict[str, Program] = {}
LABELS = torch.tensor([[1, 2, -100], [2, 1, 3]])


def of(kind: dict[str, Program]) -> Callable[[Program], Program]:
    def register(program: Program) -> Program:
        kind[program.__name__] = program
        return program

    return register


def scores(x: Tensor) -> Tensor:
    """Logarithms of probabilities of 4 tokens for 6 steps of a batch of 2."""
    return x.log_softmax(-1)[:, None].expand(-1, 2, -1)


@of(COMPILED)
def ctc_loss_of_what_was_written(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[0] = 0
    return functional.ctc_loss(scores(y), LABELS.clamp(0), torch.tensor([5, 6]), torch.tensor([2, 3]))


@of(COMPILED)
def ctc_loss_of_targets_in_a_row(x: Tensor, w: Tensor) -> Tensor:
    known = LABELS >= 0
    targets, lengths = LABELS.masked_select(known), known.sum(-1)
    return functional.ctc_loss(scores(x * w), targets, torch.tensor([6, 1]), lengths, zero_infinity=True)


@of(COMPILED)
def ctc_loss_of_lengths_in_a_tuple(x: Tensor, w: Tensor) -> Tensor:
    return functional.ctc_loss(scores(x * w), LABELS.clamp(0), (5, 6), (2, 3), reduction="none")


@of(COMPILED)
def ctc_loss_without_a_batch(x: Tensor, w: Tensor) -> Tensor:
    return functional.ctc_loss((x * w).log_softmax(-1), LABELS[1], torch.tensor(6), torch.tensor(3), reduction="sum")


@of(COMPILED)
def recurrent_layer_of_what_was_written(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * w
    y[x > 1] = 0
    zeros, weights = torch.zeros(1, 1, 4), x[:4].repeat(4, 1)
    output, hidden, cell = torch.lstm(y[None], [zeros, zeros], [weights, weights], False, 1, 0.0, True, False, True)
    return output * w, hidden, cell


@of(COMPILED)
def number_where_a_mask_is_set(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[x > 0] = 0
    return y


@of(COMPILED)
def tensor_where_a_mask_is_set(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y[torch.tensor([True, False, True, False, True, False])] = w
    return y.exp()


@of(COMPILED)
def elements_of_a_mask_are_updated(x: Tensor, w: Tensor) -> Tensor:
    y, mask = x * 2, x > 0
    y[mask] = y[mask] * 3
    return y * w


@of(COMPILED)
def elements_are_selected_after_a_write(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y[0] = w
    return y[y > 0], y.masked_select(y < 1)


@of(COMPILED)
def rows_are_swapped_by_lists(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y[[0, 1]] = y[[1, 0]]
    y[:, 1].mul_(w[1])
    y.t()[0].add_(x[:, 0])
    return y


@of(COMPILED)
def experts_add_to_the_rows_that_chose_them(x: Tensor, w: Tensor) -> Tensor:
    total, first = torch.zeros_like(x), x[:, 0] > 0
    for number in range(2):
        (rows,) = torch.where(first == bool(number))
        total.index_add_(0, rows, x[rows] * w * (number + 1))
    return total


@of(COMPILED)
def indices_are_written_to(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.arange(6)[x[:, 0] > -9]
    index.mul_(0)
    index.add_(1)
    y = x * 1
    y[index] = 2
    return y * w, index


@of(COMPILED)
def random_numbers_like_a_tensor(x: Tensor, w: Tensor) -> Tensor:
    drawn = x.new_empty(6, 1).bernoulli_(0.5)
    drawn.div_(0.5)
    y = functional.relu(x * w, inplace=True)
    return y * drawn * torch.rand_like(x).mul_(2)


@of(COMPILED)
def parameter_is_scaled_without_autograd(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    before = x + w
    with torch.no_grad():
        w.mul_(2)
    return before, x * w, w


@of(COMPILED)
def result_is_overwritten_without_autograd(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    part = y[1:3]
    with torch.no_grad():
        y[y > 0] = 0
        part.add_(1)
    return y * w, part.sin()


@of(COMPILED)
def constant_of_no_grad_is_added_to(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        base = torch.zeros(4)
        base += w
        positions = base.view(1, 4).detach()
        positions *= 2
    positions += x[:1]
    part = positions[:, 1:]
    part *= w[1:]
    return positions, part


@of(RECORDED)
def shape_changed_without_autograd(x: Tensor, w: Tensor) -> Any:
    y = x * w
    with torch.no_grad():
        y.unsqueeze_(0)
    return y + 1, w * 2


@of(RECORDED)
def detached_tensor_and_its_source_are_used(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        base = w * 2
        positions = base.view(2, 2).detach()
    positions += x[:2, :2]
    return positions * 1, base * x


@of(RECORDED)
def write_without_autograd_follows_a_tracked_write(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        base = (w * 2).detach()
    base += x[0]
    with torch.no_grad():
        base *= 3
    return base * w


@of(REFUSED)
def saved_factor_is_masked(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    z = y * y
    y[x > 0] = w[0]
    return z + y


@of(REFUSED)
def saved_parameter_is_scaled(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    with torch.no_grad():
        w.mul_(2)
    return y * w


@of(REFUSED)
def saved_result_is_scaled(x: Tensor, w: Tensor) -> Tensor:
    y = x.exp()
    with torch.no_grad():
        y.mul_(2)
    return y * w


@of(REFUSED)
def saved_indices_are_overwritten(x: Tensor, w: Tensor) -> Tensor:
    index = torch.arange(6)[x[:, 0] > -9]
    y = x[index] * w
    z = x * 1
    z[0] = 1
    index.mul_(0)
    return y + z


@of(REFUSED)
def view_of_no_grad_is_added_to(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        base = w * 2
        view = base.view(2, 2)
    view += x[:2, :2]
    return view * 1


def outcome(program: Program) -> Any:
    """The results of a call and its backward pass, and the changed state; or the class of the error."""
    x, w = (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) for shape in ((6, 4), (4,)))
    x.requires_grad_()
    w.requires_grad_()
    torch.manual_seed(0)
    try:
        output = program(x, w)
        results = output if isinstance(output, tuple) else (output,)
        values = [result.detach().clone() for result in results]
        sum(result.sin().sum() for result in results if result.requires_grad).backward()  # type: ignore[union-attr]
    except RuntimeError as error:
        return str(error)
    return values, [result.requires_grad for result in results], x.grad, w.grad, w.detach(), (x._version, w._version)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", [*COMPILED, *RECORDED])
def test_results_gradients_and_versions_equal_eager(name: str, cache: str) -> None:
    program = (COMPILED | RECORDED)[name]
    compiled, expected = thunder.jit(program, cache=cache), outcome(program)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), expected)
    assert bool(thunder.last_backward_reason(compiled)) == (name in RECORDED)


@pytest.mark.parametrize("name", REFUSED)
def test_error_of_a_refused_write_matches_eager(name: str) -> None:
    expected = outcome(REFUSED[name])
    assert "inplace" in expected
    assert outcome(thunder.jit(REFUSED[name])) == expected


@pytest.mark.parametrize("name", ["ctc_loss_of_what_was_written", "recurrent_layer_of_what_was_written"])
def test_program_that_saves_unknown_sizes_is_right_with_inductor(name: str) -> None:
    compiled = thunder.jit(COMPILED[name], executors=("inductor", "torch"))
    torch.testing.assert_close(outcome(compiled), outcome(COMPILED[name]))
    assert thunder.last_backward_reason(compiled) == ""


def test_one_program_serves_targets_of_all_lengths() -> None:
    def loss(x: Tensor, lengths: Tensor) -> Tensor:
        return functional.ctc_loss(scores(x), LABELS.clamp(0), torch.tensor([6, 6]), lengths)

    compiled = thunder.jit(loss)
    for lengths in (torch.tensor([2, 3]), torch.tensor([1, 0]), torch.tensor([0, 0])):
        gradients = []
        for call in (compiled, loss):
            x = torch.linspace(-1, 1, 24).view(6, 4).requires_grad_()
            call(x, lengths).backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1
    assert thunder.last_backward_reason(compiled) == ""


def squares_of_lstm(model: nn.LSTM) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x)[0].square().sum()


def test_second_derivative_of_a_recurrent_layer_equals_eager() -> None:
    loss = squares_of_lstm(nn.LSTM(4, 3))
    found = []
    for call in (thunder.jit(loss), loss):
        x = torch.linspace(-1, 1, 24).view(6, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(call(x), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), x))
    torch.testing.assert_close(*found)


def test_derivatives_inside_a_program_equal_eager() -> None:
    loss, x = squares_of_lstm(nn.LSTM(4, 3)), torch.linspace(-1, 1, 24).view(6, 4)
    losses = (
        loss,
        lambda y: functional.ctc_loss(scores(y), LABELS.clamp(0), torch.tensor([6, 6]), torch.tensor([2, 3])),
    )
    for function in losses:
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(function(leaf), leaf)
        torch.testing.assert_close(thunder.jit(lambda y, f=function: thunder.grad(f)(y))(x), expected)


def test_step_that_trains_a_recurrent_layer_itself_equals_eager() -> None:
    models = [nn.LSTM(4, 3, 2, bidirectional=True)]
    models.append(copy.deepcopy(models[0]))
    x = torch.linspace(-1, 1, 24).view(6, 4)

    def step_of(model: nn.LSTM) -> Callable[[Tensor], Tensor]:
        def step(x: Tensor) -> Tensor:
            model.zero_grad()
            loss = squares_of_lstm(model)(x)
            loss.backward()
            return loss

        return step

    compiled, eager = thunder.jit(step_of(models[0])), step_of(models[1])
    for _ in range(2):
        torch.testing.assert_close(compiled(x), eager(x))
        for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_reason_names_the_cause_that_remains_without_the_writes() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y[0] = 0
        y = y.tanh()
        y.register_hook(lambda gradient: gradient * 2)
        return y

    compiled = thunder.jit(program)
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert "registers a hook" in thunder.last_backward_reason(compiled)


class Queue(nn.Module):
    """A queue of keys, as in contrastive learning: the position of the next key is a number in a buffer."""

    keys: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(8, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        new, start = self.layer(x), int(self.place)
        logits = new @ self.keys.clone().detach().T
        end = min(start + len(new), 8)
        self.keys[start:end] = new[: end - start].detach()
        self.place[0] = end % 8
        return logits


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_buffers_at_a_place_that_another_buffer_gives_are_written_as_in_eager(cache: str) -> None:
    ours, eager = Queue(), Queue()
    compiled = thunder.jit(ours, cache=cache)
    for n in (2, 3, 2, 3):
        x = torch.linspace(-1, 1, 4 * n).view(n, 4).requires_grad_()
        results = [compiled(x), eager(x)]
        torch.testing.assert_close(*results)
        gradients = [
            torch.autograd.grad(result.sum(), model.layer.weight)[0]
            for result, model in zip(results, (ours, eager), strict=True)
        ]
        torch.testing.assert_close(*gradients)
        torch.testing.assert_close(ours.state_dict(), eager.state_dict())
