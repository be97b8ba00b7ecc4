"""Create example sound: waveforms and spectrograms.

Models take a spectrogram as `input_features`, which a feature extractor computes from a waveform, or a waveform or a
spectrogram as `input_values`, for which random numbers are drawn.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PretrainedConfig
from transformers.models.auto import feature_extraction_auto

from thunder_core.foundation.errors import NoExampleInputs
from thunder_core.workflow.models.inputs.modality import SAMPLING_RATE, spectrogram_frames
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs

CODECS = ("dac", "encodec", "mimi", "xcodec")  # families that compress sound
BINS = ("num_mel_bins", "input_feat_per_channel")  # the attributes of a config that may be the number of bins


def extracted_features(draw: RandomInputs) -> dict[str, torch.Tensor]:
    """Return the spectrogram that the model's feature extractor computes from one second of noise.

    Whisper gets random numbers of the shape [batch, bins, frames] instead. It needs two frames for each position of its
    encoder, and a config may have fewer positions than its feature extractor assumes.
    """
    bins, positions = getattr(draw.config, "num_mel_bins", None), getattr(draw.config, "max_source_positions", None)
    if draw.config.model_type == "whisper" and bins is not None and positions is not None:
        return {"input_features": draw.normal(draw.batch, bins, 2 * positions)}
    extractor = feature_extractor(draw.config)
    waveforms = [waveform.numpy() for waveform in draw.normal(draw.batch, extractor.sampling_rate)]
    features = extractor(waveforms, sampling_rate=extractor.sampling_rate, return_tensors="pt")
    return {name: value for name, value in features.items() if isinstance(value, torch.Tensor)}


def feature_extractor(config: PretrainedConfig) -> Any:
    """Return the feature extractor of a family, for the number of bins in the config.

    Raises `NoExampleInputs` for a family that has none.
    """
    names: dict[str, str] = vars(feature_extraction_auto)["FEATURE_EXTRACTOR_MAPPING_NAMES"]
    parts = (config, getattr(config, "audio_config", None), getattr(config, "encoder_config", None))
    bin_counts = (getattr(part, attribute, None) for part in parts for attribute in BINS)
    bins = next((count for count in bin_counts if count is not None), None)
    sizes = {} if bins is None else {"feature_size": bins, "num_mel_bins": bins}
    try:
        return getattr(transformers, names.get(config.model_type, ""))(**sizes)
    except (AttributeError, ImportError, TypeError) as error:
        raise NoExampleInputs(
            f"there are no example spectrograms for the family {config.model_type!r}",
            fix="use a model that takes text, images or a waveform, or Whisper",
        ) from error


def input_values(draw: RandomInputs) -> dict[str, torch.Tensor]:
    """Return one second of a waveform at 16 kHz, or a spectrogram of [batch, frames, bins].

    A model gets a spectrogram if its config has numbers of bins and of frames. The waveform of a codec has channels:
    [batch, channels, time].
    """
    frames = spectrogram_frames(draw.config)
    if frames is not None:
        return {"input_values": draw.normal(draw.batch, frames, draw.config.num_mel_bins)}
    if draw.config.model_type in CODECS:
        return {"input_values": draw.normal(draw.batch, getattr(draw.config, "audio_channels", 1), SAMPLING_RATE)}
    return {"input_values": draw.normal(draw.batch, SAMPLING_RATE)}
