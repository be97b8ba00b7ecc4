"""Checks of larger programs with collectives, run on each rank."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import thunder_core as thunder
from tests.distributed.collectives.collectives import numbers
from tests.distributed.comparison import assert_equal, assert_refused, gradients
from tests.distributed.wrappers.chains import SMALL
from thunder_core.foundation.errors import OperationFailed, RecompileWarning, UnsupportedError

STEPS = 10


class Model(torch.nn.Module):
    """Two linear layers in float64, the same on each rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 8, dtype=torch.float64)
        self.second = torch.nn.Linear(8, 2, dtype=torch.float64)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def training(model: Any) -> list[Any]:
    """The losses, the gradients and the parameters of ten steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    results: list[Any] = []
    for step in range(STEPS):
        loss = model(numbers(step, 3, 4) / 100).pow(2).sum()
        loss.backward()
        results += [loss.detach(), *(whole(parameter.grad) for parameter in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return [*results, *(whole(parameter.detach()) for parameter in model.parameters())]


def whole(tensor: Any) -> torch.Tensor:
    """A tensor without its shards."""
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return tensor.clone()


def data_parallel_around_compiled_module() -> None:
    assert_equal(training(DistributedDataParallel(thunder.jit(Model()))), training(DistributedDataParallel(Model())))


def in_small_buckets(**options: Any) -> list[Any]:
    """A compiled and an eager model in DistributedDataParallel, whose gradients fill several buckets."""
    modules = thunder.jit(Model()), Model()
    return [DistributedDataParallel(module, bucket_cap_mb=SMALL, **options) for module in modules]


def data_parallel_with_a_static_graph() -> None:
    assert_equal(*map(training, in_small_buckets(static_graph=True)))


def data_parallel_with_views_of_buckets() -> None:
    assert_equal(*map(training, in_small_buckets(gradient_as_bucket_view=True)))


def data_parallel_with_a_communication_hook() -> None:
    models = in_small_buckets()
    for model in models:
        model.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    assert_equal(*map(training, models))


def compiled_data_parallel_runs_in_eager() -> None:
    with pytest.warns(RecompileWarning, match="DistributedDataParallel"):
        actual = training(thunder.jit(DistributedDataParallel(Model())))
    assert_equal(actual, training(DistributedDataParallel(Model())))


def compiled_data_parallel_is_refused() -> None:
    with pytest.raises(OperationFailed, match="DistributedDataParallel") as caught:
        thunder.jit(DistributedDataParallel(Model()), data_dependent="error")(numbers(0, 3, 4))
    assert "DistributedDataParallel(thunder_core.jit(module))" in caught.value.fix


def fully_sharded(compile_first: bool | None) -> Any:
    """A model that is sharded by layers, whose forward is compiled before or after, or not at all."""
    model = Model()

    def compile_layers() -> None:
        for layer in (model.first, model.second):
            layer.forward = thunder.jit(layer.forward)

    if compile_first:
        compile_layers()
    for layer in (model.first, model.second):
        fully_shard(layer)
    fully_shard(model)
    if compile_first is False:
        compile_layers()
    return model


def fully_sharded_layers_with_compiled_forward() -> None:
    expected = training(fully_sharded(None))
    assert_equal(training(fully_sharded(True)), expected)
    assert_equal(training(fully_sharded(False)), expected)


def fully_sharded_layers_accumulate_without_communication() -> None:
    """`set_requires_gradient_sync` holds the gradients of layers whose forward is compiled."""

    def accumulating(model: Any) -> list[Any]:
        results: list[Any] = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model.set_requires_gradient_sync(step % 2 == 1)
            model(numbers(step, 3, 4) / 100).pow(2).sum().backward()
            results.append([None if one.grad is None else whole(one.grad) for one in model.parameters()])
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        return [results, [whole(parameter.detach()) for parameter in model.parameters()]]

    expected = accumulating(fully_sharded(None))
    assert expected[0][0] == [None] * 4
    assert_equal(accumulating(fully_sharded(True)), expected)
    assert_equal(accumulating(fully_sharded(False)), expected)


def compiled_fully_sharded_model_runs_in_eager() -> None:
    expected = training(fully_sharded(None))
    with pytest.warns(RecompileWarning, match="in eager PyTorch"):
        assert_equal(training(thunder.jit(fully_sharded(None))), expected)


def compiled_fully_sharded_model_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        thunder.jit(fully_shard(Model()), data_dependent="error")(numbers(0, 3, 4))
    assert "module.forward = thunder_core.jit(module.forward)" in caught.value.fix


def step_of(model: Any, optimizer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A training step that reduces its gradients by itself."""

    def step(x):
        loss = model(x).pow(2).sum()
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        for work, gradient in zip(works, gradients, strict=True):
            work.wait()
            gradient /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def whole_training_step() -> None:
    models = Model(), Model()
    eager, program = (step_of(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)) for model in models)
    compiled = thunder.jit(program)
    for call in range(4):
        x = numbers(call, 3, 4) / 100
        assert_equal(compiled(x).detach(), eager(x).detach())
        assert_equal(*([parameter.detach() for parameter in model.parameters()] for model in models))


def sizes_that_vary() -> None:
    def program(x):
        dist.all_reduce(x)
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x * 2)
        joined = x.new_empty(2 * x.shape[0])
        dist.all_gather_into_tensor(joined, x)
        part = torch.empty_like(x)
        dist.reduce_scatter_tensor(part, joined)
        return x.sum(), parts, joined, part

    compiled = thunder.jit(program)
    for size in (4, 6, 8, 10, 1):
        assert_equal(compiled(numbers(size, size)), program(numbers(size, size)))
    assert thunder.cache_misses(compiled) == 2
    compiled = thunder.jit(program, cache="symbolic values")
    for size in (4, 6, 8):
        assert_equal(compiled(numbers(size, size)), program(numbers(size, size)))


def state_of_an_object() -> None:
    class State:
        def __init__(self) -> None:
            self.total = torch.zeros(3, dtype=torch.float64)

    def program(state, x):
        state.total += x
        dist.all_reduce(state.total)
        state.last = state.total * 2
        return state.last

    states, compiled = (State(), State()), thunder.jit(program)
    for call in range(3):
        assert_equal(compiled(states[0], numbers(call, 3)), program(states[1], numbers(call, 3)))
        assert_equal(*((state.total, state.last) for state in states))


def work_that_is_stored_by_eager() -> None:
    """A work cannot be created again, so eager PyTorch makes the call; data_dependent="error" refuses it."""
    state = Model()

    def program(x):
        state.work = dist.all_reduce(x, async_op=True)
        return x.shape

    x, expected = numbers(0, 3), numbers(0, 3)
    with pytest.warns(RecompileWarning, match="work"):
        thunder.jit(program)(x)
    state.work.wait()
    dist.all_reduce(expected)
    assert_equal(x, expected)
    with pytest.raises(UnsupportedError, match="work"):
        thunder.jit(program, data_dependent="error")(numbers(0, 3))


def work_that_is_returned_by_eager() -> None:
    def program(x):
        return dist.all_reduce(x, async_op=True)

    x, expected = numbers(0, 3), numbers(0, 3)
    with pytest.warns(RecompileWarning, match="returns the work"):
        work = thunder.jit(program)(x)
    work.wait()
    dist.all_reduce(expected)
    assert_equal(x, expected)


def inference_mode() -> None:
    def program(x):
        with torch.inference_mode():
            y = x * 2
            dist.all_reduce(y)
        dist.broadcast(x, 1)
        return x * 2, y + 1

    assert_equal(thunder.jit(program)(numbers(0, 3)), program(numbers(0, 3)))
    with torch.inference_mode():
        assert_equal(thunder.jit(program)(numbers(0, 3)), program(numbers(0, 3)))


def views_and_versions() -> None:
    def program(x):
        view = x[1:]
        dist.all_reduce(view)
        view.add_(1)
        dist.broadcast(x, 0)
        y = x * 1
        dist.all_reduce(y)
        return x.view(-1) * 2, view, y, y._version

    assert_equal(thunder.jit(program)(numbers(0, 4, 3)), program(numbers(0, 4, 3)))


def error_behind_a_collective() -> None:
    def program(x):
        dist.all_reduce(x)
        raise ValueError("as in eager")

    compiled = thunder.jit(program)
    for _ in range(2):
        results = []
        for function in (program, compiled):
            x = numbers(0, 3)
            with pytest.raises(ValueError, match="as in eager"):
                function(x)
            results.append(x)
        assert_equal(*results)


def compiled_function_within_another() -> None:
    """A compiled function with its own settings communicates at each call, even if its result is not read."""
    inner = thunder.jit(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD) * 2, cache="same input")

    def program(x):
        inner(x)
        return inner(x) + 1

    compiled = thunder.jit(program)
    for _ in range(2):
        expected = numbers(0, 3) * 4 + (200 if dist.get_rank() == 0 else -200) + 1
        assert_equal(compiled(numbers(0, 3)), expected)


def hooks_that_reduce_gradients() -> None:
    models = Model(), Model()
    for model in models:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
    compiled = thunder.jit(models[1])
    for call in range(2):
        x = numbers(call, 3, 4) / 100
        models[0](x).sum().backward()
        compiled(x).sum().backward()
        assert_equal(*([parameter.grad for parameter in model.parameters()] for model in models))


def reentrant_checkpoint() -> None:
    def program(x, y):
        def block(z):
            return funcol.all_reduce(z.sin(), "sum", dist.group.WORLD).exp() * 2

        return checkpoint(block, x * y, use_reentrant=True)

    def arguments() -> tuple[Any, ...]:
        return (numbers(0, 3) / 100).requires_grad_(), numbers(1, 3) / 100

    assert_equal(gradients(thunder.jit(program), *arguments()), gradients(program, *arguments()))


def batches_are_refused() -> None:
    def program(x):
        return torch.vmap(lambda row: funcol.all_reduce(row, "sum", dist.group.WORLD))(x)

    def in_place(x):
        return torch.vmap(dist.all_reduce)(x)

    assert_refused(program, numbers(0, 2, 3), name="_c10d_functional.all_reduce")
    assert_refused(in_place, numbers(0, 2, 3), name="allreduce")
