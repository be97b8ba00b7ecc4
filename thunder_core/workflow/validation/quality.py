"""The quality of a quantized model: the errors of its layers and outputs, compared with the float model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from thunder_core.backend.quantization.layers import QuantizedLayer
from thunder_core.foundation.options.quality import Quality
from thunder_core.foundation.transformers_versions import CACHE_NAMES
from thunder_core.workflow.validation.distance import blocks
from thunder_core.workflow.validation.language import ELEMENTS, has_logits, measure_language
from thunder_core.workflow.validation.leaves import leaves_of
from thunder_core.workflow.validation.report import LanguageReport, LayerQuality, QuantizationReport

NO_RESULTS = (*CACHE_NAMES, "encoder_last_hidden_state")  # returned besides the results


def measure_quality(
    original: torch.nn.Module,
    quantized: torch.nn.Module,
    calls: Sequence[Callable[[torch.nn.Module], object]],
    bound: Quality,
    *,
    language_model: bool,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> QuantizationReport:
    """Both models in eager PyTorch, on the same inputs: each of `calls` runs the model that it is given on its own.

    The error of a layer is that of its result on what the float model gives it, so that no layer answers for another
    one; that of an output is what all of them together do. An error is the norm of the difference as a part of the norm
    of the float result, over all inputs.
    """
    layers, errors, outputs = quantized_layers(quantized), _Errors(), _Errors()
    languages: list[LanguageReport] = []
    for number, call in enumerate(calls, start=1):
        with torch.no_grad():
            with _compared_layers(original, layers, errors):
                ours = _results(call(original))
            theirs = _results(call(quantized))
        for name, expected in ours.items():
            found = theirs[name]
            outputs.add(name, found, expected)
            if language_model and has_logits(name, expected):
                measured = measure_language(found, expected, expected)
                languages += [] if measured is None else [measured]
        advance(number, len(calls))
    return _judged(original, quantized, errors.relative(), outputs.relative(), languages, bound, len(calls))


def quantized_layers(model: torch.nn.Module) -> dict[str, QuantizedLayer]:
    """The quantized layers of a model by name, each once."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLayer)}


def _results(output: object) -> dict[str, Tensor]:
    """The floating tensors of an output by name, without caches."""
    found = leaves_of(output).tensors.items()
    return {name: one for name, one in found if one.is_floating_point() and name.partition(".")[0] not in NO_RESULTS}


class _Errors:
    """Square norms of differences and of expected results, by name."""

    def __init__(self) -> None:
        self.differences: dict[str, float] = {}
        self.expected: dict[str, float] = {}

    def add(self, name: str, found: Tensor, expected: Tensor) -> None:
        """Add what was found beside what was expected; what is infinite in both counts for nothing."""
        self.differences.setdefault(name, 0.0)
        self.expected.setdefault(name, 0.0)
        for ours, theirs in blocks(found, expected, elements=ELEMENTS):
            finite = theirs.isfinite() | (ours != theirs)
            self.differences[name] += torch.where(finite, ours - theirs, 0.0).square().sum().item()
            self.expected[name] += torch.where(finite, theirs, 0.0).square().sum().item()

    def relative(self) -> dict[str, float]:
        """The relative error by name; that of zeros is zero where they were found, and else infinite."""
        return {name: _ratio(one, self.expected[name]) for name, one in self.differences.items()}


def _ratio(difference: float, expected: float) -> float:
    if expected == 0:
        return 0.0 if difference == 0 else float("inf")
    return float((difference / expected) ** 0.5)


@contextmanager
def _compared_layers(
    original: torch.nn.Module, layers: Mapping[str, QuantizedLayer], errors: _Errors
) -> Iterator[None]:
    """While this lasts, each layer's result is compared with that of the quantized layer of its name."""

    def hook(name: str) -> Callable[..., None]:
        def after(module: torch.nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
            errors.add(name, layers[name](*args), result)

        return after

    with ExitStack() as hooks:
        for name in layers:
            hooks.enter_context(original.get_submodule(name).register_forward_hook(hook(name)))
        yield


def _judged(
    original: torch.nn.Module,
    quantized: torch.nn.Module,
    errors: Mapping[str, float],
    outputs: Mapping[str, float],
    languages: Sequence[LanguageReport],
    bound: Quality,
    inputs: int,
) -> QuantizationReport:
    """The report, with what of it the bound forbids."""
    worst = max(outputs, key=lambda name: outputs[name], default="")
    error = outputs.get(worst, 0.0)
    kl = sum(one.kl for one in languages) / len(languages) if languages else None
    top1 = sum(one.top1 for one in languages) / len(languages) if languages else None
    failures = []
    if not error <= bound.error:
        failures.append(f"the relative error of {worst} is {error:.3g}, and at most {bound.error:g} is allowed")
    if kl is not None and not kl <= bound.kl:
        failures.append(f"the KL divergence of its logits is {kl:.3g} nats, and at most {bound.kl:g} is allowed")
    if top1 is not None and not top1 >= bound.top1:
        failures.append(f"its top-1 agreement is {top1:.1%}, and at least {bound.top1:.1%} is required")
    found = [
        LayerQuality(
            name=name,
            kind=type(layer).__name__,
            float_bytes=layer.rows * layer.columns * layer.dtype.itemsize,
            bytes=sum(tensor.nbytes for tensor in layer.buffers(recurse=False)),
            error=errors.get(name),
        )
        for name, layer in quantized_layers(quantized).items()
    ]
    return QuantizationReport(
        passed=not failures,
        inputs=inputs,
        bound=bound,
        output=worst,
        error=error,
        kl=kl,
        top1=top1,
        layers=tuple(found),
        float_bytes=bytes_of(original),
        bytes=bytes_of(quantized),
        failures=tuple(failures),
    )


def bytes_of(model: torch.nn.Module) -> int:
    """The bytes of a model's parameters and buffers, each storage once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.nbytes for tensor in storages.values())
