"""The files of a model's folder that are JSON, read without PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thunder_core.errors import BadModelFolder

CONFIG_FILE = "config.json"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from the model's folder; raises `BadModelFolder`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadModelFolder(
            f"{path.parent} holds no {path.name}",
            fix="name a folder in Hugging Face layout, as `model.save_pretrained(FOLDER)` writes it",
        ) from None
    except OSError as error:
        raise BadModelFolder(f"{path} cannot be read: {error.strerror}", fix="look at its permissions") from error
    except ValueError as error:
        raise BadModelFolder(f"{path} is not JSON: {error}", fix="fetch the file again or mend it") from error
    if not isinstance(content, dict):
        raise BadModelFolder(f"{path} holds no JSON object", fix="fetch the file again or mend it")
    return content
