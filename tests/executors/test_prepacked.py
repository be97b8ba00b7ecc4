"""Weights that are packed once: values are PyTorch's, also after writes to weights and in training."""

from __future__ import annotations

import copy
import gc
import os

import pytest
import torch
from torch import nn
from torch.nn import functional

import thunder_core as thunder
from tests.processes import run_python
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_executors import packed_linear, prepacked_convolution
from thunder_executors.packed_linear import measurement, packed_weights
from thunder_executors.packed_linear.kernel import library_of
from thunder_executors.packed_linear.product_kinds import PREPACKED
from thunder_executors.packed_linear.source import PACK
from thunder_executors.prepacked_convolution import PrepackedConvolution, operator
from thunder_executors.prepacked_linear import PrepackedLinear

LINEAR, CONVOLUTION = PrepackedLinear(measures=False), PrepackedConvolution(measures=False)
EXECUTORS = (LINEAR, CONVOLUTION, "torch")
MODEL = "nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()"
LOADS = f"""
import sys, torch, thunder_core as thunder
from torch import nn
torch.manual_seed(0)
compiled = thunder.load(sys.argv[1], {MODEL})
x, expected = torch.load(sys.argv[2])
with torch.no_grad():
    torch.testing.assert_close(compiled(x), expected)
print("equal")
"""
NAMES = ("prepacked-linear", "prepacked-convolution")
linear_runs = pytest.mark.skipif(LINEAR.missing() is not None, reason=str(LINEAR.missing()))
convolution_runs = pytest.mark.skipif(CONVOLUTION.missing() is not None, reason=str(CONVOLUTION.missing()))


def claimed_in(compiled) -> list[BoundSymbol]:
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor in NAMES]


def operations_of(claim: BoundSymbol) -> list[BoundSymbol]:
    return [bsym for bsym in claim.subsymbols if bsym.symbol.name.startswith("torch.")]


def assert_like_eager(model: nn.Module, *inputs, claims: int = 1, tolerance: float = 1e-5):
    """Check values and strides without gradients, and the number of claims; return the compiled model."""
    compiled = thunder.jit(model, executors=EXECUTORS)
    with torch.no_grad():
        expected, found = model(*inputs), compiled(*inputs)
    assert len(claimed_in(compiled)) == claims
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return compiled


@linear_runs
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 14, 16, 17, 33, 150])
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (7, 5), (16, 32), (33, 31), (64, 48), (1030, 70), (2048, 33)])
def test_products_of_all_sizes_match_pytorch(rows, depth, columns):
    torch.manual_seed(0)
    assert_like_eager(nn.Linear(depth, columns, bias=columns % 2 == 0), torch.randn(rows, depth), tolerance=1e-4)


@linear_runs
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")])
def test_an_activation_is_computed_with_the_product(activation):
    torch.manual_seed(0)
    compiled = assert_like_eager(nn.Sequential(nn.Linear(40, 70), activation), torch.randn(30, 40))
    (call,) = claimed_in(compiled)
    assert len(call.subsymbols) == 2


def write_in_place(linear):
    linear.weight.mul_(2)


def write_to_a_view(linear):
    linear.weight.detach()[3:5].zero_()


def load(linear):
    linear.load_state_dict({name: torch.randn_like(value) for name, value in linear.state_dict().items()})


def assign(linear):
    state = {name: torch.randn_like(value) for name, value in linear.state_dict().items()}
    linear.load_state_dict(state, assign=True)


def set_data(linear):
    linear.weight.data = torch.randn_like(linear.weight)


def step(linear):
    for parameter in linear.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(linear.parameters(), lr=0.5).step()


WRITES = [write_in_place, write_to_a_view, load, assign, set_data, step]


@linear_runs
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("calls", [1, 3])  # from the third call on, the packed weights are not compared one by one
def test_the_next_product_sees_a_write_to_the_weight(write, calls):
    linear, x = nn.Linear(40, 50), torch.randn(20, 40)
    compiled = thunder.jit(linear, executors=EXECUTORS)
    with torch.no_grad():
        for _ in range(2):
            for _ in range(calls):
                compiled(x)
            write(linear)
            torch.testing.assert_close(compiled(x), linear(x), rtol=1e-4, atol=1e-4)
    assert claimed_in(compiled)


@linear_runs
def test_a_weight_is_packed_once_for_all_programs_and_freed_with_it():
    linear = nn.Linear(40, 50)
    kept = packed_weights.PackedWeights.of(library_of(PREPACKED).function(PACK)).prepared.forms
    gc.collect()
    before = len(kept)
    with torch.no_grad():
        compiled = [thunder.jit(linear, executors=EXECUTORS) for _ in range(2)]
        for rows in (3, 20):
            for call in compiled:
                call(torch.randn(rows, 40))
    assert len(kept) == before + 1
    del linear, compiled, call
    gc.collect()
    assert len(kept) == before


@linear_runs
def test_a_program_serves_every_number_of_rows():
    linear = nn.Linear(40, 50)
    compiled = thunder.jit(linear, executors=EXECUTORS, symbolic={"input.size(0)": (1, 64)})
    with torch.no_grad():
        for rows in (3, 1, 17, 64):
            x = torch.randn(rows, 40)
            torch.testing.assert_close(compiled(x), linear(x), rtol=1e-4, atol=1e-4)
    assert len(claimed_in(compiled)) == 1
    assert thunder.cache_misses(compiled) == 1


@linear_runs
def test_weights_that_are_arguments_or_written_to_are_left_out():
    linear, x = nn.Linear(40, 50), torch.randn(20, 40)
    given = thunder.jit(functional.linear, executors=EXECUTORS)
    torch.testing.assert_close(given(x, linear.weight.detach()), functional.linear(x, linear.weight.detach()))

    def halve(x):
        linear.weight.mul_(0.5)
        return linear(x)

    writing = thunder.jit(halve, executors=EXECUTORS)
    with torch.no_grad():
        expected = functional.linear(x, linear.weight * 0.5, linear.bias)
        torch.testing.assert_close(writing(x), expected)
    assert not any(map(claimed_in, (given, writing)))


@linear_runs
@convolution_runs
@pytest.mark.parametrize("dims", [(2, 3), (0, 1)])
@pytest.mark.parametrize("calls", [0, 3])
def test_a_weight_that_becomes_a_view_of_itself_is_packed_again(dims, calls):
    torch.manual_seed(0)
    convolution, x = nn.Conv2d(8, 8, 3), torch.randn(2, 8, 9, 9)
    compiled = assert_like_eager(convolution, x)
    with torch.no_grad():
        for _ in range(calls):
            compiled(x)
    convolution.weight.data = convolution.weight.data.transpose(*dims)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), convolution(x), rtol=1e-4, atol=1e-4)
    assert claimed_in(compiled)


@convolution_runs
def test_training_steps_match_pytorch():
    torch.manual_seed(0)
    model = nn.Sequential(Block(add="right", activation=nn.ReLU()), nn.Flatten(), nn.Linear(8 * 81, 5))
    expected = copy.deepcopy(model)
    compiled = thunder.jit(model, executors=EXECUTORS)
    optimizers = [torch.optim.SGD(parameters, lr=0.1) for parameters in (model.parameters(), expected.parameters())]
    for _ in range(3):
        x = torch.randn(2, 4, 9, 9)
        for call, optimizer in zip((compiled, expected), optimizers, strict=True):
            optimizer.zero_grad()
            call(x).square().sum().backward()
            optimizer.step()
        for actual, wanted in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)


def two_layers(kind: str) -> tuple[nn.Module, torch.Tensor]:
    """A model of two layers of a kind, and its input."""
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Sequential(nn.Linear(40, 50), nn.GELU(), nn.Linear(50, 40)), torch.randn(20, 40)
    return nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), torch.randn(2, 4, 9, 9)


KINDS = [pytest.param("linear", marks=linear_runs), pytest.param("convolution", marks=convolution_runs)]


@pytest.mark.parametrize("kind", KINDS)
def test_training_packs_no_weights_that_it_changes(kind):
    model, x = two_layers(kind)
    compiled = thunder.jit(model, executors=EXECUTORS)
    compiled(x).sum().backward()
    assert not claimed_in(compiled)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(claimed_in(compiled)) == 2
    compiled(x).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_without_gradients_in_a_training_step_packs_no_trained_weight(kind):
    class Teaches(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.x = two_layers(kind)

        def forward(self, x):
            with torch.no_grad():
                target = self.model(x)
            return (self.model(x * 2) - target).square().sum()

    model = Teaches()
    compiled = thunder.jit(model, executors=EXECUTORS)
    compiled(model.x).backward()
    assert not claimed_in(compiled)


@pytest.mark.parametrize("kind", KINDS)
def test_training_packs_frozen_weights(kind):
    model, x = two_layers(kind)
    model[0].requires_grad_(requires_grad=False)
    compiled = thunder.jit(model, executors=EXECUTORS)
    compiled(x).sum().backward()
    assert len(claimed_in(compiled)) == 1
    model[2].requires_grad_(requires_grad=False)
    compiled(x)
    assert len(claimed_in(compiled)) == 2


@linear_runs
def test_a_weight_of_inference_mode_is_packed_at_each_call():
    with torch.inference_mode():
        linear, x = nn.Linear(40, 50), torch.randn(20, 40)
        compiled = thunder.jit(linear, executors=EXECUTORS)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), linear(x), rtol=1e-4, atol=1e-4)
            linear.weight.mul_(2)
    assert claimed_in(compiled)


@linear_runs
def test_a_packed_weight_that_is_no_faster_than_in_place_is_left_to_packed_linear(monkeypatch):
    def times(product, budget):
        return measurement.Times(kernel=1.0, library=2.0)

    monkeypatch.setattr(packed_linear, "times_of", times)
    compiled = thunder.jit(nn.Linear(40, 50), executors=(PrepackedLinear(), "torch"))
    with torch.no_grad(), tuning(10):
        compiled(torch.randn(20, 40))
    assert claimed_in(compiled) == []
    (refusal,) = (item for item in thunder.last_traces(compiled)[-1].refused if item.executor == "prepacked-linear")
    assert refusal.reason.startswith("packed-linear multiplies")


class Block(nn.Module):
    """A convolution, and the operations after it that a test selects."""

    def __init__(self, *, norm=True, add="", activation=None, bias=False, affine=True, **settings):
        super().__init__()
        self.convolution = nn.Conv2d(4, 8, **{"kernel_size": 3, "padding": 1, "bias": bias, **settings})
        self.norm = nn.BatchNorm2d(8, affine=affine) if norm else nn.Identity()
        self.norm.train()(torch.randn(64, 8, 3, 3) * 3 + 1)  # statistics other than 0 and 1
        self.shortcut = nn.Conv2d(4, 8, 1, stride=self.convolution.stride)
        self.add, self.activation = add, activation or nn.Identity()

    def forward(self, x):
        result = self.norm(self.convolution(x))
        if self.add == "in place":
            result += self.shortcut(x)
        elif self.add == "left":
            result = self.shortcut(x) + result
        elif self.add:
            result = result + self.shortcut(x)
        return self.activation(result)


Block.__module__ = "tests.executors.test_prepacked"
BLOCKS = {
    "alone": {"norm": False},
    "with bias": {"norm": False, "bias": True},
    "normalized": {},
    "with bias, normalized": {"bias": True},
    "normalized without weights": {"affine": False},
    "strided": {"stride": 2},
    "dilated": {"dilation": 2, "padding": 2},
    "grouped": {"groups": 2},
    "one by one": {"kernel_size": 1, "padding": 0},
    "added": {"add": "right"},
    "added to": {"add": "left"},
    "added in place": {"add": "in place", "activation": nn.ReLU()},
    "relu in place": {"activation": nn.ReLU(inplace=True)},
    "relu6": {"activation": nn.ReLU6()},
    "silu": {"activation": nn.SiLU()},
    "gelu": {"activation": nn.GELU()},
    "all": {"add": "right", "activation": nn.ReLU(), "bias": True},
}


@convolution_runs
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_convolution_and_what_follows_matches_pytorch(name, layout):
    torch.manual_seed(0)
    block = Block(**BLOCKS[name]).eval().to(memory_format=layout)
    x = torch.randn(2, 4, 9, 11).to(memory_format=layout)
    compiled = assert_like_eager(block, x, claims=2 if block.add else 1)
    members = [len(operations_of(bsym)) for bsym in claimed_in(compiled)]
    follows = [name for name in ("norm", "activation") if not isinstance(getattr(block, name), nn.Identity)]
    assert sum(members) == len(members) + len(follows) + bool(block.add)


@convolution_runs
def test_a_result_that_is_read_twice_is_not_changed_by_what_follows():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(4, 8, 3)

        def forward(self, x):
            result = self.convolution(x)
            return torch.relu(result) - result.relu_() + result * result

    assert_like_eager(Twice(), torch.randn(2, 4, 9, 9))


@convolution_runs
def test_an_addend_that_is_written_to_in_between_keeps_its_place():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            y = x + 1
            result = self.convolution(y)
            y.mul_(3)
            return (result + y).relu()

    assert_like_eager(Between(), torch.randn(2, 4, 9, 9))


@convolution_runs
def test_normalization_by_the_batch_is_left_out():
    block, x = Block().train(), torch.randn(2, 4, 9, 9)
    expected, statistics = Block().train(), {}
    expected.load_state_dict(block.state_dict())
    compiled = thunder.jit(block, executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected(x))
    statistics = {name: value for name, value in block.state_dict().items() if "running" in name}
    for name, value in statistics.items():
        torch.testing.assert_close(value, expected.state_dict()[name])
    assert [len(operations_of(bsym)) for bsym in claimed_in(compiled)] == [1]


@convolution_runs
@pytest.mark.parametrize("calls", [1, 3])
def test_the_next_convolution_sees_writes_to_weights_and_statistics(calls):
    block, x = Block().eval(), torch.randn(2, 4, 9, 9)
    compiled = thunder.jit(block, executors=EXECUTORS)
    with torch.no_grad():
        for tensor in (block.convolution.weight, block.norm.running_mean, block.norm.running_var, block.norm.weight):
            for _ in range(calls):
                compiled(x)
            tensor.mul_(1.5).add_(0.1)
            torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=1e-4)
    assert claimed_in(compiled)


@convolution_runs
def test_a_program_serves_images_of_all_sizes():
    block = Block(add="right", activation=nn.ReLU()).eval()
    sizes = {"x.size(0)": (1, 8), "x.size(2)": (3, 64), "x.size(3)": (3, 64)}
    compiled = thunder.jit(block, executors=EXECUTORS, symbolic=sizes)
    with torch.no_grad():
        for shape in ((2, 4, 9, 11), (1, 4, 12, 12), (5, 4, 7, 30)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=1e-4)
    assert len(claimed_in(compiled)) == 2
    assert thunder.cache_misses(compiled) == 1


@convolution_runs
@pytest.mark.parametrize(
    ("convolution", "x"),
    [
        (nn.Conv2d(4, 8, 3, padding="same"), torch.randn(2, 4, 9, 9)),
        (nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), torch.randn(2, 4, 9, 9)),
        (nn.Conv2d(4, 8, 3).double(), torch.randn(2, 4, 9, 9, dtype=torch.float64)),
        (nn.Conv2d(4, 8, 3), torch.randn(4, 9, 9)),
        (nn.ConvTranspose2d(4, 8, 3), torch.randn(2, 4, 9, 9)),
        (nn.Conv1d(4, 8, 3), torch.randn(2, 4, 9)),
    ],
)
def test_other_convolutions_match_pytorch(convolution, x):
    compiled = thunder.jit(convolution, executors=EXECUTORS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), convolution(x), rtol=1e-5, atol=1e-5)


@convolution_runs
def test_packed_convolutions_are_freed_with_their_weights():
    block = Block().eval()
    gc.collect()
    before = len(operator.PREPARED.forms)  # of oneDNN: the result has another memory format
    with torch.no_grad():
        compiled = thunder.jit(block, executors=EXECUTORS)
        compiled(torch.randn(2, 4, 9, 9))
    assert len(operator.PREPARED.forms) == before + 1
    del block, compiled
    gc.collect()
    assert len(operator.PREPARED.forms) == before


@linear_runs
@convolution_runs
def test_an_artifact_of_the_recipe_computes_the_same_in_another_process(tmp_path):
    torch.manual_seed(0)
    model = eval(MODEL)
    x = torch.randn(2, 3, 8, 8)
    compiled = thunder.jit(model, executors=EXECUTORS)
    with torch.no_grad():
        torch.save((x, compiled(x)), tmp_path / "values.pt")
    assert [bsym.executor for bsym in claimed_in(compiled)] == [*reversed(NAMES)]
    thunder.save(compiled, tmp_path / "artifact")
    places = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(tmp_path / "empty")}
    done = run_python("-c", LOADS, tmp_path / "artifact", tmp_path / "values.pt", env=places)
    assert done.stdout == "equal\n", done.stderr


@convolution_runs
def test_times_decide_and_are_reported(monkeypatch):
    def times(chain, methods, budget):
        seconds = {"oneDNN": 2.0, "direct": 3.0}
        return prepacked_convolution.measurement.Times(2.0, 1.0, True, "a convolution", "oneDNN", seconds)

    monkeypatch.setattr(prepacked_convolution, "times_of", times)
    compiled = thunder.jit(Block().eval(), executors=(PrepackedConvolution(), "torch"))
    with torch.no_grad(), tuning(10):
        compiled(torch.randn(2, 4, 9, 9))
    (refusal,) = (item for item in thunder.last_traces(compiled)[-1].refused if item.executor == NAMES[1])
    times = "oneDNN 2.00 s, direct 3.00 s, torch.nn.functional.conv2d 1.00 s"
    assert refusal.reason == f"PyTorch computes a convolution: {times}"
    assert claimed_in(compiled) == []
