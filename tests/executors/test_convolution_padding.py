"""Padding before a convolution is part of its kernel where nothing else reads the padded tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import thunder_core as thunder
from tests.executors.convolution_checks import LAYOUTS, claims
from thunder_executors.prepacked_convolution import PrepackedConvolution

pytestmark = pytest.mark.skipif(not PrepackedConvolution().runs("direct"), reason="it needs AVX2 and a C++ compiler")


class Padded(nn.Module):
    """A convolution after `F.pad`, as in models that were converted from TensorFlow."""

    def __init__(self, pad, **settings):
        super().__init__()
        self.pad = pad
        self.convolution = nn.Conv2d(6, 16, 3, stride=2, **settings)
        self.norm = nn.BatchNorm2d(16)
        self.norm.running_mean.normal_()

    def forward(self, x):
        return functional.hardtanh(self.norm(self.convolution(functional.pad(x, self.pad))), 0.0, 6.0)


@pytest.mark.parametrize("pad", [(0, 1, 0, 1), (1, 1, 1, 1), (0, 0), (2, 0, 1, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padding", [0, 1])
def test_padding_before_a_convolution_is_part_of_it(pad, layout, padding):
    model = Padded(pad, padding=padding).eval().to(memory_format=layout)
    x = torch.randn(2, 6, 13, 14).to(memory_format=layout)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        expected, found = model(x), compiled(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.stride() == expected.stride()
    (claim,) = claims(compiled)
    in_kernel = layout == torch.channels_last or (len(set(pad[:2])) == len(set(pad[2:])) == 1) or len(pad) == 2
    assert any(bsym.symbol.name == "torch.nn.functional.pad" for bsym in claim.subsymbols) is in_kernel


@pytest.mark.parametrize(
    "pad",
    [
        lambda x: functional.pad(x, (1, 1, 1, 1), value=1.0),
        lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: functional.pad(x, (-1, 1, 1, 1)),
        lambda x: functional.pad(x, (1, 1, 1, 1, 1, 1)),
    ],
)
def test_other_padding_stays_before_the_convolution(pad):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.LazyConv2d(8, 3)

        def forward(self, x):
            return self.convolution(pad(x))

    model, x = Other(), torch.randn(2, 6, 9, 9).to(memory_format=torch.channels_last)
    model(x)
    compiled = thunder.jit(model.eval(), executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(claims(compiled)) == 1


@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize("size", [1, 2, 3, 4, (5, 2)])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_by_name_matches_pytorch(size, padding, dilation):
    torch.manual_seed(0)
    model = nn.Conv2d(6, 16, size, padding=padding, dilation=dilation).to(memory_format=torch.channels_last)
    x = torch.randn(2, 6, 13, 14).to(memory_format=torch.channels_last)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(claims(compiled)) == 1


def test_padding_that_others_read_stays():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(6, 6, 3)

        def forward(self, x):
            padded = functional.pad(x, (1, 1, 1, 1))
            return self.convolution(padded), padded

    model, x = Shared().eval(), torch.randn(1, 6, 9, 9).to(memory_format=torch.channels_last)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
