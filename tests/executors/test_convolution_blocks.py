"""Blocks of convolutions (inverted residuals) are computed by one kernel, in bands of rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thunder_core as thunder
from tests.executors.convolution_checks import LAYOUTS, claims
from tests.executors.vectors import AVX2, WIDE
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.backend.fusion.machine_code import machine_code_of
from thunder_executors import prepacked_convolution
from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.prepacked_convolution import PrepackedConvolution
from thunder_executors.prepacked_convolution.kernel import channels_in_panel, functions

pytestmark = pytest.mark.skipif(not PrepackedConvolution().runs("direct"), reason="it needs AVX2 and a C++ compiler")


class Inverted(nn.Module):
    """An inverted residual block, which may lack its first or its last convolution."""

    def __init__(
        self, channels=8, inner=48, out=8, stride=1, size=3, expand=True, project=True, inplace=False, pad=None
    ):
        super().__init__()
        torch.manual_seed(0)
        inner = inner if expand else channels
        middle = nn.Conv2d(inner, inner, size, stride, 0 if pad else size // 2, groups=inner, bias=False)
        self.expand = self.layer(nn.Conv2d(channels, inner, 1, bias=False), inplace) if expand else nn.Identity()
        self.pad = nn.ZeroPad2d(pad) if pad else nn.Identity()
        self.middle = self.layer(middle, inplace)
        self.project = nn.Sequential(nn.Conv2d(inner, out, 1), nn.BatchNorm2d(out)) if project else nn.Identity()
        self.is_residual = project and stride == 1 and channels == out and not pad

    @staticmethod
    def layer(convolution, inplace):
        norm = nn.BatchNorm2d(convolution.out_channels)
        norm.running_mean.normal_()
        return nn.Sequential(convolution, norm, nn.ReLU6(inplace))

    def forward(self, x):
        result = self.project(self.middle(self.pad(self.expand(x))))
        return result + x if self.is_residual else result


INVERTED = {
    "residual": {},
    "other channels": {"out": 17},
    "strided": {"stride": 2},
    "padded on one side": {"stride": 2, "pad": (0, 1, 0, 1)},
    "in place": {"inplace": True},
    "large kernel": {"size": 5},
    "without expansion": {"expand": False, "channels": 33},
    "without projection": {"project": False},
    "odd channels": {"channels": 5, "inner": 19, "out": 3},
    "many channels": {"channels": 40, "inner": 700, "out": 40},
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", INVERTED)
def test_a_block_matches_pytorch(name, layout, threads):
    block = Inverted(**INVERTED[name]).eval().to(memory_format=layout)
    x = torch.randn(3, INVERTED[name].get("channels", 8), 37, 33).to(memory_format=torch.channels_last)
    compiled = thunder.jit(block, executors=(PrepackedConvolution(measures=False), "torch"))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with torch.no_grad():
            expected, found = block(x), compiled(x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert found.stride() == expected.stride()
    assert len(claims(compiled)) == 1


def test_blocks_of_large_images_are_computed_in_bands():
    block = Inverted(16, 96, 24).eval().to(memory_format=torch.channels_last)
    compiled = thunder.jit(block, executors=(PrepackedConvolution(measures=False), "torch"))
    for height, width in ((112, 112), (1, 300), (300, 1), (23, 200)):
        x = torch.randn(2, 16, height, width).to(memory_format=torch.channels_last)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=2e-5)


def test_a_block_with_other_vectors_matches_pytorch(monkeypatch):
    panel, vectors = (16, AVX2) if channels_in_panel() == 32 else (32, WIDE)
    library = KernelLibrary("prepacked-convolution", "convolutions", functions(vectors))
    monkeypatch.setattr(prepacked_convolution, "CONVOLUTIONS", library)
    monkeypatch.setattr(prepacked_convolution, "channels_in_panel", lambda: panel)
    for settings in INVERTED.values():
        block = Inverted(**settings).eval().to(memory_format=torch.channels_last)
        x = torch.randn(2, settings.get("channels", 8), 37, 33).to(memory_format=torch.channels_last)
        compiled = thunder.jit(block, executors=(PrepackedConvolution(measures=False), "torch"))
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), block(x), rtol=1e-4, atol=2e-5)
        assert len(claims(compiled)) == 1


def test_results_within_a_block_that_others_read_are_computed_alone():
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Inverted()

        def forward(self, x):
            inner = self.block.expand(x)
            return self.block.project(self.block.middle(inner)), inner.sum()

    model, x = Reading().eval(), torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=2e-5)
    assert len(claims(compiled)) == 2


def test_blocks_that_share_a_convolution_match_pytorch():
    depthwise = [nn.Conv2d(24, 24, 3, padding=1, groups=24) for _ in range(3)]
    pointwise = [nn.Conv2d(24, 24, 1) for _ in range(3)]
    model = nn.Sequential(*(layer for pair in zip(depthwise, pointwise, strict=True) for layer in pair)).eval()
    x = torch.randn(2, 24, 9, 9).to(memory_format=torch.channels_last)
    compiled = thunder.jit(model, executors=(PrepackedConvolution(measures=False), "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=2e-5)
    assert len(claims(compiled)) == 3


def test_measured_choices_are_reported():
    block = Inverted(8, 48, 16).eval().to(memory_format=torch.channels_last)
    compiled = thunder.jit(block, executors=(PrepackedConvolution(), "torch"))
    with torch.no_grad(), tuning(60):
        torch.testing.assert_close(*(f(torch.ones(1, 8, 20, 20)) for f in (compiled, block)), rtol=1e-4, atol=2e-5)
    words = [machine_code_of(claim.symbol.target).choice for claim in claims(compiled)]
    assert words
    assert all("in separate calls" in text or "torch.nn.functional.conv2d" in text for text in words)
