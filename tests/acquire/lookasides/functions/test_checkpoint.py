"""torch.utils.checkpoint in a program: few tensors are saved, random numbers are repeated, gradients match eager."""

from __future__ import annotations

import contextlib
import functools
import random
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import thunder_core as thunder
from tests.families import sample
from thunder_core.compilation.compiler import last_program
from thunder_core.errors import CannotReplay
from thunder_core.workflow.benchmark.allocations import peak_allocated

EXECUTORS = (("torch",), ("inductor", "torch"))
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


def block(x, weight):
    hidden = functional.dropout(torch.tanh(functional.silu(x @ weight) @ weight.t()), 0.3)
    return functional.dropout(hidden, 0.1) + x


def layers(x, weights, reentrant=None):
    for weight in weights:
        x = block(x, weight) if reentrant is None else checkpoint(block, x, weight, use_reentrant=reentrant)
    return x.square().sum()


def given(seed=0, count=6):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(256, 64, generator=generator).requires_grad_()
    return x, [torch.randn(64, 64, generator=generator).mul_(0.1).requires_grad_() for _ in range(count)]


def step(program, *arguments):
    x, weights = given()
    torch.manual_seed(1)
    out = program(x, weights, *arguments)
    out.backward()
    return [out, torch.rand(2), *(tensor.grad for tensor in (x, *weights))]


@pytest.mark.parametrize("executors", EXECUTORS, ids="+".join)
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_and_random_numbers_match_eager_with_no_more_memory(reentrant, executors):
    compiled, plain = (thunder.jit(layers, executors=executors) for _ in range(2))
    for found, expected in zip(step(compiled, reentrant), step(layers, reentrant), strict=True):
        torch.testing.assert_close(found, expected, **({} if executors == ("torch",) else CLOSE))
    assert last_program(compiled).no_backward_reason == ""
    step(plain)
    measured, eager = (peak_allocated(lambda one=one: step(one, reentrant)) for one in (compiled, layers))
    without = peak_allocated(lambda: step(plain))
    assert measured < 0.65 * without
    assert measured < 1.15 * eager
    assert thunder.examine_memory(compiled).saved < 0.5 * thunder.examine_memory(plain).saved


def test_tensors_of_a_block_are_recomputed_and_not_saved():
    compiled = thunder.jit(functools.partial(layers, reentrant=False))
    x, weights = given(count=1)
    compiled(x, weights).backward()
    backward = str(thunder.last_backward_traces(compiled)[-1])
    assert backward.count("torch.set_rng_state(") == 4  # for two dropouts, in the forward and in the backward
    assert "silu(" in backward
    names = [proxy.name for proxy in last_program(compiled).derivative.saved]
    kept = [name for name in names if not name.startswith(("random_state", "x", "weights", "args"))]
    assert len(kept) == 1  # the input of the final square


def test_without_a_tensor_that_requires_grad_the_reentrant_variant_cuts_the_graph():
    def program(x, weight):
        return checkpoint(functional.linear, x, weight.detach()[None], weight[:1], use_reentrant=True)

    def closed(x, weight):
        return checkpoint(lambda x: functional.linear(x, weight), x, use_reentrant=True)

    x, weight = torch.ones(4, 64), torch.ones(64, requires_grad=True)
    for item in (program, closed):
        with warnings.catch_warnings(action="ignore"):
            expected = item(x, weight).requires_grad
        assert thunder.jit(item)(x, weight).requires_grad is expected


def test_nested_blocks_match_eager():
    def inner(x):
        return checkpoint(torch.sin, x.exp(), use_reentrant=False).cos()

    def program(x):
        return checkpoint(inner, x, use_reentrant=False).sum()

    compiled = thunder.jit(program)
    found, expected = (x := torch.linspace(0, 1, 64, requires_grad=True)), torch.linspace(0, 1, 64, requires_grad=True)
    compiled(found).backward()
    program(expected).backward()
    torch.testing.assert_close(found.grad, expected.grad)
    assert [proxy.name for proxy in last_program(compiled).derivative.saved] == ["x"], x


class Counter:
    """What the blocks below write to."""

    def __init__(self):
        self.calls, self.seen = 0, []
        self.norm = torch.nn.BatchNorm1d(8)
        self.buffer = torch.zeros(2, 8)

    def count(self, x):
        self.calls += 1
        return x.sin() * 2

    def collect(self, x):
        self.seen.append(len(self.seen))
        return x.sin() * 2

    def show(self, x):
        print("shown")
        return x.sin() * 2

    def draw(self, x):
        return x.sin() * random.random()

    def normalize(self, x):
        return self.norm(x).sin()

    def write(self, x):
        self.buffer[0].add_(1)
        return x.sin() * self.buffer[0]

    def fill(self, x):
        result = torch.zeros_like(x)
        result.add_(x.sin())
        return result * 2


EFFECTS = ["count", "collect", "show", "draw", "normalize", "write"]


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_calls_with_effects_in_the_recomputation_are_made_in_eager(name, reentrant, capsys):
    states = []
    for compiler in (thunder.jit, lambda program: program):
        counter = Counter()

        def program(x, counter=counter):
            return checkpoint(getattr(counter, name), x, use_reentrant=reentrant).square().sum()

        function = compiler(program)
        random.seed(0)
        torch.manual_seed(0)
        gradients = []
        for step in range(6):
            x = torch.randn(16 + step // 2, 8, requires_grad=True)
            with pytest.warns(thunder.RecompileWarning) if compiler is thunder.jit and step == 0 else nullcontext():
                function(x).backward()
            gradients.append(x.grad)
        written = [counter.calls, counter.seen, counter.norm.state_dict(), counter.buffer, capsys.readouterr().out]
        states.append([*gradients, *written])
        if compiler is thunder.jit:
            assert thunder.cache_misses(function) <= 3
            assert "which eager repeats in the backward pass" in thunder.recompile_reasons(function)[0]
    torch.testing.assert_close(states[0][:6], states[1][:6], rtol=0, atol=0)
    assert str(states[0][6:]) == str(states[1][6:])


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_effects_that_eager_repeats_are_refused_in_programs_for_recipes(name, reentrant):
    counter = Counter()
    program = functools.partial(lambda x: checkpoint(getattr(counter, name), x, use_reentrant=reentrant).square().sum())
    compiled = thunder.jit(program, data_dependent="error")
    with pytest.raises(CannotReplay, match="which eager repeats in the backward pass"):
        compiled(torch.randn(16, 8, requires_grad=True))
    assert (counter.calls, counter.seen, int(counter.norm.num_batches_tracked)) == (0, [], 0)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_effects_that_eager_has_once_are_replayed(name, reentrant):
    ours, eagers = Counter(), Counter()
    results = []
    for counter, compiler in ((ours, thunder.jit), (eagers, lambda program: program)):
        program = compiler(lambda x, counter=counter: checkpoint(getattr(counter, name), x, use_reentrant=reentrant))
        random.seed(0)
        with torch.no_grad():
            results.append([program(torch.ones(16, 8) * step) for step in range(3)])
    torch.testing.assert_close(*results)
    assert (ours.calls, ours.seen) == (eagers.calls, eagers.seen)
    torch.testing.assert_close(ours.norm.state_dict(), eagers.norm.state_dict())
    assert torch.equal(ours.buffer, eagers.buffer)


@pytest.mark.parametrize("name", ["normalize", "fill"])
def test_block_without_effects_is_recomputed(name):
    counter = Counter()
    counter.norm.eval()
    block = getattr(counter, name)
    found, expected = (torch.linspace(0, 1, 128).reshape(16, 8).requires_grad_() for _ in range(2))
    thunder.jit(lambda x: checkpoint(block, x, use_reentrant=False).square().sum())(found).backward()
    block(expected).square().sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_checkpoint_sequential_matches_eager():
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(4)))
    compiled = thunder.jit(lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False).sum())
    x = torch.randn(4, 8, requires_grad=True)
    compiled(x).backward()
    found, x.grad = x.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(found, x.grad)


SAVED_PRODUCTS = [torch.ops.aten.mm.default]


def first_products(ctx, op, *args, **kwargs):
    """A policy that looks at the arguments of the operation."""
    output = getattr(ctx, "op_output", args[0])  # PyTorch 2.11 does not pass it
    wide = op in SAVED_PRODUCTS and args[1].shape[1] == 8 and output.dtype is torch.float32
    return CheckpointPolicy.MUST_SAVE if wide else CheckpointPolicy.PREFER_RECOMPUTE


def mixed(x, weight):
    hidden = functional.linear(x @ weight.sin(), weight[:4]).exp()
    return (hidden @ weight[:4]).cos().sum()


POLICIES = {
    "operations": (SAVED_PRODUCTS, 3),
    "policy": (first_products, 2),
    "truth": (lambda ctx, op, *args, **kwargs: op is torch.ops.aten.exp.default, 1),
    "nothing": (lambda ctx, op, *args, **kwargs: CheckpointPolicy.MUST_RECOMPUTE, 0),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.filterwarnings("error")
def test_tensors_that_a_selective_context_saves_are_not_recomputed(name):
    policy, count = POLICIES[name]
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def program(x, weight):
        return checkpoint(mixed, x, weight, use_reentrant=False, context_fn=contexts)

    compiled = thunder.jit(program)
    x, weight = torch.linspace(0, 1, 32).view(4, 8), torch.linspace(-1, 1, 64).view(8, 8)
    gradients = []
    for run in (compiled, program):
        x, weight = (tensor.detach().clone().requires_grad_() for tensor in (x, weight))
        gradients.append(torch.autograd.grad(run(x, weight), (x, weight)))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)
    assert last_program(compiled).no_backward_reason == ""
    names = [proxy.name for proxy in last_program(compiled).derivative.saved]
    assert len([name for name in names if name not in ("x", "weight")]) <= count
    backward = [line.symbol.name for line in thunder.last_backward_traces(compiled)[-1].bound_symbols]
    assert ("torch.Tensor.exp" in backward) is (name != "truth")


def test_outer_checkpoint_decides_which_tensors_are_saved():
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.exp.default])

    def inner(x):
        return checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False, context_fn=contexts)

    compiled = thunder.jit(lambda x: checkpoint(inner, x, use_reentrant=False).sum())
    compiled(torch.ones(4, requires_grad=True))
    assert [proxy.name for proxy in last_program(compiled).derivative.saved] == ["x"]


def test_first_context_of_the_user_surrounds_the_function():
    scale = [1.0]

    @contextlib.contextmanager
    def doubled():
        scale[0] *= 2
        try:
            yield
        finally:
            scale[0] /= 2

    def program(x):
        return checkpoint(lambda x: (x * scale[0]).sin().sum(), x, use_reentrant=False, context_fn=contexts)

    def contexts():
        return doubled(), doubled()

    compiled = thunder.jit(program)
    gradients = []
    for run in (compiled, program):
        x = torch.linspace(0, 1, 8, requires_grad=True)
        gradients.append(torch.autograd.grad(run(x), x))
    torch.testing.assert_close(*gradients)
    assert scale == [1.0]
    assert [proxy.name for proxy in last_program(compiled).derivative.saved] == ["x"]
    with pytest.raises(thunder.ThunderError, match="second context"):
        thunder.jit(program, sharp_edges="error")(x)


REFUSED = {
    "a context of the reentrant one": ({"use_reentrant": True, "context_fn": lambda: (1, 2)}, ValueError),
    "debugging with contexts": ({"use_reentrant": False, "debug": True, "context_fn": lambda: (1, 2)}, ValueError),
    "a check that there is not": ({"use_reentrant": False, "determinism_check": "all"}, ValueError),
    "one context": ({"use_reentrant": False, "context_fn": lambda: 3}, TypeError),
    "no context": ({"use_reentrant": False, "context_fn": lambda: (3, 4)}, TypeError),
    "a packet": (
        {
            "use_reentrant": False,
            "context_fn": lambda: create_selective_checkpoint_contexts([torch.ops.aten.mm]),
        },
        ValueError,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_eager_refuses_raise_its_message(name):
    options, kind = REFUSED[name]
    x = torch.ones(4, requires_grad=True)
    with pytest.raises(kind) as expected:
        checkpoint(torch.sin, x, **options)
    with pytest.raises(kind) as caught:
        thunder.jit(lambda x: checkpoint(torch.sin, x, **options))(x)
    assert str(caught.value) == str(expected.value)


def test_missing_variant_warns_as_in_eager():
    x = torch.ones(4, requires_grad=True)
    for program in (thunder.jit(lambda x: checkpoint(torch.sin, x)), lambda x: checkpoint(torch.sin, x)):
        with pytest.warns(UserWarning, match="use_reentrant"):
            program(x)


@pytest.mark.parametrize("executors", EXECUTORS, ids="+".join)
def test_gradient_checkpointing_of_transformers(executors):
    model = sample("llama").model.train()
    ids = torch.randint(0, 512, (2, 128), generator=torch.Generator().manual_seed(0))

    def gradients(run):
        results = run(input_ids=ids, labels=ids, use_cache=False)
        results.loss.backward()
        found = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        return found

    plain = thunder.jit(model, executors=executors)
    gradients(plain)
    without = peak_allocated(lambda: gradients(plain))
    with warnings.catch_warnings(action="ignore"):
        model.gradient_checkpointing_enable()
    compiled = thunder.jit(model, executors=executors)
    torch.testing.assert_close(gradients(compiled), gradients(model), rtol=1e-3, atol=1e-5)
    assert last_program(compiled).no_backward_reason == ""
    measured = peak_allocated(lambda: gradients(compiled))
    assert measured < 0.8 * without
    assert measured < 1.02 * peak_allocated(lambda: gradients(model))
    assert thunder.examine_memory(compiled).own == pytest.approx(measured, rel=0.1)
