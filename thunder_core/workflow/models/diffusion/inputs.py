"""Random inputs for diffusers models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from thunder_core.foundation.errors import NoExampleInputs, NoLoss
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs

Tensors = dict[str, torch.Tensor]
TIMESTEPS = 1000  # the usual number of diffusion steps in training
SAMPLE = "sample"  # the main input
USUAL_SIZE = 32  # height and width of a sample, if the config has none


def diffusers_inputs(draw: RandomInputs) -> Tensors:
    """Return random inputs of a model; raise `NoExampleInputs` for other classes and additional conditions."""
    name, settings = (draw.config.architectures or [""])[0], draw.config.settings
    if name not in MAKERS or any(settings.get(condition) for condition in CONDITIONS):
        condition = next((each for each in CONDITIONS if settings.get(each)), "")
        raise NoExampleInputs(
            f"there are no example inputs for {name}{f' with {condition}' if condition else ''}",
            fix=f"use a model of one of the classes {', '.join(MAKERS)} without {', '.join(CONDITIONS)}; in Python, "
            "`thunder.compile(model)` takes any model",
        )
    return MAKERS[name](draw, settings)


def require_denoiser(config: PretrainedConfig) -> None:
    """Raise `NoLoss` for a model that is not trained by the error of its prediction alone."""
    name = (config.architectures or [""])[0]
    if name in AUTOENCODERS:
        raise NoLoss(
            f"{name} is an autoencoder, which is trained with several losses: of its samples, of its latents, and of "
            "further models",
            fix="compile your own training step: thunder_core.jit(function)",
        )


def target_of(config: PretrainedConfig, draw: RandomInputs, inputs: Tensors) -> Tensors:
    """Return a random target of a denoiser, of the shape of its prediction without variances."""
    shape = list((inputs["sample"] if "sample" in inputs else inputs["hidden_states"]).shape)
    channels = config.settings.get("out_channels")
    is_image = len(shape) > len(SEQUENCE)
    if channels is not None and not (is_image and channels == 2 * shape[1]):
        shape[1 if is_image else 2] = int(channels)
    return {"target": draw.normal(*shape)}


def sample(draw: RandomInputs, settings: Mapping[str, Any]) -> torch.Tensor:
    """Return a sample or a latent: [batch, channels, height, width]."""
    height, width = sample_size(settings, draw.height, draw.width)
    return draw.normal(draw.batch, int(settings.get("in_channels", 3)), height, width)


def sample_size(settings: Mapping[str, Any], height: int | None, width: int | None) -> tuple[int, int]:
    """Return the requested height and width of samples, or the height and width of the config."""
    size = settings.get("sample_size") or USUAL_SIZE
    own = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return (own[0] if height is None else height, own[1] if width is None else width)


def timesteps(draw: RandomInputs) -> torch.Tensor:
    """Return a time step for each sample."""
    return draw.integers(0, TIMESTEPS, draw.batch)


def unet_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy sample, its time steps and, for a class-conditional model, the classes."""
    inputs = {"sample": sample(draw, settings), "timestep": timesteps(draw)}
    if (classes := settings.get("num_class_embeds")) is not None:
        inputs["class_labels"] = draw.integers(0, int(classes), draw.batch)
    return inputs


def conditional_unet_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return the inputs of a UNet, and the embeddings of a text of `seq` tokens."""
    width = settings.get("encoder_hid_dim") or settings["cross_attention_dim"]
    width = max(width) if isinstance(width, list | tuple) else int(width)
    return {**unet_inputs(draw, settings), "encoder_hidden_states": draw.normal(draw.batch, draw.seq, width)}


def dit_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy latent, its time steps and its classes."""
    classes = draw.integers(0, int(settings["num_embeds_ada_norm"]), draw.batch)
    return {"hidden_states": sample(draw, settings), "timestep": timesteps(draw), "class_labels": classes}


def autoencoder_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return an image."""
    return {"sample": sample(draw, settings)}


def auraflow_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy latent, its time steps as fractions, and the embeddings of a text's tokens."""
    text = draw.normal(draw.batch, draw.seq, int(settings["joint_attention_dim"]))
    return {
        "hidden_states": sample(draw, settings),
        "encoder_hidden_states": text,
        "timestep": timesteps(draw) / TIMESTEPS,
    }


def sana_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy latent, its time steps, and the embeddings of a text's tokens."""
    inputs = {
        "hidden_states": sample(draw, settings),
        "encoder_hidden_states": draw.normal(draw.batch, draw.seq, int(settings["caption_channels"])),
        "timestep": timesteps(draw),
    }
    return {**inputs, **guidance_inputs(draw, settings)}


def sd3_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy latent, its time steps, and the embeddings of a text: one for each token, and one for the text."""
    return {"hidden_states": sample(draw, settings), **text_inputs(draw, settings), "timestep": timesteps(draw)}


def flux_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return the inputs of SD3 with the latent as a sequence of squares, and the positions of squares and tokens.

    Time steps are fractions of the number of steps in training, as the pipeline passes them.
    """
    rows, columns = (size // FLUX_SQUARE for size in sample_size(settings, draw.height, draw.width))
    positions = torch.cartesian_prod(torch.zeros(1), torch.arange(float(rows)), torch.arange(float(columns)))
    inputs = {
        "hidden_states": draw.normal(draw.batch, rows * columns, int(settings["in_channels"])),
        **text_inputs(draw, settings),
        "timestep": timesteps(draw) / TIMESTEPS,
        "img_ids": positions,
        "txt_ids": torch.zeros(draw.seq, positions.shape[1]),
    }
    return {**inputs, **guidance_inputs(draw, settings)}


def guidance_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return the guidance strength of each sample, if the model reads it."""
    return {"guidance": torch.full((draw.batch,), 3.5)} if settings.get("guidance_embeds") else {}


def text_inputs(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return the embeddings of a text of `seq` tokens: one for each token, and one for the text."""
    return {
        "encoder_hidden_states": draw.normal(draw.batch, draw.seq, int(settings["joint_attention_dim"])),
        "pooled_projections": draw.normal(draw.batch, int(settings["pooled_projection_dim"])),
    }


SEQUENCE = ("batch", "tokens", "channels")  # the dimensions of a latent that is a sequence, as in Flux
AUTOENCODERS = ("AutoencoderKL", "AsymmetricAutoencoderKL", "AutoencoderTiny", "AutoencoderDC", "VQModel")
FLUX_SQUARE = 2  # height and width of the squares of a latent that are tokens of Flux
CONDITIONS = ("addition_embed_type", "class_embed_type", "encoder_hid_dim_type")  # settings that need further inputs
MAKERS: Mapping[str, Callable[[RandomInputs, Mapping[str, Any]], Tensors]] = {
    "UNet2DModel": unet_inputs,
    "UNet2DConditionModel": conditional_unet_inputs,
    "DiTTransformer2DModel": dit_inputs,
    "SD3Transformer2DModel": sd3_inputs,
    "FluxTransformer2DModel": flux_inputs,
    "AuraFlowTransformer2DModel": auraflow_inputs,
    "SanaTransformer2DModel": sana_inputs,
    **dict.fromkeys(AUTOENCODERS, autoencoder_inputs),
}
