"""Read the JSON files of a model's folder, without PyTorch."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thunder_core.foundation.errors import BadModelFolder

CONFIG_FILE = "config.json"
MAX_BYTES = 256 << 20  # of a file; the index of the largest models has some tens of millions of bytes
CODE_NAMES = ("attn_implementation", "experts_implementation")  # the keys that may name code on the Hub


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a model's folder; raise `BadModelFolder` for a missing or bad file."""
    try:
        require_plain(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadModelFolder(
            f"{path.parent} has no {path.name}",
            fix="name a folder in Hugging Face layout, as written by `model.save_pretrained(FOLDER)`",
        ) from None
    except OSError as error:
        raise BadModelFolder(
            f"{path} cannot be read: {error.strerror}", fix="check the permissions of the file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise BadModelFolder(f"{path} is not JSON: {error}", fix="download the file again, or correct it") from error
    if not isinstance(content, dict):
        raise BadModelFolder(f"{path} is not a JSON object", fix="download the file again, or correct it")
    return content


def require_plain(path: Path) -> None:
    """Raise `BadModelFolder` for a pipe or a device, which could block forever, and for a file that is too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadModelFolder(f"{path} is not a regular file", fix="download the file again")
    if status.st_size > MAX_BYTES:
        raise BadModelFolder(f"{path} has {status.st_size} bytes, too many for a config", fix="download the file again")


def code_of_the_hub(config: Mapping[str, Any]) -> str | None:
    """Return the first value in a config, at any depth, that makes transformers run code from the Hub, or None."""
    open_values: list[Any] = [config]
    while open_values:
        value = open_values.pop()
        if isinstance(value, Mapping):
            code_names = [item for key, item in value.items() if str(key).endswith(CODE_NAMES)]
            open_values += value.values()
            for item in code_names:
                texts = item.values() if isinstance(item, Mapping) else (item,)
                if hub_name := next((text for text in texts if isinstance(text, str) and "/" in text), None):
                    return hub_name
        elif isinstance(value, list):
            open_values += value
    return None
