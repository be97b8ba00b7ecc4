"""Compute a lower bound of the bytes of a model's weights from its files, before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thunder_core.foundation.memory_limits import limited_memory, machines_memory
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, read_json
from thunder_core.workflow.models.request.names import spelled_dtype
from thunder_core.workflow.models.request.request import ModelRequest

GPU_DEVICE_FILE = Path("/dev/nvidiactl")
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
NARROWEST = 2  # bytes of an element, if a recipe may choose the dtype


def memory_shortage(request: ModelRequest, folder: Path) -> tuple[int, int] | None:
    """Return None if random weights may fit into memory; otherwise, return the minimum bytes and the free bytes.

    Weights on disk are memory-mapped and need not fit. The memory plan checks the cases that this function cannot
    decide.
    """
    if not request.random_weights or is_for_gpu(request):
        return None
    needed = least_weight_bytes(read_json(folder / CONFIG_FILE), request.dtype)
    free = min(
        (free_bytes for free_bytes in (machines_memory(), limited_memory()) if free_bytes is not None), default=None
    )
    return None if needed is None or free is None or needed <= free else (needed, free)


def is_for_gpu(request: ModelRequest) -> bool:
    """Whether a request may be for a GPU, whose free memory only PyTorch knows."""
    return request.device != "cpu" and (request.device is not None or GPU_DEVICE_FILE.exists())


def least_weight_bytes(config: Mapping[str, Any], dtype: str | None) -> int | None:
    """Return a lower bound of the bytes of the weights that a config describes; None for a family not in `COUNTS`.

    Without a `dtype`, a recipe may choose a narrower dtype than the config.
    """
    count = COUNTS.get(str(config.get("model_type")))
    try:
        return None if count is None else count(config) * (ITEM_BYTES[spelled_dtype(dtype)] if dtype else NARROWEST)
    except (KeyError, TypeError, ValueError, ArithmeticError):  # a config that describes its sizes differently
        return None


def gated_decoder(config: Mapping[str, Any]) -> int:
    """Return the number of elements of the matrices of a decoder with gated layers, without its head."""
    width, inner, heads = (int(config[name]) for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    head_width = int(config.get("head_dim") or width // heads)
    query = width * heads * head_width
    key = width * int(config.get("num_key_value_heads") or heads) * head_width
    layer = 2 * query + 2 * key + 3 * width * inner
    return int(config["vocab_size"]) * width + int(config["num_hidden_layers"]) * layer


COUNTS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "llama": gated_decoder,
    "mistral": gated_decoder,
    "qwen2": gated_decoder,
    "qwen3": gated_decoder,
}
