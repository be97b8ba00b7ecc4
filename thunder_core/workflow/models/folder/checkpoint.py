"""Find the weight files of a folder, and check that each file is complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.workflow.models.folder.folder import read_json
from thunder_core.workflow.models.folder.foreign_formats import (
    DIFFUSERS_INDEX,
    DIFFUSERS_SINGLE,
    INDEX,
    PICKLED_FILES,
    SINGLE_FILE,
    has_weights,
    refuse_other_kinds,
)

LFS_POINTER = b"version https://git-lfs"
FETCH_AGAIN = "fetch the file again"
MAX_HEADER_SIZE = 100_000_000  # bytes, the limit of the safetensors library


def checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """Return the weight files of a folder; raise `BadModelFolder` if a file is missing, damaged or not safetensors."""
    refuse_other_kinds(folder)
    for single, index in ((SINGLE_FILE, INDEX), (DIFFUSERS_SINGLE, DIFFUSERS_INDEX)):
        if (folder / single).is_file():
            stored_names(folder / single)
            return (folder / single,)
        if (folder / index).is_file():
            return complete_shards(folder / index)
    pickled = next((name for name in PICKLED_FILES if (folder / name).is_file()), None)
    if pickled is not None:
        raise BadModelFolder(
            f"{folder} has its weights as a Python pickle ({pickled}), which can run code when it is read",
            fix="if you trust the file, convert it: `AutoModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)` "
            "writes safetensors (use the Auto class of the model's task)",
        )
    raise BadModelFolder(
        f"{folder} has no weights: neither {SINGLE_FILE} nor {INDEX}",
        fix="add the weights, or use --random-weights to build the model from its config alone",
    )


def require_checkpoint(folder: Path, *, config_is_enough: bool = False) -> None:
    """Raise `BadModelFolder` for damaged or missing weights; with `config_is_enough`, all weights may be missing."""
    if not config_is_enough or has_weights(folder):
        checkpoint_files(folder)
    else:
        refuse_other_kinds(folder)


def shards_of(index: Path) -> dict[str, set[str]]:
    """Return the names of the weights of each shard in an index file; raise `BadModelFolder` for an invalid index."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        raise BadModelFolder(f"{index} has no weight_map with the file of each weight", fix=FETCH_AGAIN)
    shards: dict[str, set[str]] = {}
    for weight, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise BadModelFolder(f"{index} names {shard!r}, which is not a file in the same folder", fix=FETCH_AGAIN)
        shards.setdefault(shard, set()).add(weight)
    return shards


def complete_shards(index: Path) -> tuple[Path, ...]:
    """Return the shards of an index file; raise `BadModelFolder` if a shard is missing, damaged or lacks a weight."""
    folder, shards = index.parent, shards_of(index)
    missing = [shard for shard in sorted(shards) if not (folder / shard).is_file()]
    if missing:
        raise BadModelFolder(
            f"{folder} lacks {len(missing)} of the {len(shards)} shards in {index.name}: {', '.join(missing[:3])}",
            fix="download the missing files",
        )
    for shard, weights in sorted(shards.items()):
        lacking = sorted(weights - stored_names(folder / shard))
        if lacking:
            raise BadModelFolder(
                f"{folder / shard} lacks {len(lacking)} weights that {index.name} lists for it, such as {lacking[0]}",
                fix="download the shards and the index again, all from the same version of the model",
            )
    return tuple(folder / shard for shard in sorted(shards))


def stored_names(path: Path) -> set[str]:
    """Return the names of the weights in a safetensors file; raise `BadModelFolder` if it is damaged or unreadable.

    Only the header is read; the size of the file must match the header.
    """
    try:
        with safe_open(path, framework="numpy") as opened:  # with another framework, safetensors would import it
            return set(opened.keys())
    except SafetensorError as error:
        raise BadModelFolder(f"{path} {diagnose(path) or f'is damaged: {error}'}", fix=FETCH_AGAIN) from error
    except OSError as error:
        raise BadModelFolder(f"{path} cannot be read: {error}", fix="check the permissions of the file") from error


def stored_bytes(folder: Path) -> int:
    """Return the total size of the weights of a folder, in bytes; raise `BadModelFolder` like `checkpoint_files`."""
    return sum(path.stat().st_size - 8 - _header_size(path) for path in checkpoint_files(folder))


def _header_size(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def diagnose(path: Path) -> str | None:
    """Describe why a safetensors file cannot be opened; return None if its header does not show the cause."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            return "is a Git LFS pointer, not the weights: `git lfs pull` downloads them"
        header_size = int.from_bytes(start[:8], "little")
        if size < 8:
            return f"is truncated: it has {size} bytes, less than a safetensors header"
        if header_size > size - 8:
            return f"is truncated or not a safetensors file: it has {size} bytes, its header should have {header_size}"
        if header_size > MAX_HEADER_SIZE:
            return f"is not a safetensors file: its header has {header_size} bytes, more than {MAX_HEADER_SIZE}"
        file.seek(8)
        needed = _bytes_needed(file.read(header_size))
    if needed is None:
        return "is not a safetensors file: its header is not JSON"
    expected = 8 + header_size + needed
    return None if expected <= size else f"is truncated: it has {size} bytes of {expected}"


def _bytes_needed(header: bytes) -> int | None:
    """Return the bytes of data that a safetensors header describes, or None for an invalid header."""
    try:
        entries = json.loads(header)
        ends = (entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__")
        needed: int = max(ends, default=0)
        return needed if 0 <= needed < 1 << 63 else None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
