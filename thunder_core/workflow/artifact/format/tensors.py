"""Safetensors files: tensors are written one at a time, and bytes are verified before they become tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from thunder_core.foundation.storage.digest import digest_for
from thunder_core.foundation.storage.manifest import FileFacts
from thunder_core.workflow.artifact.format.read import Artifact, damage_error, inside

# https://huggingface.co/docs/safetensors: eight bytes for the length of the header, the header in JSON, and the
# tensors in order.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH_BYTES = 8  # bytes of the number that is the header's length
MAX_DIMENSIONS = 64  # PyTorch's limit for a tensor
METADATA = "__metadata__"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors, if there are any, as contiguous tensors; copy at most one tensor at a time."""
    if not tensors:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so that each tensor is aligned
    with path.open("wb") as file:
        file.write(header_of(dict(ordered)))
        for _, tensor in ordered:
            file.write(memory_of(tensor.detach().cpu().contiguous()))


def header_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return the beginning of a file with these tensors: the length of the header, and the header."""
    entries, start = {}, 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def read_tensors(artifact: Artifact, name: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a file of an artifact, each into its own memory; raise `ArtifactDamaged`.

    The file is read once, and the digest is computed from the bytes of the returned tensors. A later change of the
    file cannot change the tensors.
    """
    facts = artifact.manifest.files.get(name)
    if facts is None:
        raise damage_error(artifact.folder, f"{name} is not in the manifest")
    try:
        with inside(artifact.folder, name).open("rb") as file:
            tensors = _read(file, facts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise damage_error(artifact.folder, f"{name} cannot be read as tensors: {error}") from error
    if tensors is None:
        raise damage_error(artifact.folder, f"{name} does not match its digest in the manifest")
    return tensors


def _read(file: BinaryIO, facts: FileFacts) -> dict[str, torch.Tensor] | None:
    digest = digest_for(facts.size)
    prefix = file.read(LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if length > facts.size - LENGTH_BYTES:
        raise ValueError("its header is longer than the file")
    header = file.read(length)
    digest.update(prefix + header)
    entries: dict[str, Any] = json.loads(header)
    entries.pop(METADATA, None)
    tensors: dict[str, torch.Tensor] = {}
    offset = 0
    for name, entry in sorted(entries.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        start, end = entry["data_offsets"]
        dtype, shape = DTYPES[entry["dtype"]], shape_of(entry["shape"])
        if (
            start != offset
            or end - start != math.prod(shape) * dtype.itemsize
            or end > facts.size - LENGTH_BYTES - length
        ):
            raise ValueError(f"{name} has a wrong offset")
        tensors[name] = torch.empty(shape, dtype=dtype)
        memory = memory_of(tensors[name])
        if file.readinto(memory) != end - start:  # type: ignore[attr-defined]
            raise ValueError("it is truncated")
        digest.update(memory)
        offset = end
    rest = file.read(1)
    return tensors if not rest and digest.hexdigest() == facts.digest else None


def shape_of(stored: Any) -> list[int]:
    """Return a shape as a list of valid sizes; raise ValueError for anything else."""
    if len(stored) > MAX_DIMENSIONS or not all(type(size) is int and 0 <= size < 1 << 63 for size in stored):
        raise ValueError("a shape is not a list of sizes")
    return [*stored]


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, sharing its memory."""
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)
