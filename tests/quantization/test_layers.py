"""Quantized layers: near the float layers, equal for every number of rows, in every dtype, and saved in packed form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import prune
from transformers.pytorch_utils import Conv1D

import thunder_core as thunder
from thunder_core.backend.quantization.calibration import importances_of
from thunder_core.backend.quantization.input_rows import bfloat16_of
from thunder_core.backend.quantization.integers import (
    column_factors,
    dequantize_groups,
    pack,
    quantize_groups,
    quantize_rows,
    rotation,
    unpack,
)
from thunder_core.backend.quantization.layers import LayerSettings, QuantizedLayer
from thunder_core.backend.quantization.products import integer_product, rotated_rows
from thunder_core.backend.quantization.replacement import SCHEMES, QuantizationSettings, quantized_model
from thunder_core.foundation.errors import BadQuantization, NotDifferentiable, WrongInputs
from thunder_core.foundation.options.quality import Quality
from thunder_core.passes.transforms.quantize import Quantize
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.validation.quality import measure_quality, quantized_layers

LOSS = {"int8-dynamic": 0.02, "int8-weight-only": 0.02, "int4-weight-only": 0.15, "fp8": 0.06, "nf4-lora": 0.15}
LOSS["bf16"] = 0.01


def small_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 30)).eval()


def loss(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantized_table_refuses_a_negative_id_like_pytorch(scheme: str) -> None:
    table = SCHEMES[scheme].embedding(torch.randn(8, 64), LayerSettings())
    for call in (torch.nn.Embedding(8, 64), table, thunder.jit(table)):
        with torch.no_grad(), pytest.raises(IndexError, match="index out of range in self"):
            call(torch.tensor([[1, -1]]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_layer_whose_weight_a_hook_computes_is_not_quantized(scheme: str) -> None:
    model = small_model()
    prune.l1_unstructured(model[0], "weight", 0.5)  # type: ignore[no-untyped-call]
    x = torch.randn(4, 64)
    with torch.no_grad():
        expected = model(x)
        quantized = quantized_model(model, QuantizationSettings(scheme))
        assert [name for name, module in quantized.named_modules() if isinstance(module, QuantizedLayer)] == ["2"]
        assert 0 < loss(quantized(x), expected) < LOSS[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rows", [(1,), (2, 3), (40,)])
def test_a_quantized_model_is_near_the_float_model(scheme: str, rows: tuple[int, ...]) -> None:
    model = small_model()
    x = torch.randn(*rows, 64)
    with torch.no_grad():
        quantized = quantized_model(model, QuantizationSettings(scheme))
        expected, found = model(x), quantized(x)
    assert found.dtype == torch.float32
    assert 0 < loss(found, expected) < LOSS[scheme]


class NamedInputs(torch.nn.Module):
    """A module that passes the inputs of its layers by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = torch.nn.Embedding(10, 64), torch.nn.Linear(64, 96)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.linear(input=self.table(input=ids))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("is_training", [False, True])
def test_layers_accept_their_input_by_name(scheme: str, is_training: bool) -> None:
    model, ids = NamedInputs().train(is_training), torch.arange(4)
    with torch.no_grad():
        quantized = quantized_model(model, QuantizationSettings(scheme))
        assert 0 < loss(quantized(ids), model(ids)) < 2 * LOSS[scheme]


def test_layers_with_an_input_by_name_are_calibrated_and_compared() -> None:
    model, ids, settings = NamedInputs().eval(), torch.arange(4), QuantizationSettings("int4-weight-only")
    importances = importances_of(model, settings, [lambda: model(ids)])
    torch.testing.assert_close(importances["linear"], model.table(ids).square().mean(0))
    quantized = quantized_model(model, settings, importances=importances)
    report = measure_quality(model, quantized, [lambda model: model(ids)], Quality(error=1.0), language_model=False)
    (layer,) = report.layers
    assert (layer.name, 0 < layer.error < 0.3) == ("linear", True)


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.DegradedWarning")  # fp8 without a GPU
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_compiled_quantized_model_is_saved_and_loaded(scheme: str, tmp_path: Path) -> None:
    model, x = small_model(), torch.randn(3, 64)
    compiled = thunder.compile(model, ["default", scheme])
    with torch.no_grad():
        expected = compiled(x)
        thunder.save(compiled, tmp_path / "artifact", include_weights=True)
        loaded = thunder.load(tmp_path / "artifact", small_model(), strict=True, weights=True)
        assert torch.equal(loaded(x), expected)


def test_an_artifact_with_calibrated_weights_refuses_to_quantize_a_float_model(tmp_path: Path) -> None:
    model, x = small_model(), torch.randn(3, 64)
    transform = Quantize("int4-weight-only").calibrate(model, [lambda: model(x)])
    compiled = thunder.jit(transform.prepare(model), transforms=[transform])
    with torch.no_grad():
        expected = compiled(x)
        thunder.save(compiled, tmp_path / "artifact", include_weights=True)
        with pytest.raises(WrongInputs, match="with data that the artifact lacks, such as a calibration"):
            thunder.load(tmp_path / "artifact", small_model())
        loaded = thunder.load(tmp_path / "artifact", small_model(), weights=True)
        assert torch.equal(loaded(x), expected)
        assert torch.equal(thunder.load(tmp_path / "artifact", transform.prepare(model))(x), expected)


def test_codes_of_4_bits_are_packed_and_unpacked() -> None:
    codes = torch.randint(0, 16, (70, 32), dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes))[:70], codes)


def test_calibration_loses_less_on_important_columns() -> None:
    torch.manual_seed(0)
    weight, importance = torch.randn(64, 64), torch.logspace(-2, 2, 64)
    errors = []
    for column_importance in (None, importance):
        codes, scales_and_zeros = quantize_groups(weight, 32, column_importance)
        difference = dequantize_groups(codes, scales_and_zeros, torch.float32) - weight
        errors.append((difference.square() * importance).sum())
    assert errors[1] < 0.95 * errors[0]


def test_8_bit_floats_are_converted_by_their_bits() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = every[~every.float().isnan()]
    assert torch.equal(bfloat16_of(numbers).float(), numbers.float())


@pytest.mark.parametrize("strides", [(64, 1), (1, 1), (0, 1)])
def test_a_single_row_is_multiplied_with_any_strides(strides: tuple[int, int]) -> None:
    x = torch.randint(-127, 128, (1, 64), dtype=torch.int8).as_strided((1, 64), strides)
    weight = torch.randint(-127, 128, (32, 64), dtype=torch.int8)
    assert torch.equal(integer_product(x, weight), x.int() @ weight.int().t())


def test_adapters_alone_are_trained() -> None:
    compiled = thunder.compile(small_model(), ["default", "nf4-lora"])
    compiled(torch.randn(5, 64)).sum().backward()
    assert thunder.last_backward_reason(compiled) == ""
    trained = {name for name, parameter in compiled.named_parameters() if parameter.grad is not None}
    assert trained == {f"{layer}.lora_{half}" for layer in (0, 2) for half in "ab"}


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.DegradedWarning")  # a processor without bfloat16
def test_bf16_trains_the_float_weights_of_a_model_in_training_mode() -> None:
    """Layers with a weight of (columns, rows) and a tied embedding table, compared with rounded weights in eager."""
    model = load_model(ModelRequest(sample=SAMPLES["gpt2"])).model
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    frozen = quantized_model(model, QuantizationSettings("bf16"))
    compiled = thunder.compile(model.train(), ["default", "bf16"], without=["inductor"])
    ids = torch.arange(6)[None]
    result = compiled(input_ids=ids, labels=ids)
    torch.testing.assert_close(result.logits, frozen.train()(input_ids=ids).logits, rtol=1e-5, atol=1e-5)
    result.loss.backward()
    assert all(parameter is twin for parameter, twin in zip(compiled.parameters(), model.parameters(), strict=True))
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        assert loss(gradient, parameter.grad) < 0.05


def test_frozen_layers_alone_are_quantized_for_training() -> None:
    model = small_model().train()
    model[0].requires_grad_(False)
    quantized = quantized_model(model, QuantizationSettings("int8-weight-only"))
    assert [type(layer).__name__ for layer in quantized] == ["Int8WeightOnlyLinear", "GELU", "Linear"]
    assert quantized[2].weight is model[2].weight
    assert quantized[2].weight.requires_grad
    every = quantized_model(model.eval(), QuantizationSettings("int8-weight-only"))
    assert not any(parameter.requires_grad for parameter in every.parameters())


def test_parameters_beside_a_frozen_conv1d_stay_trainable() -> None:
    model = torch.nn.Sequential(Conv1D(64, 64), torch.nn.LayerNorm(64)).train()
    model[0].requires_grad_(False)
    quantized = quantized_model(model, QuantizationSettings("int8-weight-only"))
    assert [type(layer).__name__ for layer in quantized] == ["Int8WeightOnlyLinear", "LayerNorm"]
    assert quantized[1].weight is model[1].weight
    assert quantized[1].weight.requires_grad


def test_backward_hooks_of_a_replaced_layer_are_called() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).train()
    model[0].requires_grad_(False)
    calls: list[str] = []
    model[0].register_full_backward_pre_hook(lambda *_: calls.append("before"))
    model[0].register_full_backward_hook(lambda *_: calls.append("after"))
    quantized = quantized_model(model, QuantizationSettings("int8-weight-only"))
    quantized(torch.randn(2, 64, requires_grad=True)).sum().backward()
    assert calls == ["before", "after"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tied_layers_are_quantized_once(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding table and the LM head, for schemes that use the same codes for both."""
    torch.manual_seed(0)
    model = load_model(ModelRequest(sample=SAMPLES["gpt2"])).model
    expected = model.lm_head.weight
    assert model.transformer.wte.weight is expected
    kinds = {type(layer) for layer in quantized_layers(quantized_model(model, QuantizationSettings(scheme))).values()}
    shapes = []
    for kind in kinds:
        monkeypatch.setattr(kind, "_buffers_of", counted(kind._buffers_of, shapes))
    for is_empty in (False, True):
        shapes.clear()
        quantized = quantized_model(model, QuantizationSettings(scheme), is_empty=is_empty)
        head, table = quantized.lm_head, quantized.transformer.wte
        assert all(tensor is table.get_buffer(name) for name, tensor in head.named_buffers())
        assert shapes.count(expected.shape) == 1
    assert loss(quantized_model(model, QuantizationSettings(scheme)).lm_head.weight, expected.detach()) < 0.02


def counted(function: Callable[..., Any], shapes: list[torch.Size]) -> Callable[..., Any]:
    def counting(layer: QuantizedLayer, weight: torch.Tensor, *rest: Any) -> Any:
        shapes.append(weight.shape)
        return function(layer, weight, *rest)

    return counting


def test_layers_of_a_weight_that_are_quantized_in_two_ways_share_nothing() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)])
    model[1].weight = model[0].weight
    made = [quantized_model(model, QuantizationSettings("int4-weight-only", group_size=size)) for size in (32, 64)]
    assert made[0][0].codes is made[0][1].codes
    assert made[0][0].codes is not made[1][0].codes


def test_columns_that_differ_cost_weights_of_8_bits_no_digits() -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 64)
    weight[:, 7] *= 50
    factors = column_factors(weight)
    assert torch.equal(factors.float().log2(), factors.float().log2().round())
    plain = rows_of(*quantize_rows(weight))
    balanced = rows_of(*quantize_rows(weight / factors)) * factors
    others = torch.arange(64) != 7
    assert loss(balanced[:, others], weight[:, others]) < loss(plain[:, others], weight[:, others]) / 4


def rows_of(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return codes.float() * scales.float()[:, None]


@pytest.mark.parametrize(("columns", "size"), [(384, 32), (24, 8), (7, 1)])
@pytest.mark.parametrize("count", [1, 40])
def test_rotating_rows_twice_gives_the_rows(columns: int, size: int, count: int) -> None:
    assert len(rotation(columns)) == size
    x = torch.randn(count, columns)
    spread = rotated_rows(x)
    assert torch.allclose(spread.norm(dim=1), x.norm(dim=1), rtol=1e-4)
    assert torch.allclose(rotated_rows(spread), x, atol=1e-4)


def test_a_model_without_values_gets_the_structure_alone() -> None:
    settings = Quantize("int4-weight-only")
    whole, empty = settings.prepare(small_model()), settings.restructure(small_model())
    described = [{n: (t.shape, t.dtype) for n, t in each_model.state_dict().items()} for each_model in (whole, empty)]
    assert described[0] == described[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (QuantizationSettings("int8-dynamic", targets=("attention.*",)), "no layer's name matches targets"),
        (QuantizationSettings("int8-dynamic", skip=("nothing",)), "no layer's name matches skip"),
        (QuantizationSettings("int4-weight-only", group_size=48), "group_size=48 does not divide the 64 columns of 0"),
        (QuantizationSettings("int8-dynamic", skip=("*",)), "skips all layers"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: QuantizationSettings, message: str) -> None:
    with pytest.raises(BadQuantization, match=message):
        quantized_model(small_model(), settings)


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.DegradedWarning")  # a processor without VNNI
def test_a_gradient_through_rounding_is_refused() -> None:
    compiled = thunder.compile(small_model(), ["default", "int8-dynamic"])
    with pytest.raises(NotDifferentiable, match="has no derivative"):
        compiled(torch.randn(2, 64, requires_grad=True))
