"""Names of the dtypes that a model can be loaded in."""

from __future__ import annotations

import torch

from thunder_core.plugins import unknown_name

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

ALIASES: dict[str, str] = {
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
}


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of that name or alias, with or without `torch.`; raises `UnknownName`."""
    short = name.strip().lower().removeprefix("torch.")
    try:
        return DTYPES[ALIASES.get(short, short)]
    except KeyError:
        raise unknown_name("dtype", name, DTYPES) from None


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as options and manifests spell it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")
