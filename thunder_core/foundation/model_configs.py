"""The config of a model of the transformers library, of which other modules may have none."""

from __future__ import annotations

from typing import Any


def config_or_none(model: object) -> Any:
    """Return the attribute `config` of a model, or None. Any error of a module's own `__getattr__` means None."""
    try:
        return getattr(model, "config", None)
    except Exception:
        return None


def model_type_of(model: object) -> Any:
    """Return the type in a model's config, which names its family; None for a model without one."""
    return getattr(config_or_none(model), "model_type", None)
