"""Checkpoints of Llamas with random weights, written one tensor at a time, so that memory holds one tensor."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARD = 1 << 30  # bytes
DEVIATION = 0.02  # the standard deviation with which transformers initializes models
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Size:
    """The size of a Llama."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int


SIZES = {
    "0.1": Size(12, 768, 2048, 12, 16_000),
    "0.3": Size(22, 1024, 2816, 16, 32_000),
    "1.1": Size(22, 2048, 5632, 32, 32_000),
}


def config_of(size: Size, dtype: str = "float32") -> Any:
    """Return the config of a Llama of a size; each KV head serves four query heads."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads // 4,
        vocab_size=size.vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        dtype=dtype,
    )


def write_checkpoint(folder: Path, size: Size, dtype: str = "float32", shard: int = SHARD) -> int:
    """Write a checkpoint in shards of at most `shard` bytes, and return the bytes of its weights."""
    import torch
    from transformers import LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(size, dtype)
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    parts = list(shards_of(dict(model.named_parameters()), shard))
    generator = torch.Generator().manual_seed(0)
    weight_map = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors" if parts[1:] else "model.safetensors"
        write_shard(folder / name, part, generator)
        weight_map |= dict.fromkeys(part, name)
    total = sum(tensor.nbytes for part in parts for tensor in part.values())
    if parts[1:]:
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return total


def shards_of(tensors: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """Yield the tensors in the order of the model, as many in each shard as fit."""
    shard: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if shard and sum(held.nbytes for held in shard.values()) + tensor.nbytes > most:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard


def write_shard(path: Path, part: Mapping[str, Any], generator: Any) -> None:
    """Write a file of random weights; queries and keys are as large as trained ones, so that the model attends."""
    import torch

    from thunder_core.workflow.artifact.format.tensors import header_of, memory_of

    with path.open("wb") as file:
        file.write(header_of(part))
        for name, tensor in part.items():
            values = torch.ones(tensor.shape)
            if tensor.ndim > 1:
                attends = "q_proj" in name or "k_proj" in name
                values.normal_(0.0, tensor.shape[1] ** -0.5 if attends else DEVIATION, generator=generator)
            file.write(memory_of(values.to(tensor.dtype)))


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[2]), SIZES[sys.argv[1]])
