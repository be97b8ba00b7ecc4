"""The quality of a quantized model: the errors of its layers and outputs, compared with the float model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from thunder_core.backend.quantization.layers import QuantizedLayer
from thunder_core.backend.quantization.trained import RoundedLayer
from thunder_core.foundation.options.quality import Quality
from thunder_core.workflow.validation.distance import blocks
from thunder_core.workflow.validation.language import ELEMENTS, has_logits, measure_language
from thunder_core.workflow.validation.leaves import leaves_of
from thunder_core.workflow.validation.metric import NON_RESULT_OUTPUTS
from thunder_core.workflow.validation.report import LanguageReport, LayerQuality, QuantizationReport


def measure_quality(
    original: torch.nn.Module,
    quantized: torch.nn.Module,
    calls: Sequence[Callable[[torch.nn.Module], object]],
    bound: Quality,
    *,
    language_model: bool,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> QuantizationReport:
    """Run both models in eager PyTorch on the same inputs, and compare them.

    Each of `calls` calls a model on one input. A quantized layer is compared on the float model's input to the layer,
    so that errors of other layers do not contribute. The error of an output comes from all layers together. An error is
    the norm of the difference relative to the norm of the float result, over all inputs.
    """
    layers, errors, outputs = quantized_layers(quantized), _Errors(), _Errors()
    languages: list[LanguageReport] = []
    for number, call in enumerate(calls, start=1):
        with torch.no_grad():
            with _compared_layers(original, layers, errors):
                expected_results = _results(call(original))
            actual_results = _results(call(quantized))
        for name, expected in expected_results.items():
            actual = actual_results[name]
            outputs.add(name, actual, expected)
            if language_model and has_logits(name, expected):
                measured = measure_language(actual, expected, expected)
                languages += [] if measured is None else [measured]
        advance(number, len(calls))
    return _judge(original, quantized, errors.relative(), outputs.relative(), languages, bound, len(calls))


def quantized_layers(model: torch.nn.Module) -> dict[str, QuantizedLayer | RoundedLayer]:
    """Return the quantized layers of a model by name, without duplicates."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLayer | RoundedLayer)}


def _results(output: object) -> dict[str, Tensor]:
    """Return the floating tensors of an output by name, without caches."""
    floating = {name: tensor for name, tensor in leaves_of(output).tensors.items() if tensor.is_floating_point()}
    return {name: tensor for name, tensor in floating.items() if name.partition(".")[0] not in NON_RESULT_OUTPUTS}


class _Errors:
    """The squared norms of differences and of expected results, by name."""

    def __init__(self) -> None:
        self.differences: dict[str, float] = {}
        self.expected: dict[str, float] = {}

    def add(self, name: str, actual: Tensor, expected: Tensor) -> None:
        """Add a result and the expected result; elements that are equally infinite in both count as zero."""
        self.differences.setdefault(name, 0.0)
        self.expected.setdefault(name, 0.0)
        for actual_block, expected_block in blocks(actual, expected, elements=ELEMENTS):
            counts = expected_block.isfinite() | (actual_block != expected_block)
            self.differences[name] += torch.where(counts, actual_block - expected_block, 0.0).square().sum().item()
            self.expected[name] += torch.where(counts, expected_block, 0.0).square().sum().item()

    def relative(self) -> dict[str, float]:
        """Return the relative error by name; for expected zeros, 0 if the result is zero, else infinity."""
        return {name: _ratio(difference, self.expected[name]) for name, difference in self.differences.items()}


def _ratio(difference: float, expected: float) -> float:
    if expected == 0:
        return 0.0 if difference == 0 else float("inf")
    return float((difference / expected) ** 0.5)


@contextmanager
def _compared_layers(
    original: torch.nn.Module, layers: Mapping[str, torch.nn.Module], errors: _Errors
) -> Iterator[None]:
    """While the block runs, compare each layer's result with the result of the quantized layer of the same name."""

    def hook(name: str) -> Callable[..., None]:
        def after(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
            errors.add(name, layers[name](*args, *kwargs.values()), result)

        return after

    with ExitStack() as hooks:
        for name in layers:
            layer = original.get_submodule(name)
            hooks.enter_context(layer.register_forward_hook(hook(name), with_kwargs=True))
        yield


def _judge(
    original: torch.nn.Module,
    quantized: torch.nn.Module,
    errors: Mapping[str, float],
    outputs: Mapping[str, float],
    languages: Sequence[LanguageReport],
    bound: Quality,
    inputs: int,
) -> QuantizationReport:
    """Return the report, with the violations of the bound."""
    worst = max(outputs, key=lambda name: outputs[name], default="")
    error = outputs.get(worst, 0.0)
    kl = sum(language.kl for language in languages) / len(languages) if languages else None
    top1 = sum(language.top1 for language in languages) / len(languages) if languages else None
    failures = tuple(_violations(bound, worst, error, kl, top1))
    return QuantizationReport(
        passed=not failures,
        inputs=inputs,
        bound=bound,
        output=worst,
        error=error,
        kl=kl,
        top1=top1,
        layers=tuple(_layer_qualities(quantized, errors)),
        float_bytes=bytes_of(original),
        bytes=bytes_of(quantized),
        failures=failures,
    )


def _violations(bound: Quality, output: str, error: float, kl: float | None, top1: float | None) -> Iterator[str]:
    if not error <= bound.error:
        yield f"the relative error of {output} is {error:.3g}, and at most {bound.error:g} is allowed"
    if kl is not None and not kl <= bound.kl:
        yield f"the KL divergence of its logits is {kl:.3g} nats, and at most {bound.kl:g} is allowed"
    if top1 is not None and not top1 >= bound.top1:
        yield f"its top-1 agreement is {top1:.1%}, and at least {bound.top1:.1%} is required"


def _layer_qualities(quantized: torch.nn.Module, errors: Mapping[str, float]) -> Iterator[LayerQuality]:
    for name, layer in quantized_layers(quantized).items():
        yield LayerQuality(
            name=name,
            kind=type(layer).__name__,
            float_bytes=layer.weight_bytes,
            bytes=layer.stored_bytes,
            error=errors.get(name),
        )


def bytes_of(model: torch.nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers; each storage counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.nbytes for tensor in storages.values())
