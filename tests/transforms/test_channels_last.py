"""Consecutive convolutions in another memory format: values and strides of results are those of eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import thunder_core as thunder
from thunder_core.passes.transforms.channels_last import ChannelsLast


class Network(nn.Module):
    """Convolutions with typical operations between them, and the function `end` of their result."""

    def __init__(self, end=lambda x: x, between=lambda x: x, inplace=False):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace)),
            *(nn.Conv2d(8, 8, 1), nn.Hardswish(inplace), nn.Conv2d(8, 8, 3, padding=1)),
            *(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)),
        )
        self.pool = nn.MaxPool2d(2)
        self.left, self.right = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm, self.act = nn.GroupNorm(2, 8), nn.SiLU(inplace)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Sigmoid())
        self.end, self.between = end, between

    def forward(self, x):
        x = self.between(self.pool(self.stem(x)))
        x = self.left(x) + self.right(x)
        x = self.act(self.norm(x))
        return self.end(x * self.gate(x))


ENDS = {
    "images": lambda x: x,
    "pooled": lambda x: x.mean((2, 3)),
    "flat": lambda x: x.flatten(1),
    "view": lambda x: x.view(x.shape[0], -1),
    "tokens": lambda x: x.flatten(2).transpose(1, 2),
    "one pixel": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "strides": lambda x: x * x.stride(1),
    "two": lambda x: (x, x.sum(1)),
    "cat": lambda x: torch.cat([x, x.relu()], 1),
    "upsampled": lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"),
}


def changed(compiled) -> bool:
    return any(trace.made_by == "channels last" for trace in thunder.last_traces(compiled))


def assert_like_eager(model, *inputs, is_changed=True):
    compiled = thunder.jit(model, transforms=(ChannelsLast(),), executors=("torch",))
    with torch.no_grad():
        expected = model(*(x.clone() for x in inputs))
        found = compiled(*(x.clone() for x in inputs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else ((found, expected),)
    assert all(one.stride() == other.stride() for one, other in pairs)
    assert changed(compiled) is is_changed
    return compiled


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("inplace", [False, True])
def test_networks_match_eager(end, inplace):
    assert_like_eager(Network(ENDS[end], inplace=inplace).eval(), torch.randn(2, 3, 12, 16))


def test_random_numbers_are_drawn_in_the_order_of_eager():
    def drop(x):
        torch.manual_seed(0)
        return functional.dropout(x, training=True)

    assert_like_eager(Network(ENDS["pooled"], drop).eval(), torch.randn(2, 3, 12, 16))


def test_convolutions_run_in_the_other_format():
    compiled = assert_like_eager(Network(ENDS["pooled"]).eval(), torch.randn(2, 3, 12, 16))
    (trace,) = (trace for trace in thunder.last_traces(compiled) if trace.made_by == "channels last")
    named = [bsym for bsym in trace.bound_symbols if bsym.symbol.name == "torch.nn.functional.conv2d"]
    assert all(bsym.output.stride[1] == 1 for bsym in named)
    copies = [bsym for bsym in trace.bound_symbols if bsym.symbol.name == "torch.Tensor.contiguous"]
    assert len(copies) == 1


def test_an_input_that_has_the_format_is_not_copied():
    x = torch.randn(2, 3, 12, 16).to(memory_format=torch.channels_last)
    assert_like_eager(Network().eval().to(memory_format=torch.channels_last), x, is_changed=False)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x.view(x.shape),
        lambda x: x.flip(3),
        lambda x: x[:, :, ::2],
        lambda x: x.reshape(x.shape[0], 2, 4, *x.shape[2:]).transpose(1, 2).reshape(x.shape),
        lambda x: torch.roll(x, 1, 2),
    ],
)
def test_operations_that_may_read_strides_get_their_former_ones(between):
    assert_like_eager(Network(between=between).eval(), torch.randn(2, 3, 12, 16))


def test_a_program_with_too_many_copies_stays():
    class Alternating(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).view(x.shape)
            return x

    assert_like_eager(Alternating().eval(), torch.randn(2, 4, 5, 6), is_changed=False)


SHARING = {
    "itself": lambda x: (x, x),
    "slice": lambda x: (x, x[:1]),
    "flat": lambda x: (x.flatten(1), x),
    "two views": lambda x: (x.view(-1), x.permute(0, 2, 3, 1)),
    "detached": lambda x: (x, x.detach()),
    "dropout": lambda x: (x, functional.dropout(x, training=False)),
    "written": lambda x: (x, x.relu_()),
    "copy": lambda x: (x, x.clone()),
}


@pytest.mark.parametrize("end", SHARING)
@pytest.mark.parametrize("inplace", [False, True])
def test_results_share_memory_as_in_eager(end, inplace):
    model, x = Network(SHARING[end], inplace=inplace).eval(), torch.randn(2, 3, 12, 16)
    compiled = assert_like_eager(model, x)
    with torch.no_grad():
        shared = [first.data_ptr() == second.data_ptr() for first, second in (model(x), compiled(x))]
    assert shared[0] is shared[1]


class Written(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.write = write

    def forward(self, x):
        for layer in self.layers:
            x = self.write(layer(x))
        return x


def of_a_view(x):
    view = x.view(-1)
    x.relu_()
    return x + view.view(x.shape)


def through_a_view(x):
    x.view(-1)[::3] = 1.0
    return x


@pytest.mark.parametrize("write", [of_a_view, through_a_view])
def test_writes_through_views_are_seen(write):
    assert_like_eager(Written(write).eval(), torch.randn(2, 4, 5, 6), is_changed=False)


def test_writes_to_an_input_are_seen():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

        def forward(self, x):
            x.relu_()
            for layer in self.layers:
                x = layer(x)
            return x

    model = Writing().eval()
    compiled = thunder.jit(model, transforms=(ChannelsLast(),), executors=("torch",))
    x = torch.randn(2, 4, 5, 6)
    y = x.clone()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(y))
    torch.testing.assert_close(x, y)


def double_first_image(x):
    x[0].mul_(2)
    return x


def double_first_half(x):
    first, _ = x.chunk(2, 1)
    torch.mul(first, 2, out=first)
    return x


def double_detached(x):
    x.detach().mul_(2)
    return x


@pytest.mark.parametrize("write", [double_first_image, double_first_half, double_detached])
def test_write_to_a_view_reaches_later_convolutions(write):
    assert_like_eager(Network(between=write).eval(), torch.randn(2, 3, 12, 16), is_changed=False)


def test_training_stays_that_of_pytorch():
    model, x = Network(ENDS["pooled"]).train(), torch.randn(4, 3, 12, 16)
    compiled = thunder.jit(model, transforms=(ChannelsLast(),), executors=("torch",))
    parameters = list(model.parameters())
    states = {name: value.clone() for name, value in model.state_dict().items()}
    found = torch.autograd.grad(compiled(x).square().sum(), parameters)
    model.load_state_dict(states)
    expected = torch.autograd.grad(model(x).square().sum(), parameters)
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)


def test_a_program_serves_images_of_all_sizes():
    model = Network(ENDS["pooled"]).eval()
    sizes = {"x.size(0)": (2, 8), "x.size(2)": (4, 64), "x.size(3)": (4, 64)}
    compiled = thunder.jit(model, transforms=(ChannelsLast(),), executors=("torch",), symbolic=sizes)
    with torch.no_grad():
        for shape in ((2, 3, 12, 16), (3, 3, 20, 8), (5, 3, 7, 30)):
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert changed(compiled)
    assert thunder.cache_misses(compiled) == 1


def test_branches_and_numbers_of_tensors_keep_their_meaning():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            x = torch.cond(x.sum() > 0, lambda x: x.view(-1) + 1, lambda x: x.view(-1) * 2, (x,))
            return x * x.max().item()

    assert_like_eager(Branching().eval(), torch.randn(2, 4, 5, 6))


def test_a_network_under_autocast_matches_eager():
    model, x = Network().eval(), torch.randn(2, 3, 12, 16)
    compiled = thunder.jit(model, transforms=(ChannelsLast(),), executors=("torch",))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
