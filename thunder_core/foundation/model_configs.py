"""The config of a model of the transformers library. Other modules may have no config."""

from __future__ import annotations

from typing import Any


def config_or_none(model: object) -> Any:
    """Return the attribute `config` of a model; None if reading it raises any error, such as in its `__getattr__`."""
    try:
        return getattr(model, "config", None)
    except Exception:
        return None


def model_type_of(model: object) -> Any:
    """Return the type in a model's config, which names its family; None for a model without one."""
    return getattr(config_or_none(model), "model_type", None)
