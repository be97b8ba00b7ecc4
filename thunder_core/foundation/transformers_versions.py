"""Names that differ between releases of transformers. The code checks whether a name exists, never the release."""

from __future__ import annotations

import inspect
from typing import Any

# The parameter for the KV cache has the name `cache` from transformers 5.24 on. Before, its name was `past_key_values`,
# or `cache_params` for models with recurrent states. Later releases accept the earlier names with a warning.
CACHE = "cache"
EARLIER_CACHE, EARLIER_STATES = "past_key_values", "cache_params"
CACHE_NAMES = (CACHE, EARLIER_CACHE, EARLIER_STATES)


def cache_argument(model: Any) -> str:
    """Return the name of the KV cache among the arguments of a model's `forward`."""
    parameters = inspect.signature(type(model).forward).parameters
    return EARLIER_CACHE if EARLIER_CACHE in parameters or CACHE not in parameters else CACHE


def returned_cache(output: object) -> Any:
    """Return the KV cache in a model's output, or None for an output without a KV cache."""
    name = next((name for name in (CACHE, EARLIER_CACHE) if hasattr(output, name)), None)
    return None if name is None else getattr(output, name)
