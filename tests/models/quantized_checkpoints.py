"""Small Llamas whose weights are quantized, each written as the library of its format writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
WEIGHTS = "model.safetensors"
BLOCK = 64

Quantizer = Callable[[Tensor], dict[str, Tensor]]


def float_model(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A Llama with seeded weights, as transformers saves it."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**CONFIG)).to(dtype).save_pretrained(folder)
    return folder


def quantized(folder: Path, settings: dict[str, Any], quantizer: Quantizer) -> Path:
    """A Llama whose linear layers, except for the LM head, have quantized weights."""
    float_model(folder)
    weights: dict[str, Tensor] = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        if name.endswith("_proj.weight"):
            made = quantizer(weight.float())
            weights |= {name.replace("weight", part): tensor.contiguous() for part, tensor in made.items()}
        else:
            weights[name] = weight
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}), encoding="utf-8")
    return folder


def fp8(folder: Path) -> Path:
    """8-bit floats with a scale for each block, as DeepSeek publishes its weights."""

    def blocks(weight: Tensor) -> dict[str, Tensor]:
        rows, columns = weight.shape
        tiles = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scale = tiles.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        codes = (tiles / scale[:, None, :, None]).reshape(rows, columns).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scale}

    return quantized(folder, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}, blocks)


def bitnet(folder: Path) -> Path:
    """Weights of -1, 0 and 1, four in a byte."""

    def ternary(weight: Tensor) -> dict[str, Tensor]:
        scale = 1 / weight.abs().mean()
        codes = ((weight * scale).round().clamp(-1, 1) + 1).to(torch.uint8)
        rows = codes.shape[0] // 4
        packed = sum(codes[part * rows : (part + 1) * rows] << 2 * part for part in range(4))
        return {"weight": packed, "weight_scale": scale.reshape(1).to(torch.bfloat16)}

    settings = {"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "offline"}
    return quantized(folder, {**settings, "modules_to_not_convert": ["lm_head"]}, ternary)


def bitsandbytes(folder: Path, **options: Any) -> Path:
    """What bitsandbytes makes, saved by transformers."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    source = float_model(folder / "float")
    config = BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.bfloat16, **options)
    auto: Any = AutoModelForCausalLM
    auto.from_pretrained(source, quantization_config=config, device_map="cpu").save_pretrained(folder)
    return folder


def compressed_tensors(folder: Path, scheme: str) -> Path:
    """What compressed-tensors makes of a model by a preset scheme, with ranges that its own observer takes."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationStatus,
        apply_quantization_config,
        preset_name_to_scheme,
    )

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(torch.bfloat16)
    groups = {"group_0": preset_name_to_scheme(scheme, ["Linear"])}
    config = QuantizationConfig(config_groups=groups, ignore=["lm_head"], quantization_status="initialized")
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            set_range(module)
            module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    return folder


def set_range(module: Any) -> None:
    """Give a layer the scale of each row, or group of columns, of its weight."""
    settings, weight = module.quantization_scheme.weights, module.weight.detach()
    largest = torch.finfo(torch.float8_e4m3fn).max if settings.type == "float" else 2 ** (settings.num_bits - 1) - 1
    scale = module.weight_scale
    groups = weight.reshape(weight.shape[0], scale.shape[-1], -1) if scale.dim() == 2 else weight.reshape(1, 1, -1)
    scale.data.copy_((groups.abs().amax(-1) / largest).reshape(scale.shape))


def torchao(folder: Path, config: Any) -> Path:
    """What torchao makes, saved by transformers."""
    from transformers import AutoModelForCausalLM, TorchAoConfig

    source = float_model(folder / "float")
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(source, quantization_config=TorchAoConfig(config), device_map="cpu")
    model.save_pretrained(folder)
    return folder


def float_parameters() -> list[torch.nn.Parameter]:
    """The parameters of the float model, without values."""
    with torch.device("meta"):
        return list(LlamaForCausalLM(LlamaConfig(**CONFIG)).parameters())
