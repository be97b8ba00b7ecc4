"""Check whether a model with the number of layers in its config fits into memory, before any layer is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from thunder_core.foundation.errors import BadModelFolder, OutOfMemory
from thunder_core.workflow.models.memory.free_memory import free_memory

DEPTH = re.compile(r"(.*_)?(n_layer|layers|depths?|num_blocks)", re.IGNORECASE)
# A lower bound for the memory of a layer's Python objects: about half of the measured 50 KiB for modules and 430 KiB
# for the lines of traces (a Llama of width 8 with 3 and with 40 layers, in Python 3.11).
LAYER_BYTES = 256 << 10


def require_depth(file: Path, content: Mapping[str, object]) -> None:
    """Raise `OutOfMemory` if the layers of a config need more than the free memory, even without weights.
    Raises `BadModelFolder` for a negative number of layers.
    """
    layer_counts = list(depths(content))
    if any(number < 0 for number in layer_counts):
        raise BadModelFolder(
            f"{file} describes {min(layer_counts)} layers", fix="correct the number of layers in that file"
        )
    deepest = max(layer_counts, default=0)
    free = free_memory(torch.device("cpu"))
    if free is None or deepest * LAYER_BYTES <= free:
        return
    raise OutOfMemory(
        f"{file} describes {deepest:,} layers, whose modules and traces alone need about "
        f"{deepest * LAYER_BYTES / 2**30:,.0f} GiB, but only {free / 2**30:.0f} GiB are free; nothing was built",
        fix="correct the number of layers in this file, or use a machine with more memory",
    )


def depths(content: Mapping[str, object]) -> Iterator[int]:
    """Yield every number of layers in a config and its nested configs."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from depths(value)
        elif DEPTH.fullmatch(name):
            numbers = [number for number in (value if isinstance(value, list) else [value]) if isinstance(number, int)]
            yield min(numbers) if any(number < 0 for number in numbers) else sum(numbers)
