"""The inputs that a model of transformers reads (tokens, pixels, sound), from its config and its class."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from transformers import PretrainedConfig

from thunder_core.workflow.models.inputs.input_names import IDS

IMAGE_TOKENS = ("image_token_id", "image_token_index")
SIZES = ("image_size", "input_size")  # attributes of a config that may have the image size
IMAGE_SIZE = 224  # pixels, for models without a fixed size
WITH_IMAGE = ("vilt", "layoutlmv2", "layoutlmv3")  # families with one encoder for text and an image
OTHER_INPUTS = ("pixel_values", "input_values", "input_features", "past_values")  # inputs besides tokens
SAMPLING_RATE = 16_000  # samples a second


def main_inputs(config: PretrainedConfig, main: str, accepted: Collection[str] = ()) -> tuple[str, ...]:
    """Return the main inputs of a model, from its config and the main input `main` of its class.

    `accepted` are the parameters of the forward; empty if unknown. They are needed because some classes name a wrong
    main input: CLIP's classifier of images names tokens.
    """
    names = usual_inputs(config, main)
    if not any(name in accepted for name in (*names, *OTHER_INPUTS)):
        return names
    fitting = tuple(name for name in names if name in accepted)
    return fitting or next((name,) for name in OTHER_INPUTS if name in accepted)


def usual_inputs(config: PretrainedConfig, main: str) -> tuple[str, ...]:
    """Return the main inputs that models with a config usually have; `main` is the main input of the class."""
    if main == IDS and config.model_type in WITH_IMAGE:
        return (IDS, "pixel_values")
    if reads_image_tokens(config):
        return (IDS,)
    if getattr(config, "vision_config", None) is not None and getattr(config, "text_config", None) is not None:
        return (IDS, "pixel_values")
    return (main,)


def reads_image_tokens(config: PretrainedConfig) -> bool:
    """Whether a model replaces placeholder tokens in its text by images; a text without placeholders needs no image."""
    return any(getattr(config, name, None) is not None for name in IMAGE_TOKENS)


def frames_of(config: PretrainedConfig) -> int | None:
    """Return the number of frames in a sample of a video model, or None for other models."""
    frames: int | None = getattr(config, "num_frames", None)
    return frames if isinstance(frames, int) else None


def spectrogram_frames(config: PretrainedConfig) -> int | None:
    """Return the number of frames if a model reads a spectrogram as `input_values`; None if it reads a waveform."""
    bins, frames = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
    return None if bins is None or frames is None else int(frames)


def image_size(config: PretrainedConfig) -> tuple[int, int]:
    """Return the height and width of a config's images."""
    vision = getattr(config, "vision_config", None) or config
    if isinstance(sizes := (getattr(config, "pretrained_cfg", None) or {}).get("input_size"), Sequence):
        return int(sizes[-2]), int(sizes[-1])  # of timm: channels, height and width
    size: int | Sequence[int] = next(
        (image_size for name in SIZES if (image_size := getattr(vision, name, None)) is not None), IMAGE_SIZE
    )
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def requested_image_size(config: PretrainedConfig, height: int | None, width: int | None) -> tuple[int, int]:
    """Return the requested height and width of images, or the height and width of the config."""
    own = image_size(config)
    return (own[0] if height is None else height, own[1] if width is None else width)
