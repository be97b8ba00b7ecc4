"""Models of diffusers from tiny configs, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BLOCKS = {"layers_per_block": 1, "block_out_channels": (32, 64), "norm_num_groups": 8}


def unet(**settings: Any) -> Any:
    import diffusers

    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    return diffusers.UNet2DModel(
        **{"sample_size": 16, "down_block_types": down, "up_block_types": up, **BLOCKS, **settings}
    ).eval()


def conditional_unet(**settings: Any) -> Any:
    import diffusers

    return diffusers.UNet2DConditionModel(
        sample_size=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        **{**BLOCKS, **settings},
    ).eval()


def dit() -> Any:
    import diffusers

    sizes = {"sample_size": 8, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2}
    return diffusers.DiTTransformer2DModel(**sizes, in_channels=4, out_channels=8, num_embeds_ada_norm=10).eval()


def sd3() -> Any:
    import diffusers

    heads = {"attention_head_dim": 8, "num_attention_heads": 2, "caption_projection_dim": 16}
    text = {"joint_attention_dim": 12, "pooled_projection_dim": 10}
    return diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=2, pos_embed_max_size=8, **heads, **text
    ).eval()


def flux(**settings: Any) -> Any:
    import diffusers

    heads = {"attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": (4, 6, 6)}
    text = {"joint_attention_dim": 12, "pooled_projection_dim": 10}
    return diffusers.FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, **heads, **text, **settings
    ).eval()


def autoencoder() -> Any:
    import diffusers

    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    return diffusers.AutoencoderKL(
        down_block_types=down, up_block_types=up, latent_channels=4, sample_size=16, **BLOCKS
    ).eval()


def asymmetric_autoencoder() -> Any:
    import diffusers

    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    widths = {"down_block_out_channels": (32, 64), "up_block_out_channels": (32, 64), "norm_num_groups": 8}
    return diffusers.AsymmetricAutoencoderKL(down_block_types=down, up_block_types=up, sample_size=16, **widths).eval()


def tiny_autoencoder() -> Any:
    import diffusers

    widths = {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16)}
    return diffusers.AutoencoderTiny(**widths, num_encoder_blocks=(1, 2), num_decoder_blocks=(2, 1)).eval()


def deep_autoencoder() -> Any:
    import diffusers

    kinds, widths = ("ResBlock", "EfficientViTBlock"), (16, 16)
    return diffusers.AutoencoderDC(
        latent_channels=4,
        attention_head_dim=8,
        encoder_block_types=kinds,
        decoder_block_types=kinds,
        encoder_block_out_channels=widths,
        decoder_block_out_channels=widths,
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
    ).eval()


def vector_quantizer() -> Any:
    import diffusers

    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    return diffusers.VQModel(
        down_block_types=down, up_block_types=up, latent_channels=4, sample_size=16, num_vq_embeddings=32, **BLOCKS
    ).eval()


def auraflow() -> Any:
    import diffusers

    heads = {"attention_head_dim": 8, "num_attention_heads": 2, "caption_projection_dim": 16}
    layers = {"num_mmdit_layers": 1, "num_single_dit_layers": 1, "joint_attention_dim": 12}
    return diffusers.AuraFlowTransformer2DModel(sample_size=8, pos_embed_max_size=16, **heads, **layers).eval()


def sana() -> Any:
    import diffusers

    heads = {"attention_head_dim": 8, "num_attention_heads": 2}
    cross = {"num_cross_attention_heads": 2, "cross_attention_head_dim": 8, "cross_attention_dim": 16}
    return diffusers.SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_layers=2, caption_channels=12, sample_size=8, **heads, **cross
    ).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "unet": unet,
    "unet of classes": lambda: unet(num_class_embeds=5),
    "conditional unet": conditional_unet,
    "dit": dit,
    "sd3": sd3,
    "flux": flux,
    "guided flux": lambda: flux(guidance_embeds=True),
    "auraflow": auraflow,
    "sana": sana,
    "autoencoder": autoencoder,
    "asymmetric autoencoder": asymmetric_autoencoder,
    "tiny autoencoder": tiny_autoencoder,
    "deep autoencoder": deep_autoencoder,
    "vector quantizer": vector_quantizer,
}
