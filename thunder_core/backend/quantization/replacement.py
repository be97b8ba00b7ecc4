"""Quantized models: the choice of layers and of their classes, and a copy of the model with quantized layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from thunder_core.backend.quantization import embeddings, linear
from thunder_core.backend.quantization.layers import GROUP_SIZES, LayerSettings, QuantizedLayer
from thunder_core.backend.quantization.linear import QuantizedLinear
from thunder_core.backend.quantization.trained import RoundedLayer, rounded_class
from thunder_core.foundation.errors import BadQuantization

CONV1D = "transformers.pytorch_utils.Conv1D"  # GPT-2's linear layer, whose weight is (columns, rows)
TRAINED_SCHEME = "bf16"  # the scheme that trains the weights of a model in training mode
# The dicts of a module's hooks.
HOOK_ATTRIBUTES = (
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
KIND_OF_BACKWARD_HOOKS = "_is_full_backward_hook"  # the attribute that says which function registered `_backward_hooks`
MAX_SHOWN_NAMES = 3  # the number of layer names in an error message


@dataclass(frozen=True)
class Scheme:
    """The classes that replace linear layers, the LM head and embedding tables in one kind of quantization.

    `fallback` is the class for linear layers whose number of columns is no multiple of any group size.
    """

    linear: type[QuantizedLinear]
    head: type[QuantizedLinear]
    embedding: type[QuantizedLayer]
    fallback: type[QuantizedLinear]


# The classes for the LM head, the embedding table and the fallback: with a scale for each row, and with rotated rows.
BY_ROWS = (linear.Int8WeightOnlyLinear, embeddings.Int8Embedding, linear.Int8WeightOnlyLinear)
ROTATED = (linear.Int8DynamicLinear, embeddings.RotatedInt8Embedding, linear.Int8DynamicLinear)
SCHEMES: Mapping[str, Scheme] = {
    "int8-dynamic": Scheme(linear.Int8DynamicLinear, *ROTATED),
    "int8-weight-only": Scheme(linear.Int8WeightOnlyLinear, *BY_ROWS),
    "int4-weight-only": Scheme(linear.Int4WeightOnlyLinear, *BY_ROWS),
    "fp8": Scheme(linear.FP8Linear, *BY_ROWS[:2], linear.FP8Linear),
    "nf4-lora": Scheme(linear.NormalFloatLoRALinear, *BY_ROWS),
    "bf16": Scheme(linear.BFloat16Linear, linear.BFloat16Linear, embeddings.BFloat16Embedding, linear.BFloat16Linear),
}


@dataclass(frozen=True)
class QuantizationSettings:
    """The settings of a quantization: the name of a scheme, and patterns of layer names (`model.layers.*.mlp.*`).

    A layer is quantized if its name matches a pattern of `targets` and none of `skip`. `group_size` is the number of
    columns that share a scale in 4 bits; 0 means the largest of `GROUP_SIZES` that divides a layer's columns. If
    `embeddings` is set, the token embedding table is quantized too. `rank` and `alpha` are the settings of trained
    adapters.
    """

    scheme: str
    targets: tuple[str, ...] = ("*",)
    skip: tuple[str, ...] = ()
    group_size: int = 0
    embeddings: bool = True
    rank: int = 8
    alpha: float = 16.0


@dataclass(frozen=True)
class LayerPlan:
    """The plan to replace a layer: the quantized class (`kind`), its settings, and the layer's float tensors.

    The weight is (rows, columns). `training` says whether the layer is in training mode.
    """

    kind: type[QuantizedLayer]
    settings: LayerSettings
    weight: Tensor = field(repr=False)
    bias: Tensor | None = field(repr=False)
    training: bool = False

    @property
    def codes_key(self) -> Hashable:
        """The weight and its quantization: layers with equal keys share their codes."""
        memory = self.weight.data_ptr() or id(self.weight)
        groups = self.settings.group_size if self.kind.in_groups else 0
        return memory, self.weight.shape, self.weight.stride(), self.weight.dtype, self.kind.quantize, groups

    def make(self, importance: Tensor | None, *, is_empty: bool, shared: Mapping[str, Tensor] | None) -> QuantizedLayer:
        """Return the quantized layer.

        `shared` are the buffers of a layer that has the same codes, or None. For the other arguments, see
        `quantized_model`.
        """
        kind: Any = self.kind
        tensors = (self.weight, self.bias) if issubclass(kind, QuantizedLinear) else (self.weight,)
        layer: QuantizedLayer = kind(*tensors, self.settings, importance=importance, is_empty=is_empty, shared=shared)
        return layer.train(self.training)


def quantized_model(
    model: torch.nn.Module,
    settings: QuantizationSettings,
    *,
    importances: Mapping[str, Tensor] | None = None,
    is_empty: bool = False,
) -> torch.nn.Module:
    """Return a copy of a model with quantized layers.

    The copy shares all other tensors with the model, and its parameters are frozen. There are two exceptions. If a
    model in training mode has layers with frozen weights and other parameters that are trained, only the frozen layers
    are quantized, and the other parameters stay trainable. A model that `is_trained` keeps its parameters, as
    `trained_model` describes.

    Layers that share a weight share their codes. `importances` are the mean squares of layers' inputs, by the layers'
    names. If `is_empty` is set, codes and scales have shapes and no values. Raises `BadQuantization` as `plan_layers`
    does.
    """
    if is_trained(model, settings):
        return trained_model(model, settings)
    codes: dict[Hashable, Mapping[str, Tensor]] = {}
    result = copy_model(model) if trains_other_parameters(model) else copy_with_frozen_parameters(model)
    for name, plan in plan_layers(model, settings).items():
        shared = codes.get(plan.codes_key)
        layer = plan.make((importances or {}).get(name), is_empty=is_empty, shared=shared)
        codes[plan.codes_key] = dict(layer.named_buffers(recurse=False))
        install_layer(result, name, layer)
    return result


def is_trained(model: torch.nn.Module, settings: QuantizationSettings) -> bool:
    """Whether the scheme keeps the model's parameters trainable: bf16, for a trainable model in training mode."""
    return (
        settings.scheme == TRAINED_SCHEME
        and model.training
        and any(parameter.requires_grad for parameter in model.parameters())
    )


def trained_model(model: torch.nn.Module, settings: QuantizationSettings) -> torch.nn.Module:
    """Return a copy of a model that shares all parameters with the model, and rounds weights to bfloat16 at each call.

    Raises `BadQuantization` like `plan_layers`.
    """
    names = plan_layers(model, settings)
    result = copy_model(model)
    for name in names:
        layer = result.get_submodule(name)
        kind: Any = type(model.get_submodule(name))
        layer.__class__ = rounded_class(kind)
    return result


def plan_layers(model: torch.nn.Module, settings: QuantizationSettings) -> dict[str, LayerPlan]:
    """Return the plans of the layers to quantize, by the names of the layers; a shared layer has several names.

    Raises `BadQuantization` for a pattern that matches no layer, a group size that does not divide the columns of a
    layer, and a model without linear layers.
    """
    candidates = dict(_candidates(model, settings))
    if trains_other_parameters(model) and not is_trained(model, settings):
        candidates = {name: plan for name, plan in candidates.items() if is_frozen(model.get_submodule(name))}
    if not candidates:
        raise BadQuantization(
            f"this {type(model).__name__} has no linear layers, so there is nothing to quantize",
            fix="leave out the recipe; it quantizes torch.nn.Linear and transformers' Conv1D",
        )
    for kind, patterns in (("targets", settings.targets), ("skip", settings.skip)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in candidates):
                raise BadQuantization(
                    f"no layer's name matches {kind}={pattern!r}", fix=_names_like(pattern, candidates)
                )
    chosen = {name: plan for name, plan in candidates.items() if is_chosen(name, settings)}
    if not chosen:
        raise BadQuantization(
            f"skip={','.join(settings.skip)!r} skips all layers of targets={','.join(settings.targets)!r}",
            fix="skip fewer layers, or leave out the recipe",
        )
    return {name: _with_group_size(name, plan, settings) for name, plan in chosen.items()}


def is_chosen(name: str, settings: QuantizationSettings) -> bool:
    """Whether a layer is among the targets and not skipped."""
    targeted = any(fnmatchcase(name, pattern) for pattern in settings.targets)
    return targeted and not any(fnmatchcase(name, pattern) for pattern in settings.skip)


def _names_like(pattern: str, names: Iterable[str]) -> str:
    """Return the fix for a pattern that matches no name, with the most similar names."""
    module_names = list(names)
    near = get_close_matches(pattern, module_names, MAX_SHOWN_NAMES, cutoff=0.3) or module_names[:MAX_SHOWN_NAMES]
    return f"write a pattern of these names, such as {', '.join(near)} (* is a wildcard)"


def _candidates(model: torch.nn.Module, settings: QuantizationSettings) -> Iterator[tuple[str, LayerPlan]]:
    """Yield the name and the plan of every layer that the scheme can quantize, whether or not it is a target."""
    scheme = SCHEMES[settings.scheme]
    head, table = _embedding(model, "get_output_embeddings"), _embedding(model, "get_input_embeddings")
    base_settings = LayerSettings(settings.group_size, settings.rank, settings.alpha)
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module._parameters.get("weight"), torch.nn.Parameter):
            continue  # a hook computes the weight at each call (pruning, `torch.nn.utils.weight_norm`)
        if type(module) is torch.nn.Linear:
            kind = scheme.head if module is head else scheme.linear
            yield name, LayerPlan(kind, base_settings, module.weight, module.bias, module.training)
        elif is_conv1d(module):
            weight: Any = module.weight
            yield name, LayerPlan(scheme.linear, base_settings, weight.t(), module.bias, module.training)
        elif settings.embeddings and _is_table(module, table):
            yield name, LayerPlan(scheme.embedding, base_settings, module.weight, None, module.training)


def is_conv1d(module: torch.nn.Module) -> bool:
    """Whether a module is the `Conv1D` of transformers, without importing transformers."""
    return f"{type(module).__module__}.{type(module).__qualname__}" == CONV1D


def _embedding(model: torch.nn.Module, method: str) -> Any:
    """Return the result of a model's method such as `get_input_embeddings`; None if the model has no such layer."""
    getter: Callable[[], Any] | None = getattr(model, method, None)
    try:
        return getter() if getter is not None else None
    except (NotImplementedError, AttributeError):
        return None


def _is_table(module: torch.nn.Module, table: object) -> bool:
    """Whether a module is the token embedding table, or another embedding with the same weight."""
    if type(module) is not torch.nn.Embedding or not isinstance(table, torch.nn.Embedding):
        return False
    return module.weight is table.weight and module.max_norm is None


def _with_group_size(name: str, plan: LayerPlan, settings: QuantizationSettings) -> LayerPlan:
    """Return a plan with its group size, if its class has groups.

    Raises `BadQuantization` for a requested size that does not divide the columns.
    """
    if not plan.kind.in_groups:
        return plan
    columns = plan.weight.shape[1]
    if settings.group_size and columns % settings.group_size:
        fits = [size for size in GROUP_SIZES if columns % size == 0]
        raise BadQuantization(
            f"group_size={settings.group_size} does not divide the {columns} columns of {name}",
            fix=(f"use group_size={fits[0]}, or " if fits else "") + f"skip the layer: --set skip={name}",
        )
    size = settings.group_size or next((size for size in GROUP_SIZES if columns % size == 0), 0)
    if not size:
        return replace(plan, kind=SCHEMES[settings.scheme].fallback)
    return replace(plan, settings=replace(plan.settings, group_size=size))


def with_layers_of(model: torch.nn.Module, original: torch.nn.Module, names: Iterable[str]) -> torch.nn.Module:
    """Return a copy of a quantized model in which the named layers are the float layers of the original model.

    The float layers are frozen, unless the quantized model trains its float weights.
    """
    result = copy_model(model)
    trains_float_weights = any(isinstance(module, RoundedLayer) for module in model.modules())
    float_model = copy_model(original) if trains_float_weights else copy_with_frozen_parameters(original)
    for name in names:
        parent_name, _, attribute = name.rpartition(".")
        setattr(result.get_submodule(parent_name), attribute, float_model.get_submodule(name))
    return result


def trains_other_parameters(model: torch.nn.Module) -> bool:
    """Whether a model in training mode has linear layers with frozen weights, and other parameters that are trained."""
    layers = (module for module in model.modules() if type(module) is torch.nn.Linear or is_conv1d(module))
    trained = any(parameter.requires_grad for parameter in model.parameters())
    return model.training and trained and any(map(is_frozen, layers))


def is_frozen(layer: torch.nn.Module) -> bool:
    """Whether no parameter of a layer is trained."""
    return not any(parameter.requires_grad for parameter in layer.parameters())


def copy_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a model that shares parameters and buffers with the model."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def copy_with_frozen_parameters(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a model that shares the memory of parameters and buffers; the parameters need no gradients."""
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        is_plain = type(parameter) is torch.nn.Parameter
        memo[id(parameter)] = torch.nn.Parameter(parameter.detach(), requires_grad=False) if is_plain else parameter
    return copy.deepcopy(model, memo)


def install_layer(model: torch.nn.Module, name: str, layer: QuantizedLayer) -> None:
    """Replace the named layer by a quantized layer, which gets the hooks of the replaced layer."""
    parent_name, _, attribute = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    replaced = getattr(parent, attribute)
    for hooks in HOOK_ATTRIBUTES:
        getattr(layer, hooks).update(getattr(replaced, hooks))
    setattr(layer, KIND_OF_BACKWARD_HOOKS, getattr(replaced, KIND_OF_BACKWARD_HOOKS))
    setattr(parent, attribute, layer)
