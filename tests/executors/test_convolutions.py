"""The kernel of convolutions in channels-last format: all methods, sizes, layouts and vectors give PyTorch's values."""

from __future__ import annotations

import itertools
import os
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import thunder_core as thunder
from tests.executors.convolution_checks import LAYOUTS, claims
from tests.executors.vectors import AVX2, WIDE
from tests.processes import run_python
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.backend.fusion.machine_code import extension, machine_code_of
from thunder_executors.inductor.building.library import compile_functions
from thunder_executors.prepacked_convolution import PrepackedConvolution
from thunder_executors.prepacked_convolution.kernel import CONVOLUTIONS, CONVOLVE, POOL, channels_in_panel, functions
from thunder_executors.prepacked_convolution.padding_source import METHODS
from thunder_executors.prepacked_convolution.region import NUMBERS
from thunder_executors.prepacked_convolution.weights import packed_weights

pytestmark = pytest.mark.skipif(not PrepackedConvolution().runs("direct"), reason="it needs AVX2 and a C++ compiler")
ACTIVATIONS = {
    "": lambda x: x,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "hardswish": functional.hardswish,
}


# batch, channels of the input, height, width, channels of the result, kernel, stride, padding, dilation
SHAPES = (
    (1, 3, 17, 19, 33, (7, 7), (2, 2), (3, 3), (1, 1)),
    (2, 16, 9, 7, 32, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 1, 5, 5, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 33, 4, 5, 70, (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, 20, 8, 8, 48, (1, 1), (2, 2), (0, 0), (1, 1)),
    (1, 8, 12, 30, 17, (3, 3), (1, 1), (0, 0), (1, 1)),
    (2, 5, 11, 10, 16, (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, 4, 9, 16, 24, (5, 3), (2, 1), (1, 2), (1, 1)),
    (1, 512, 3, 3, 40, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 1024, 2, 3, 8, (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, 6, 40, 37, 12, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 300, 6, 5, 24, (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 30, 5, 7, 55, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 3, 31, 40, 50, (3, 3), (2, 2), (1, 1), (1, 1)),
    (1, 4, 33, 70, 21, (5, 7), (1, 2), (2, 5), (2, 1)),
    (1, 3, 64, 48, 40, (16, 16), (16, 16), (0, 0), (1, 1)),
)


def by_kernel(convolve, method, panel, x, weight, bias, other, activation, stride, padding, dilation):
    """Return the convolution by a method of the kernel; `padding` is above, below, left and right."""
    top, bottom, left, right = padding
    groups = x.shape[1] if method == "depthwise" else 1
    like = functional.conv2d(functional.pad(x, (left, right, top, bottom)), weight, None, stride, 0, dilation, groups)
    result = torch.full_like(like, torch.nan).contiguous(memory_format=torch.channels_last)
    packed = packed_weights((weight, bias), 0.0, method, panel)
    sizes = (*x.shape, *x.stride(), *result.shape[1:], *weight.shape[2:], *stride, *dilation, top, left)
    given = (x if bias is None else packed.bias, x if other is None else other)
    flags = (NUMBERS[activation], int(bias is not None), int(other is not None))
    convolve(x, packed.weight, *given, result, METHODS[method], *sizes, *flags)
    return result


def expected_for(x, weight, bias, other, activation, stride, padding, dilation, groups=1):
    """Return the convolution in float64."""
    top, bottom, left, right = padding
    padded = functional.pad(x.double(), (left, right, top, bottom))
    bias = None if bias is None else bias.double()
    result = functional.conv2d(padded, weight.double(), bias, stride, 0, dilation, groups)
    return ACTIVATIONS[activation](result if other is None else result + other).float()


def methods_of(kernel, stride, dilation):
    planes = ("planes",) if dilation[1] == 1 else ()
    return ("direct", *planes, *(("Winograd",) if kernel == (3, 3) and stride == dilation == (1, 1) else ()))


def check_all(convolve, panel, shapes=SHAPES, layouts=LAYOUTS):
    """Compare all methods for all shapes, with activations, biases and addends in turn."""
    torch.manual_seed(0)
    activations = itertools.cycle(ACTIVATIONS)
    for (batch, inner, height, width, out, kernel, stride, around, dilation), layout in itertools.product(
        shapes, layouts
    ):
        x = torch.randn(batch, inner, height, width).contiguous(memory_format=layout)
        weight = torch.randn(out, inner, *kernel) / (inner * kernel[0] * kernel[1]) ** 0.5
        padding = (around[0], around[0], around[1], around[1])
        like = functional.conv2d(x, weight, None, stride, around, dilation)
        addend = torch.randn_like(like).contiguous(memory_format=torch.channels_last)
        for bias, added in ((None, None), (torch.randn(out), None), (torch.randn(out), addend)):
            activation = next(activations)
            given = (x, weight, bias, added, activation, stride, padding, dilation)
            for method in methods_of(kernel, stride, dilation):
                found = by_kernel(convolve, method, panel, *given)
                torch.testing.assert_close(found, expected_for(*given), rtol=1e-4, atol=2e-5)


def check_depthwise(convolve, panel):
    """Compare many kernels, strides and paddings, and rows of every width around those of the tiles."""
    torch.manual_seed(0)
    kernels = itertools.product((2, 16, 33, 64), (3, 5, 4), (1, 2, 3), ((0, 0), (1, 1), (0, 1), (2, 2)), (23,))
    widths = itertools.product((19,), (3, 5), (1, 2), ((1, 1), (0, 3), (4, 2)), range(3, 20))
    activations = itertools.cycle(ACTIVATIONS)
    for (channels, size, step, around, width), layout in itertools.product((*kernels, *widths), LAYOUTS):
        x = torch.randn(2, channels, 9, width).contiguous(memory_format=layout)
        weight = torch.randn(channels, 1, size, size) / size
        padding = (*around, *around)
        if width + sum(around) < size:
            continue
        rows, columns = ((edge + sum(around) - size) // step + 1 for edge in (9, width))
        addend = torch.randn(2, channels, rows, columns).contiguous(memory_format=torch.channels_last)
        for added in (None, addend):
            given = (x, weight, torch.randn(channels), added, next(activations), (step, step), padding, (1, 1))
            found = by_kernel(convolve, "depthwise", panel, *given)
            torch.testing.assert_close(found, expected_for(*given, channels), rtol=1e-4, atol=1e-5)


def test_all_shapes_match_pytorch():
    check_all(CONVOLUTIONS.function(CONVOLVE), channels_in_panel())
    check_depthwise(CONVOLUTIONS.function(CONVOLVE), channels_in_panel())


@pytest.mark.parametrize(("vectors", "panel"), [(WIDE, 32), (AVX2, 16)], ids=["of 16 numbers", "of 8 numbers"])
def test_other_vectors_give_the_same_values(vectors, panel):
    kernels = vars(extension(compile_functions(functions(vectors))))
    check_all(kernels[CONVOLVE], panel)
    check_depthwise(kernels[CONVOLVE], panel)
    check_pooling(kernels[POOL])


def test_random_shapes_match_pytorch():
    chosen = random.Random(0)
    shapes = []
    for _ in range(60):
        kernel = chosen.choice([(1, 1), (3, 3), (3, 3), (2, 5)])
        size = (kernel[0] * 2 + chosen.randrange(20), kernel[1] * 2 + chosen.randrange(20))
        steps = [(chosen.randrange(1, 3),) * 2 for _ in range(2)]
        shape = (chosen.randrange(1, 4), chosen.randrange(1, 40), *size, chosen.randrange(1, 80))
        shapes.append((*shape, kernel, steps[0], (chosen.randrange(3), chosen.randrange(3)), steps[1]))
    check_all(CONVOLUTIONS.function(CONVOLVE), channels_in_panel(), shapes)


def check_pooling(pool):
    torch.manual_seed(0)
    for channels, height, width, layout in itertools.product((1, 7, 16, 40, 130), (1, 7), (1, 5), LAYOUTS):
        x = torch.randn(3, channels, height, width).contiguous(memory_format=layout)
        for view in (x, x[:, :, :, : width // 2 + 1]):
            if view.stride(1) == 1 or channels == 1:
                result = torch.full((3, channels), torch.nan)
                pool(view, result, *view.shape, *view.stride())
                torch.testing.assert_close(result, view.double().mean((2, 3)).float(), rtol=1e-6, atol=1e-6)


def test_means_match_pytorch():
    check_pooling(CONVOLUTIONS.function(POOL))


class Pooling(nn.Module):
    """A pooling of whole images between a convolution and a linear layer, or alone."""

    def __init__(self, size=1, flatten=True, both=False):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 37, 3)
        self.size, self.is_flattened, self.both = size, flatten, both

    def forward(self, x):
        pooled = functional.adaptive_avg_pool2d(self.convolution(x), self.size)
        flat = torch.flatten(pooled, start_dim=1) if self.is_flattened else pooled * 2
        return (flat, pooled) if self.both else flat


@pytest.mark.parametrize("settings", [{}, {"size": (1, 1)}, {"flatten": False}, {"both": True}, {"size": 2}])
def test_pooling_matches_pytorch(settings):
    model = Pooling(**settings).eval().to(memory_format=torch.channels_last)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(measures=False), "torch"))
    x = torch.randn(2, 3, 13, 9).to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected, found = model(x), compiled(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    pairs = zip(*(result if isinstance(result, tuple) else (result,) for result in (found, expected)), strict=True)
    assert all(mine.stride() == eager.stride() for mine, eager in pairs)
    assert len(claims(compiled)) == (1 if settings.get("size") == 2 else 2)


def test_measured_pooling_is_reported():
    model = Pooling().eval().to(memory_format=torch.channels_last)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(methods=("pool",)), "torch"))
    with torch.no_grad(), tuning(60):
        compiled(torch.randn(1, 3, 30, 30).to(memory_format=torch.channels_last))
    trace = thunder.last_traces(compiled)[-1]
    words = [machine_code_of(claim.symbol.target).choice for claim in claims(compiled)]
    words += [record.reason for record in trace.refused]
    assert any("mean of 1 x 37 x 28 x 28" in text for text in words)


def test_an_empty_batch_has_an_empty_result():
    convolution = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    compiled = thunder.jit(convolution, executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        assert compiled(torch.randn(0, 3, 8, 8)).shape == (0, 8, 6, 6)


@pytest.mark.parametrize("method", [*METHODS, "oneDNN"])
def test_a_program_serves_images_of_all_sizes(method):
    groups = 8 if method == "depthwise" else 1
    channels, layout = (3, torch.contiguous_format) if method == "planes" else (8, torch.channels_last)
    layers = [nn.Conv2d(channels, 8, 3, padding=1, groups=groups), nn.BatchNorm2d(8), nn.ReLU6()]
    model = nn.Sequential(*layers).eval().to(memory_format=torch.channels_last)
    executor = PrepackedConvolution(measures=False, methods=(method,))
    sizes = {"input.size(0)": (2, 8), "input.size(2)": (3, 64), "input.size(3)": (3, 64)}
    compiled = thunder.jit(model, executors=(executor, "torch"), symbolic=sizes)
    with torch.no_grad():
        for shape in ((2, channels, 9, 11), (3, channels, 12, 12), (5, channels, 7, 30)):
            x = torch.randn(shape).to(memory_format=layout)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(claims(compiled)) == 1
    assert thunder.cache_misses(compiled) == 1


LOADS = """
import sys, torch, thunder_core as thunder
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)).eval()
compiled = thunder.load(sys.argv[1], model)
x, expected = torch.load(sys.argv[2])
with torch.no_grad():
    torch.testing.assert_close(compiled(x), expected)
print("equal")
"""


def test_an_artifact_holds_the_kernel(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)).eval()
    x = torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        torch.save((x, compiled(x)), tmp_path / "values.pt")
    assert len(claims(compiled)) == 2
    thunder.save(compiled, tmp_path / "artifact")
    without = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(tmp_path / "empty")}
    done = run_python("-c", LOADS, tmp_path / "artifact", tmp_path / "values.pt", env=without)
    assert done.stdout == "equal\n", done.stderr


def test_two_threads_give_the_same_values():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        check_all(CONVOLUTIONS.function(CONVOLVE), channels_in_panel(), SHAPES[:4])
    finally:
        torch.set_num_threads(threads)
