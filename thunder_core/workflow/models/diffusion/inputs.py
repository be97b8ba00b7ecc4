"""Random inputs for models of diffusers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thunder_core.foundation.errors import NoExampleInputs
from thunder_core.workflow.models.inputs.random_inputs import RandomInputs

Tensors = dict[str, torch.Tensor]
TIMESTEPS = 1000  # the usual number of steps of training
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


def sample(draw: RandomInputs, settings: Mapping[str, Any]) -> torch.Tensor:
    """Return a sample or a latent: [batch, channels, height, width]."""
    height, width = sample_size(settings, draw.height, draw.width)
    return draw.normal(draw.batch, int(settings.get("in_channels", 3)), height, width)


def sample_size(settings: Mapping[str, Any], height: int | None, width: int | None) -> tuple[int, int]:
    """Return the requested height and width of samples, or those of the config."""
    size = settings.get("sample_size") or USUAL_SIZE
    own = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return (own[0] if height is None else height, own[1] if width is None else width)


def steps(draw: RandomInputs) -> torch.Tensor:
    """Return a time step for each sample."""
    return draw.integers(0, TIMESTEPS, draw.batch)


def of_unet(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy sample, its time steps and, for a model of classes, the classes."""
    found = {"sample": sample(draw, settings), "timestep": steps(draw)}
    if (classes := settings.get("num_class_embeds")) is not None:
        found["class_labels"] = draw.integers(0, int(classes), draw.batch)
    return found


def of_conditional_unet(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return the inputs of a UNet, and the embeddings of a text of `seq` tokens."""
    width = settings.get("encoder_hid_dim") or settings["cross_attention_dim"]
    width = max(width) if isinstance(width, list | tuple) else int(width)
    return {**of_unet(draw, settings), "encoder_hidden_states": draw.normal(draw.batch, draw.seq, width)}


def of_dit(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy latent, its time steps and its classes."""
    classes = draw.integers(0, int(settings["num_embeds_ada_norm"]), draw.batch)
    return {"hidden_states": sample(draw, settings), "timestep": steps(draw), "class_labels": classes}


def of_autoencoder(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return an image."""
    return {"sample": sample(draw, settings)}


def of_sd3(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy latent, its time steps, and the embeddings of a text: of its tokens, and of the whole."""
    return {"hidden_states": sample(draw, settings), **of_text(draw, settings), "timestep": steps(draw)}


def of_flux(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return a noisy latent as a sequence of squares, with the places of squares and tokens, and what `of_sd3` has.

    Time steps are fractions of the training's steps, as the pipeline passes them.
    """
    rows, columns = (size // FLUX_SQUARE for size in sample_size(settings, draw.height, draw.width))
    places = torch.cartesian_prod(torch.zeros(1), torch.arange(float(rows)), torch.arange(float(columns)))
    found = {
        "hidden_states": draw.normal(draw.batch, rows * columns, int(settings["in_channels"])),
        **of_text(draw, settings),
        "timestep": steps(draw) / TIMESTEPS,
        "img_ids": places,
        "txt_ids": torch.zeros(draw.seq, places.shape[1]),
    }
    return {**found, "guidance": torch.full((draw.batch,), 3.5)} if settings.get("guidance_embeds") else found


def of_text(draw: RandomInputs, settings: Mapping[str, Any]) -> Tensors:
    """Return the embeddings of a text of `seq` tokens: one for each token, and one for the text."""
    return {
        "encoder_hidden_states": draw.normal(draw.batch, draw.seq, int(settings["joint_attention_dim"])),
        "pooled_projections": draw.normal(draw.batch, int(settings["pooled_projection_dim"])),
    }


FLUX_SQUARE = 2  # height and width of the squares of a latent that are tokens of Flux
CONDITIONS = ("addition_embed_type", "class_embed_type", "encoder_hid_dim_type")  # settings that need further inputs
MAKERS: Mapping[str, Callable[[RandomInputs, Mapping[str, Any]], Tensors]] = {
    "UNet2DModel": of_unet,
    "UNet2DConditionModel": of_conditional_unet,
    "DiTTransformer2DModel": of_dit,
    "SD3Transformer2DModel": of_sd3,
    "FluxTransformer2DModel": of_flux,
    "AutoencoderKL": of_autoencoder,
    "VQModel": of_autoencoder,
}
