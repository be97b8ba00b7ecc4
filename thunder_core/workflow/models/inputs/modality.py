"""The inputs that a model reads (tokens, pixels, sound), from its config and its class, and their sizes in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from transformers import PretrainedConfig

from thunder_core.workflow.models.diffusion.config import is_diffusers
from thunder_core.workflow.models.diffusion.inputs import sample_size
from thunder_core.workflow.models.inputs.class_source import forward_parameters, main_input_name
from thunder_core.workflow.models.request.input_size import InputSize

IMAGE_TOKENS = ("image_token_id", "image_token_index")
SIZES = ("image_size", "input_size")  # the attributes of a config that may hold it
IMAGE_SIZE = 224  # pixels, where any size will do
WITH_IMAGE = ("vilt", "layoutlmv2", "layoutlmv3")  # families that read text and an image in one encoder
SAMPLE = "sample"  # of models of diffusers
SAMPLING_RATE = 16_000  # samples a second


def main_inputs(config: PretrainedConfig, main: str, accepted: Collection[str] = ()) -> tuple[str, ...]:
    """Return the main inputs of a model, whose class names `main` and whose forward accepts `accepted`, if known.

    A class may name tokens although its forward reads something else, as in CLIP's classifier of images.
    """
    if is_diffusers(config):
        return (SAMPLE,)
    names = usual_inputs(config, main)
    if not any(name in accepted for name in (*names, *WORDS)):
        return names
    fitting = tuple(name for name in names if name in accepted)
    return fitting or next((name,) for name in WORDS if name in accepted)


def usual_inputs(config: PretrainedConfig, main: str) -> tuple[str, ...]:
    """Return the main inputs that models with a config usually have; `main` is the main input of the class."""
    if main == "input_ids" and config.model_type in WITH_IMAGE:
        return ("input_ids", "pixel_values")
    if any(getattr(config, name, None) is not None for name in IMAGE_TOKENS):
        return ("input_ids",)
    if getattr(config, "vision_config", None) is not None and getattr(config, "text_config", None) is not None:
        return ("input_ids", "pixel_values")
    return (main,)


def frames_of(config: PretrainedConfig) -> int | None:
    """Return the number of frames in a sample of a video model, or None for other models."""
    frames: int | None = getattr(config, "num_frames", None)
    return frames if isinstance(frames, int) else None


def named_inputs(config: PretrainedConfig) -> tuple[str, ...]:
    """Return the main inputs of the class in a config; `input_ids` if transformers does not have the class."""
    name = (config.architectures or [""])[0]
    return main_inputs(config, main_input_name(name), forward_parameters(name))


def image_size(config: PretrainedConfig) -> tuple[int, int]:
    """Height and width of the images that a config names."""
    vision = getattr(config, "vision_config", None) or config
    if isinstance(sizes := (getattr(config, "pretrained_cfg", None) or {}).get("input_size"), Sequence):
        return int(sizes[-2]), int(sizes[-1])  # of timm: channels, height and width
    size: int | Sequence[int] = next(
        (found for name in SIZES if (found := getattr(vision, name, None)) is not None), IMAGE_SIZE
    )
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def asked_image_size(config: PretrainedConfig, height: int | None, width: int | None) -> tuple[int, int]:
    """Return the requested height and width of images, or the height and width that a config names."""
    own = image_size(config)
    return (own[0] if height is None else height, own[1] if width is None else width)


def sizes_in_words(config: PretrainedConfig, size: InputSize) -> str:
    """Describe the size of an input: `sequence 128`, `sequence 1 and cache 64`, or `224 x 224 pixels` for images."""
    return ", ".join(WORDS.get(name, _tokens)(config, size) for name in named_inputs(config))


def size_configuration(config: PretrainedConfig, size: InputSize) -> dict[str, str]:
    """The size of a measurement's inputs: `seq`, and `size` in words where a sequence of tokens is not all of them."""
    words = sizes_in_words(config, size)
    plain = words == f"sequence {size.seq}"
    return {"seq": str(size.seq), **({} if plain else {"size": words.removeprefix("sequence ")})}


def _tokens(config: PretrainedConfig, size: InputSize) -> str:
    return f"sequence {size.seq}{'' if size.cache is None else f' and cache {size.cache}'}"


def _pixels(config: PretrainedConfig, size: InputSize) -> str:
    height, width = asked_image_size(config, size.height, size.width)
    frames = frames_of(config)
    return f"{height} x {width} pixels{f' in {frames} frames' if frames else ''}"


def _sound(config: PretrainedConfig, size: InputSize) -> str:
    return "a second of sound"


def _series(config: PretrainedConfig, size: InputSize) -> str:
    return f"{config.context_length} past time steps"


def _spectrogram(config: PretrainedConfig, size: InputSize) -> str:
    return f"a spectrogram, sequence {size.seq} for the decoder"


def _sample(config: PretrainedConfig, size: InputSize) -> str:
    height, width = sample_size(config.settings, size.height, size.width)
    return f"samples of {height} x {width}, sequence {size.seq} for texts"


WORDS: dict[str, Callable[[PretrainedConfig, InputSize], str]] = {
    "pixel_values": _pixels,
    "input_values": _sound,
    "input_features": _spectrogram,
    "past_values": _series,
    SAMPLE: _sample,
}
