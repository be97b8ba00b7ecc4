"""Architectures of timm: a small variant of each family, on images as small as the architecture accepts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch

from tests.zoo.shelves import Subject

SIDE = 64
BATCH = 2
CLASSES = 10
# The height and width of images, for architectures that need larger ones.
ARCHITECTURES: Mapping[str, int] = {
    "beit_base_patch16_224": SIDE,
    "botnet26t_256": 128,
    "cait_xxs24_224": SIDE,
    "coat_lite_tiny": SIDE,
    "convit_tiny": SIDE,
    "convmixer_768_32": SIDE,
    "convnext_atto": SIDE,
    "crossvit_tiny_240": 240,
    "cspdarknet53": SIDE,
    "davit_tiny": SIDE,
    "deit_tiny_distilled_patch16_224": SIDE,
    "densenet121": SIDE,
    "dla46_c": SIDE,
    "dpn48b": SIDE,
    "edgenext_xx_small": SIDE,
    "efficientformer_l1": 224,
    "efficientformerv2_s0": SIDE,
    "efficientnet_b0": SIDE,
    "efficientvit_b0": SIDE,
    "efficientvit_m0": SIDE,
    "eva02_tiny_patch14_224": 56,
    "fastvit_t8": SIDE,
    "focalnet_tiny_srf": SIDE,
    "gcvit_xxtiny": 224,
    "ghostnet_050": SIDE,
    "halonet26t": 256,
    "hgnetv2_b0": SIDE,
    "hiera_tiny_224": 224,
    "hrnet_w18_small": SIDE,
    "inception_next_atto": SIDE,
    "levit_128s": 224,
    "mambaout_femto": SIDE,
    "maxvit_rmlp_pico_rw_256": 256,
    "mixer_s32_224": 224,
    "mnasnet_small": SIDE,
    "mobilenetv3_small_050": SIDE,
    "mobilevit_xxs": SIDE,
    "mobilevitv2_050": SIDE,
    "mvitv2_tiny": SIDE,
    "nest_tiny": 224,
    "nf_resnet26": SIDE,
    "pit_ti_224": SIDE,
    "poolformer_s12": SIDE,
    "pvt_v2_b0": SIDE,
    "regnetx_002": SIDE,
    "repghostnet_050": SIDE,
    "repvgg_a0": SIDE,
    "repvit_m0_9": SIDE,
    "res2net50_14w_8s": SIDE,
    "resnest14d": SIDE,
    "resnet10t": SIDE,
    "resnetv2_18": SIDE,
    "rexnet_100": SIDE,
    "selecsls42": SIDE,
    "sequencer2d_s": SIDE,
    "shvit_s1": SIDE,
    "skresnet18": SIDE,
    "starnet_s050": SIDE,
    "swiftformer_xs": SIDE,
    "swin_tiny_patch4_window7_224": 224,
    "swinv2_tiny_window8_256": 256,
    "tiny_vit_5m_224": SIDE,
    "tnt_s_patch16_224": SIDE,
    "tresnet_m": SIDE,
    "twins_svt_small": SIDE,
    "vgg11_bn": SIDE,
    "visformer_tiny": 224,
    "vit_relpos_small_patch16_224": 224,
    "vit_tiny_patch16_224": SIDE,
    "vitamin_small_224": SIDE,
    "volo_d1_224": 224,
    "xcit_nano_12_p16_224": SIDE,
}


def types() -> list[str]:
    """The names of the architectures."""
    return list(ARCHITECTURES)


def subject(name: str) -> Subject:
    """The architecture with random weights, and random images."""
    import timm

    side = ARCHITECTURES.get(name, 224)
    torch.manual_seed(0)
    try:
        model = timm.create_model(name, num_classes=CLASSES, img_size=side)
    except TypeError:  # the class takes images of any size
        model = timm.create_model(name, num_classes=CLASSES)
    argument = next(iter(inspect.signature(model.forward).parameters))
    return Subject(model, lambda batch: {argument: torch.randn(batch, 3, side, side)}, (BATCH,))
