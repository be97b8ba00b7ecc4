"""Create example inputs for a model's forward, from a seed and with the requested sizes."""

from __future__ import annotations

import torch

from thunder_core.workflow.models.inputs.input_tensors import map_tensors
from thunder_core.workflow.models.inputs.random_inputs import Inputs, RandomInputs
from thunder_core.workflow.models.kinds.table import kind_of
from thunder_core.workflow.models.loading.loaded_model import LoadedModel

__all__ = ["Inputs", "example_inputs"]


def example_inputs(
    loaded: LoadedModel,
    *,
    batch: int,
    seq: int,
    seed: int,
    labels: bool = False,
    cache: int | None = None,
    height: int | None = None,
    width: int | None = None,
    padded: bool = True,
) -> Inputs:
    """Return keyword arguments for the model's forward, on its device and in its dtype; the seed determines the values.

    - Text: `input_ids` and `attention_mask`, [batch, seq] int64; all samples but the first end in padding.
      Without `padded`, texts have neither padding nor a mask, unless they continue a cache.
    - Images: `pixel_values`, [batch, channels, height, width] of the config's size.
    - Sound: `input_features` or `input_values`.

    Encoder-decoders also get `decoder_input_ids`. With `labels`, all models get labels for their task. With `cache`,
    the inputs continue a text of this many tokens: the dynamic cache of the model is random, and the mask covers the
    cache and the inputs, [batch, cache + seq]. With `height` or `width`, images have this size, and models that can
    interpolate their positions do so. Raises `SequenceTooLong`, `BadOption` and `NoExampleInputs`.
    """
    draw = RandomInputs.from_seed(
        loaded.config, batch=batch, seq=seq, seed=seed, height=height, width=width, padded=padded
    )
    inputs = kind_of(loaded.config).example_inputs(loaded, draw, labels, cache)
    return {name: map_tensors(value, lambda tensor: _to_device(tensor, loaded)) for name, value in inputs.items()}


def _to_device(tensor: torch.Tensor, loaded: LoadedModel) -> torch.Tensor:
    dtype = loaded.model.dtype if tensor.is_floating_point() else tensor.dtype
    device = loaded.model.device  # inputs have data even if the model is on the meta device
    if tensor.is_meta:  # a cache that a model on the meta device has filled; it is only traced
        return torch.zeros_like(tensor, device="cpu", dtype=dtype)
    return tensor.to(device="cpu" if device.type == "meta" else device, dtype=dtype)
