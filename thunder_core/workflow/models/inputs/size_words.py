"""The sizes of a model's inputs in words."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.models.diffusion.inputs import SAMPLE, sample_size
from thunder_core.workflow.models.inputs.class_source import forward_parameters, main_input_name
from thunder_core.workflow.models.inputs.input_names import DECODER_IDS
from thunder_core.workflow.models.inputs.modality import (
    frames_of,
    reads_image_tokens,
    requested_image_size,
    spectrogram_frames,
)
from thunder_core.workflow.models.kinds.table import kind_of
from thunder_core.workflow.models.request.input_size import InputSize

TOKENLESS = frozenset({"pixel_values", "input_values", "input_features", "past_values"})  # inputs without tokens


def sizes_in_words(config: PretrainedConfig, size: InputSize) -> str:
    """Describe the size of an input: `sequence 128`, `sequence 1 and cache 64`, or `224 x 224 pixels` for images."""
    return ", ".join(WORDS.get(name, _tokens)(config, size) for name in named_inputs(config))


def require_tokens(config: PretrainedConfig) -> None:
    """Raise `BadOption` for the option --seq if the model reads no tokens.

    Nothing is raised for a class whose parameters are unknown.
    """
    name = (config.architectures or [""])[0]
    accepted = forward_parameters(name)
    if accepted and TOKENLESS.issuperset(named_inputs(config)) and DECODER_IDS not in accepted:
        raise BadOption(f"--seq has no effect, because {name} reads no tokens", fix="leave out --seq")


def omitted_inputs(config: PretrainedConfig) -> str:
    """Return a note on omitted inputs: images, if the model also accepts text alone; otherwise an empty string."""
    has_images = getattr(config, "vision_config", None) is not None and reads_image_tokens(config)
    return ", without images" if has_images and "pixel_values" not in named_inputs(config) else ""


def named_inputs(config: PretrainedConfig) -> tuple[str, ...]:
    """Return the main inputs of the class that a config names; `input_ids` if transformers lacks the class."""
    name = (config.architectures or [""])[0]
    return kind_of(config).main_inputs(config, main_input_name(name), forward_parameters(name))


def size_configuration(config: PretrainedConfig, size: InputSize) -> dict[str, str]:
    """Return the size of a measurement's inputs: `seq` for tokens, and `size` in words for other inputs."""
    words = sizes_in_words(config, size)
    tokens = f"sequence {size.seq}"
    facts = {"seq": str(size.seq)} if tokens in words else {}
    return facts if words == tokens else {**facts, "size": words.removeprefix("sequence ")}


def _tokens(config: PretrainedConfig, size: InputSize) -> str:
    return f"sequence {size.seq}{'' if size.cache is None else f' and cache {size.cache}'}"


def _pixels(config: PretrainedConfig, size: InputSize) -> str:
    height, width = requested_image_size(config, size.height, size.width)
    frames = frames_of(config)
    return f"{height} x {width} pixels{f' in {frames} frames' if frames else ''}"


def _sound_in_words(config: PretrainedConfig, size: InputSize) -> str:
    frames = spectrogram_frames(config)
    return "a second of sound" if frames is None else f"a spectrogram of {frames} frames"


def _series(config: PretrainedConfig, size: InputSize) -> str:
    return f"{config.context_length} past time steps"


def _spectrogram(config: PretrainedConfig, size: InputSize) -> str:
    return f"a spectrogram, sequence {size.seq} for the decoder"


def _sample(config: PretrainedConfig, size: InputSize) -> str:
    height, width = sample_size(config.settings, size.height, size.width)
    return f"samples of {height} x {width}, sequence {size.seq} for texts"


WORDS: dict[str, Callable[[PretrainedConfig, InputSize], str]] = {
    "pixel_values": _pixels,
    "input_values": _sound_in_words,
    "input_features": _spectrogram,
    "past_values": _series,
    SAMPLE: _sample,
}
