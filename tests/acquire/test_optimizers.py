"""Whole training steps as one program: losses, parameters, gradients and optimizer states match eager."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.fusion.test_fuse import Replays
from thunder_core.foundation.errors import DataDependent

Training = tuple[nn.Module, torch.optim.Optimizer]
X = torch.linspace(-1, 1, 6).reshape(2, 3)


def training(kind: str, **options: Any) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    return model, getattr(torch.optim, kind)(model.parameters(), **{"lr": 0.1, **options})


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def assert_same_state(ours: Training, eager: Training) -> None:
    torch.testing.assert_close(dict(ours[0].named_parameters()), dict(eager[0].named_parameters()), rtol=0, atol=0)
    one, other = ours[1].state_dict(), eager[1].state_dict()
    assert one["param_groups"] == other["param_groups"]
    torch.testing.assert_close(one["state"], other["state"], rtol=0, atol=0)


def assert_trains_alike(
    step: Callable[..., Any],
    ours: Training,
    eager: Training,
    between: Callable[..., Any] = lambda model, optimizer: None,
    executors: Sequence[Any] = ("torch",),
) -> Any:
    """Train for several steps, compiled and eager; return the compiled step."""
    compiled = thunder.jit(step, executors=executors)
    for _ in range(5):
        torch.testing.assert_close(compiled(*ours, X), step(*eager, X), rtol=0, atol=0)
        between(*ours)
        between(*eager)
        assert_same_state(ours, eager)
    return compiled


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5, "maximize": True}),
    ("SGD", {"momentum": 0.9, "foreach": True}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("Adam", {"foreach": True}),
    ("Adam", {"fused": True}),
    ("AdamW", {}),
    ("AdamW", {"foreach": True, "amsgrad": True}),
    ("AdamW", {"fused": True, "maximize": True}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adagrad", {}),
    ("NAdam", {}),
    ("Adadelta", {}),
    ("Adamax", {}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=lambda value: str(value).replace(" ", ""))
def test_optimizers_match_eager_bit_by_bit(kind: str, options: dict[str, Any]) -> None:
    compiled = assert_trains_alike(step, training(kind, **options), training(kind, **options))
    assert thunder.cache_misses(compiled) == 2  # once without states and gradients, and once with them


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=lambda value: str(value).replace(" ", ""))
def test_optimizers_in_regions_match_eager(kind: str, options: dict[str, Any]) -> None:
    executor = Replays(updates=True)
    ours, eager = training(kind, **options), training(kind, **options)
    compiled = assert_trains_alike(step, ours, eager, executors=(executor, "torch"))
    assert thunder.cache_misses(compiled) == 2
    assert [p._version for p in ours[0].parameters()] == [p._version for p in eager[0].parameters()]
    assert [p._version for p in ours[0].parameters()] == [p._version for p in eager[0].parameters()]
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    fused = {name for line in lines if line.executor == "replays" for name in line.mutates}
    given = thunder.last_traces(compiled)[0].inputs
    weights = {proxy.name for proxy in given if re.fullmatch(r".*_params_\d", proxy.name)}
    assert len(weights) == 4
    single = options.get("fused", False) or (kind, options) == ("SGD", {})  # a region of one operation is not fused
    assert fused <= weights if single else fused >= weights


def test_gradients_can_be_kept_at_zero_clipped_and_accumulated() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        for part in x.split(1):
            (model(part).square().mean() / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return norm

    compiled = assert_trains_alike(step, training("Adam"), training("Adam"))
    assert thunder.cache_misses(compiled) == 2


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_learning_rate_that_changes_is_traced_once(kind: str) -> None:
    def decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] *= 0.9

    compiled = assert_trains_alike(step, training(kind), training(kind), decay)
    assert thunder.cache_misses(compiled) == 2
    assert "optimizer_param_groups_0_lr" in str(thunder.last_traces(compiled)[-1])


def test_schedulers_step_outside() -> None:
    pairs = [training("AdamW"), training("AdamW")]
    compiled = thunder.jit(step)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10) for _, optimizer in pairs]
    for _ in range(6):
        torch.testing.assert_close(compiled(*pairs[0], X), step(*pairs[1], X), rtol=0, atol=0)
        for scheduler in schedulers:
            scheduler.step()
    assert_same_state(*pairs)
    assert thunder.cache_misses(compiled) == 2


def test_number_that_the_program_compares_is_guarded() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        rate = optimizer.param_groups[0]["lr"]
        return x * rate if rate > 0.05 else x + rate

    def decay(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] *= 0.7

    assert_trains_alike(step, training("SGD"), training("SGD"), decay)


def test_the_loss_can_be_returned_as_a_number() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> tuple[float, float]:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item(), loss.item() * 2 + 1

    compiled = assert_trains_alike(step, training("SGD"), training("SGD"))
    assert isinstance(compiled(*training("SGD"), X)[0], float)


def test_branch_on_the_loss_is_decided_at_each_call() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if loss.item() > 0.2:
            return loss
        optimizer.step()
        return loss

    ours, eager = training("SGD"), training("SGD")
    compiled = thunder.jit(step)
    for number in range(8):
        x = X * (number % 3)
        torch.testing.assert_close(compiled(*ours, x), step(*eager, x), rtol=0, atol=0)
        assert_same_state(ours, eager)
    assert thunder.cache_misses(compiled) <= 4


def test_branch_on_the_loss_can_be_refused_with_the_line() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        if loss.item() > 1e6:
            return loss
        optimizer.step()
        return loss

    model, optimizer = training("SGD")
    with pytest.raises(DataDependent, match=r"Tensor\.item") as caught:
        thunder.jit(step, data_dependent="error")(model, optimizer, X)
    assert caught.value.where is not None
    assert caught.value.where.function.endswith("step")
    assert not optimizer.state
    assert model[0].weight.grad is None


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"weight_decay": 0.1}], ids=str)
def test_an_optimizer_that_decides_by_its_count_of_steps_is_traced_for_each_decision(options: dict[str, Any]) -> None:
    ours, eager = training("RAdam", **options), training("RAdam", **options)
    compiled = thunder.jit(step)
    for _ in range(50):
        torch.testing.assert_close(compiled(*ours, X), step(*eager, X), rtol=0, atol=0)
        assert_same_state(ours, eager)
    assert thunder.cache_misses(compiled) == 3  # without states, in the first steps, and from the sixth step on
    assert ", in step): was False, is True" in thunder.recompile_reasons(compiled)[-2]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_line_search_is_traced_with_its_values(search: str | None) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    def made() -> Training:
        return training("LBFGS", max_iter=3, line_search_fn=search)

    ours, eager, compiled = made(), made(), thunder.jit(step)
    for _ in range(2):
        torch.testing.assert_close(compiled(*ours, X), step(*eager, X), rtol=0, atol=0)
        torch.testing.assert_close(list(ours[0].parameters()), list(eager[0].parameters()), rtol=0, atol=0)


def test_hooks_of_optimizers_are_called() -> None:
    seen: list[str] = []

    def note(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append("stepped")

    model, optimizer = training("SGD")
    optimizer.register_step_post_hook(note)
    compiled = thunder.jit(step)
    for _ in range(3):
        compiled(model, optimizer, X)
    assert seen == ["stepped"] * 3


def test_a_llama_trains_for_fifty_steps_as_in_eager() -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    batches = [torch.randint(64, (2, 12)) for _ in range(3)]

    def made() -> Training:
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-3)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    ours, eager, compiled = made(), made(), thunder.jit(train)
    curves = [
        [train_step(*pair, batches[number % 3]) for number in range(50)]
        for train_step, pair in ((compiled, ours), (train, eager))
    ]
    torch.testing.assert_close(*curves)
    assert curves[0][-1] < curves[0][0] / 2
    assert thunder.cache_misses(compiled) == 2


Scaling = tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]


def scaling(kind: str, **options: Any) -> Scaling:
    return *training(kind, **options), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)


def scaled(model: nn.Module, scaler: torch.amp.GradScaler, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    return loss.detach()


def assert_scales_alike(ours: Callable[..., Any], eager: Callable[..., Any], one: Scaling, other: Scaling) -> None:
    for number in range(5):
        x = X * torch.inf if number == 2 else X  # the gradients overflow, and the step is skipped
        torch.testing.assert_close(ours(*one, x), eager(*other, x), rtol=0, atol=0, equal_nan=True)
        assert one[2].get_scale() == other[2].get_scale()
        assert_same_state(one[:2], other[:2])


def test_gradients_are_scaled_around_a_compiled_step() -> None:
    def step(run: Callable[..., Any]) -> Callable[..., Any]:
        def whole(model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, x: torch.Tensor) -> torch.Tensor:
            loss = run(model, scaler, x)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return whole

    assert_scales_alike(step(thunder.jit(scaled)), step(scaled), scaling("Adam"), scaling("Adam"))


def scaled_whole(model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, x: torch.Tensor) -> torch.Tensor:
    loss = scaled(model, scaler, x)
    scaler.step(optimizer)
    scaler.update()
    return loss


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_fused_optimizers_skip_steps_in_their_kernel(kind: str) -> None:
    compiled = thunder.jit(scaled_whole)
    assert_scales_alike(compiled, scaled_whole, scaling(kind, fused=True), scaling(kind, fused=True))
    assert thunder.cache_misses(compiled) == 2


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_other_optimizers_skip_steps_by_a_value(kind: str) -> None:
    compiled = thunder.jit(scaled_whole)
    assert_scales_alike(compiled, scaled_whole, scaling(kind), scaling(kind))
    assert thunder.cache_misses(compiled) <= 4


def test_a_whole_step_is_fused_and_follows_eager() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.gelu(model(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    ours, eager = training("AdamW"), training("AdamW")
    compiled = thunder.jit(step, executors=("inductor", "torch"))
    for _ in range(6):
        torch.testing.assert_close(compiled(*ours, X), step(*eager, X))
        for _, optimizer in (ours, eager):
            optimizer.param_groups[0]["lr"] *= 0.9
    torch.testing.assert_close(dict(ours[0].named_parameters()), dict(eager[0].named_parameters()))
    assert thunder.cache_misses(compiled) == 2
    lines = thunder.last_traces(compiled)[-1].bound_symbols
    fused = [line for line in lines if line.executor == "inductor"]
    assert fused
    assert any(part.module.startswith("backward of ") for line in fused for part in line.subsymbols)
    steps = [line for line in fused if line.mutates]
    assert len(steps) == 4, "one region for each parameter"
    others = {line.symbol.name for line in lines if line.mutates and line.executor != "inductor"}
    assert others == {"torch.Tensor.add_"}, "only steps are counted outside of them"


def make_stepper() -> type[torch.optim.Optimizer]:
    """Return a new class of optimizers, whose `step` PyTorch wraps when the first instance is created."""

    class Descent(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

    return Descent


def test_a_program_creates_the_first_instance_of_an_optimizer() -> None:
    def program(x: torch.Tensor, kind: type[torch.optim.Optimizer]) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = kind([weight])
        for _ in range(2):
            optimizer.zero_grad()
            (x * weight).sum().backward()
            optimizer.step()
        return weight.detach()

    x, kind = torch.ones(3, 2), make_stepper()
    expected, compiled = program(x, make_stepper()), thunder.jit(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, kind), expected)
    assert thunder.cache_misses(compiled) == 2  # the first call wraps the method


@pytest.mark.parametrize("wraps_again", [False, True])
def test_a_program_replaces_a_method_and_calls_it(wraps_again: bool) -> None:
    def make_class() -> type:
        class Model:
            def double(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2

        return Model

    def program(x: torch.Tensor, kind: Any) -> torch.Tensor:
        original = kind.double
        if wraps_again or not hasattr(original, "is_wrapped"):
            kind.double = lambda self, x: original(self, x) + 1
            kind.double.is_wrapped = True
        return kind().double(x)

    x, kinds, compiled = torch.ones(2), (make_class(), make_class()), thunder.jit(program)
    for _ in range(3):
        assert torch.equal(compiled(x, kinds[0]), program(x, kinds[1]))
