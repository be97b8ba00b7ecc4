"""Random inputs for models of the transformers library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch

from thunder_core.foundation.errors import BadOption, NoExampleInputs
from thunder_core.foundation.transformers_versions import cache_argument
from thunder_core.workflow.models.inputs.input_names import DECODER_IDS, IDS, MASK
from thunder_core.workflow.models.inputs.key_value_cache import FIX_WITHOUT_CACHE, random_cache
from thunder_core.workflow.models.inputs.labels import labels_for
from thunder_core.workflow.models.inputs.modality import frames_of, main_inputs, requested_image_size
from thunder_core.workflow.models.inputs.random_inputs import Inputs, RandomInputs
from thunder_core.workflow.models.inputs.sequence import check_sequence_length
from thunder_core.workflow.models.inputs.sound import extracted_features, input_values
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.names import SENTENCE_TASK

Tensors = dict[str, torch.Tensor]

# The tasks whose models take decoder inputs; models for other tasks derive the decoder inputs from the inputs.
DECODER_TASKS = frozenset({"seq2seq-lm", "speech-seq2seq", "feature-extraction", "pretraining"})
CHOICES = 2
INTERPOLATE = "interpolate_pos_encoding"
PADDED_PART = 4  # `with_mask` hides one token of this many


def transformers_inputs(loaded: LoadedModel, draw: RandomInputs, labels: bool, cache: int | None) -> Inputs:
    """Return random inputs of a model of transformers; raise `SequenceTooLong`, `BadOption` and `NoExampleInputs`."""
    require_sizes(loaded, draw.batch, draw.seq, cache or 0)
    inputs: Inputs = {}
    accepted = parameters_of(loaded)
    for modality in modalities(loaded):
        built = BUILDERS[modality](draw)
        inputs |= {name: tensor for name, tensor in built.items() if name == modality or name in accepted}
    if draw.height is not None or draw.width is not None:
        inputs |= interpolation(loaded, inputs)
    if cache is not None:
        inputs = continue_cache(loaded, draw, inputs, cache)
    if takes_decoder_inputs(loaded):
        inputs[DECODER_IDS] = decoder_ids(draw, inputs)
    inputs |= task_inputs(loaded, draw, inputs)
    if loaded.task == "multiple-choice":
        inputs = {name: tensor.unsqueeze(1).repeat(1, CHOICES, 1) for name, tensor in inputs.items()}
    if labels:
        inputs |= pairs(inputs, text(draw)) if loaded.task == SENTENCE_TASK else labels_for(loaded.task, draw, inputs)
    return inputs


def parameters_of(loaded: LoadedModel) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward."""
    return inspect.signature(type(loaded.model).forward).parameters


def require_sizes(loaded: LoadedModel, batch: int, seq: int, cache: int = 0) -> None:
    """Raise `BadOption` or `SequenceTooLong` if a model does not accept inputs of these sizes after `cache` tokens."""
    for option, value in (("--batch", batch), ("--seq", seq)):
        if value < 1:
            raise BadOption(f"{option} is {value}", fix=f"use a number of 1 or more for {option}")
    if IDS in modalities(loaded):
        check_sequence_length(loaded.config, seq + cache)
    if loaded.task == "sequence-classification" and batch > 1 and loaded.config.pad_token_id is None:
        raise BadOption(
            f"{type(loaded.model).__name__} has no padding token, so it classifies one sequence at a time",
            fix="use --batch 1, or set pad_token_id in config.json",
        )


def modalities(loaded: LoadedModel) -> tuple[str, ...]:
    """Return the main inputs of a model; raise `NoExampleInputs` if there are no examples of an input."""
    accepted = parameters_of(loaded)
    names = main_inputs(loaded.config, loaded.model.main_input_name, accepted)
    required = (name for name, parameter in accepted.items() if parameter.default is inspect.Parameter.empty)
    names = (*names, *(name for name in required if name in BUILDERS and name not in names))
    for name in names:
        if name not in BUILDERS:
            raise NoExampleInputs(
                f"{type(loaded.model).__name__} takes {name!r} as its main input, but there is no example of it",
                fix=f"use a model that takes one of: {', '.join(BUILDERS)}",
            )
    return names


def takes_decoder_inputs(loaded: LoadedModel) -> bool:
    """Whether a model is called with `decoder_input_ids` for its task."""
    if not loaded.model.config.is_encoder_decoder or loaded.task not in DECODER_TASKS:
        return False
    return DECODER_IDS in parameters_of(loaded)


def task_inputs(loaded: LoadedModel, draw: RandomInputs, inputs: Inputs) -> Tensors:
    """Return the additional inputs of some tasks: word boxes for documents, and masks for masked image modeling."""
    tensors: Tensors = {}
    if IDS in inputs and "bbox" in parameters_of(loaded):
        if (largest := getattr(loaded.config, "max_2d_position_embeddings", None)) is None:
            raise NoExampleInputs(
                f"there are no example boxes of words for the family {loaded.config.model_type!r}",
                fix="use a model whose config names `max_2d_position_embeddings`",
            )
        corners = draw.integers(0, int(largest), draw.batch, 2, draw.seq, 2)
        tensors["bbox"] = corners.sort(dim=1).values.transpose(1, 2).flatten(2)
    if loaded.task == "masked-image-modeling":
        height, width = inputs["pixel_values"].shape[-2:]
        patches = (height // loaded.config.patch_size) * (width // loaded.config.patch_size)
        tensors["bool_masked_pos"] = draw.integers(0, 2, draw.batch, patches).bool()
    return tensors


def text(draw: RandomInputs) -> Tensors:
    """Return tokens and their mask: the first sample has full length, and the other samples may end in padding.

    Without `draw.padded`, all samples have full length, and there is no mask.
    """
    ids = draw.tokens(draw.seq)
    mask = torch.ones_like(ids)
    for row in range(1, draw.batch if draw.padded else 1):
        used = draw.number(max(1, draw.seq // 2), max(2, draw.seq))
        ids[row, used:] = draw.padding
        mask[row, used:] = 0
    if draw.config.is_encoder_decoder and draw.end is not None:
        ids[torch.arange(draw.batch), mask.sum(1) - 1] = draw.end
    return {IDS: ids, MASK: mask} if draw.padded else {IDS: ids}


def with_mask(loaded: LoadedModel, inputs: Inputs) -> Inputs | None:
    """Return inputs with a mask that hides the end of each text, in the order of a tokenizer: tokens, then their mask.

    None if the model takes no mask, or if the inputs have no text or already have a mask.
    """
    ids = inputs.get(IDS)
    if not isinstance(ids, torch.Tensor) or MASK in inputs or MASK not in parameters_of(loaded):
        return None
    mask = torch.ones_like(ids)
    mask[..., ids.shape[-1] - ids.shape[-1] // PADDED_PART :] = 0
    return {IDS: ids, MASK: mask, **inputs}


def pairs(anchors: Tensors, positives: Tensors) -> Tensors:
    """Return pairs of an anchor text and a positive text, [batch, 2, seq]."""
    return {name: torch.stack([anchors[name], positives[name]], dim=1) for name in anchors}


def continue_cache(loaded: LoadedModel, draw: RandomInputs, inputs: Inputs, length: int) -> Inputs:
    """Return inputs that continue a cache of `length` tokens; all samples but the first may start with padding."""
    if IDS not in inputs:
        raise BadOption(f"{type(loaded.model).__name__} reads no tokens, so it has no KV cache", fix=FIX_WITHOUT_CACHE)
    ids = draw.tokens(draw.seq)
    mask = torch.ones(draw.batch, length + draw.seq, dtype=torch.int64)
    for row in range(1, draw.batch):
        mask[row, : draw.number(0, length // 2 + 1)] = 0
    cache = {cache_argument(loaded.model): random_cache(loaded, draw, length)}
    return {**inputs, IDS: ids, MASK: mask, **cache}


def interpolation(loaded: LoadedModel, inputs: Inputs) -> Inputs:
    """Return the argument that makes a model interpolate its positions for other image sizes, if it has one.

    Raises `BadOption` for a model that reads no images.
    """
    if "pixel_values" not in inputs:
        raise BadOption(
            f"{type(loaded.model).__name__} reads no images, so they have no height and width",
            fix="leave out --height and --width, also in --dynamic",
        )
    return {INTERPOLATE: True} if INTERPOLATE in parameters_of(loaded) else {}


def image(draw: RandomInputs) -> Tensors:
    """Return normalized pixels of the requested size, otherwise of the config's size, otherwise of size 224.

    Models that read videos get the config's number of frames: [batch, frames, channels, height, width].
    """
    vision = getattr(draw.config, "vision_config", None) or draw.config
    channels, frames = getattr(vision, "num_channels", 3), frames_of(draw.config)
    size = requested_image_size(draw.config, draw.height, draw.width)
    return {"pixel_values": draw.normal(draw.batch, *((frames,) if frames else ()), channels, *size)}


def series(draw: RandomInputs) -> Tensors:
    """Return the past of a time series with its features and, for a model with lags, the future for training."""
    config = draw.config
    if (lags := getattr(config, "lags_sequence", None)) is not None:
        return _lagged_series(draw, config.context_length + max(lags), config.prediction_length)
    if (channels := getattr(config, "num_input_channels", None)) is None:
        raise NoExampleInputs(
            f"there are no example time series for the family {config.model_type!r}",
            fix="use a model whose config names `lags_sequence` or `num_input_channels`",
        )
    return {"past_values": draw.normal(draw.batch, config.context_length, channels)}


def _lagged_series(draw: RandomInputs, past: int, future: int) -> Tensors:
    """Return values of shape [batch, time], or [batch, time, variables], and features of [batch, time, number]."""
    config = draw.config
    values = (config.input_size,) if config.input_size > 1 else ()
    inputs = {
        "past_values": draw.normal(draw.batch, past, *values),
        "past_time_features": draw.normal(draw.batch, past, config.num_time_features),
        "past_observed_mask": torch.ones(draw.batch, past, *values),
        "future_values": draw.normal(draw.batch, future, *values),
        "future_time_features": draw.normal(draw.batch, future, config.num_time_features),
    }
    if config.num_static_categorical_features:
        categories = [draw.integers(0, size, draw.batch) for size in config.cardinality]
        inputs["static_categorical_features"] = torch.stack(categories, dim=1)
    if config.num_static_real_features:
        inputs["static_real_features"] = draw.normal(draw.batch, config.num_static_real_features)
    return inputs


BUILDERS: dict[str, Callable[[RandomInputs], Tensors]] = {
    IDS: text,
    "pixel_values": image,
    "input_features": extracted_features,
    "input_values": input_values,
    "past_values": series,
}


def decoder_ids(draw: RandomInputs, inputs: Tensors) -> torch.Tensor:
    """Return tokens for the decoder, with its start token first: `seq` tokens, or half as many with a text encoder."""
    ids = draw.tokens(max(1, draw.seq // 2) if IDS in inputs else draw.seq)
    ids[:, 0] = draw.start
    return ids
