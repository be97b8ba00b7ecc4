"""Checkpoints with quantized weights: each format that transformers loads on the CPU, compared with eager PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.models import quantized_checkpoints as checkpoints
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import PackageMissing
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.loading.packed_weights import PACKAGES
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.validation.precision import in_precision
from thunder_core.workflow.validation.wide_weights import is_packed

IDS = torch.arange(24).reshape(1, 24) % 256


def of_torchao(name: str) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        return checkpoints.torchao(folder, getattr(importlib.import_module("torchao.quantization"), name)())

    return made


FORMATS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "fp8": ("fp8", checkpoints.fp8),
    "bitnet": ("bitnet", checkpoints.bitnet),
    "bitsandbytes, nf4": (
        "bitsandbytes",
        lambda folder: checkpoints.bitsandbytes(folder, load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    ),
    "bitsandbytes, 8 bits": (
        "bitsandbytes",
        lambda folder: checkpoints.bitsandbytes(folder, load_in_8bit=True, llm_int8_threshold=0.0),
    ),
    "compressed-tensors, W8A8": ("compressed-tensors", lambda folder: checkpoints.compressed_tensors(folder, "W8A8")),
    "compressed-tensors, W4A16": ("compressed-tensors", lambda folder: checkpoints.compressed_tensors(folder, "W4A16")),
    "compressed-tensors, FP8": (
        "compressed-tensors",
        lambda folder: checkpoints.compressed_tensors(folder, "FP8_DYNAMIC"),
    ),
    "torchao, weights": ("torchao", of_torchao("Int8WeightOnlyConfig")),
    "torchao, inputs too": ("torchao", of_torchao("Int8DynamicActivationInt8WeightConfig")),
}


@pytest.fixture(params=FORMATS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint in a format whose packages are here."""
    method, make = FORMATS[request.param]
    for package in PACKAGES[method]:
        pytest.importorskip(package.replace("-", "_"))
    return make(tmp_path / "model")


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_checkpoint_computes_what_it_computes_in_eager(folder: Path) -> None:
    loaded = load_model(ModelRequest(model=str(folder)))
    compiled = thunder.compile(loaded.model, "default")
    with torch.no_grad():
        for ids in (IDS, IDS[:, :9]):
            expected = loaded.model(input_ids=ids).logits
            torch.testing.assert_close(compiled(input_ids=ids).logits, expected, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("method", PACKAGES)
def test_missing_package_is_named(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoints.quantized(tmp_path, {"quant_method": method}, lambda weight: {"weight": weight})
    monkeypatch.setattr(plugins, "is_installed", lambda package: False)
    with pytest.raises(PackageMissing, match=rf"quantized weights \({method}\), which need") as caught:
        load_model(ModelRequest(model=str(folder)))
    assert f"pip install {' '.join(PACKAGES[method])}" in caught.value.fix


class Packed(torch.nn.Parameter):
    """A weight of a class of its own."""


class OfItsDtype(torch.nn.Linear):
    """A layer that refuses another dtype than its weight's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.bfloat16
        return super().forward(x)


def test_modules_with_packed_weights_keep_their_dtype_in_a_reference() -> None:
    layer = OfItsDtype(4, 4, bias=False, dtype=torch.bfloat16)
    layer.weight = torch.Tensor._make_subclass(Packed, layer.weight.data)  # type: ignore[assignment]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, dtype=torch.bfloat16), layer)
    assert [is_packed(module) for module in model] == [False, True]
    in_precision(model, torch.float64, torch.bfloat16)
    assert model[0].weight.dtype == torch.float64
    assert model[1].weight.dtype == torch.bfloat16
    assert model(torch.ones(2, 4, dtype=torch.float64)).dtype == torch.float64
