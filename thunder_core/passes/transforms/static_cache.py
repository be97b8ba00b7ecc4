"""The static cache of transformers for `generate` of a compiled model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.transformers_versions import CACHE_NAMES
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.trace import Trace

# Options of `generate` that choose a cache, or a method of generation that transformers does not support with a static
# cache.
CACHE_OPTIONS = ("cache_implementation", *CACHE_NAMES, "custom_generate")
ASSISTED_GENERATION_OPTIONS = (
    "assistant_model",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "use_mtp",
    "is_assistant",
)
# On a GPU, transformers compiles a model that generates with a static cache, unless this is disabled.
STATIC_CACHE_OPTIONS = {"cache_implementation": "static", "disable_compile": True}
CONFIG_POSITION = 1  # the position of `generation_config` among the arguments of `generate`
ASSISTANT_POSITION = 6  # the position of `assistant_model`


@dataclass(frozen=True)
class GenerateWithStaticCache(Transform):
    """Let `generate` of a compiled model of transformers use a static cache, unless the call or config chooses another.

    New keys and values are then written in place, so that no step copies the earlier keys and values. The trace is
    unchanged.
    """

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace unchanged."""
        return trace

    def methods(self, model: torch.nn.Module) -> Mapping[str, Callable[..., Any]]:
        """Return a method `generate` with a static cache, if the model has such a method."""
        kind: Any = type(model)
        if not callable(getattr(kind, "generate", None)):
            return {}

        @functools.wraps(kind.generate)
        def generate(self: object, *args: Any, **kwargs: Any) -> Any:
            chosen = {} if chooses_cache(self, args, kwargs) else STATIC_CACHE_OPTIONS
            return kind.generate(self, *args, **{**chosen, **kwargs})

        return {"generate": generate}


def chooses_cache(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of `generate` or its config chooses a cache, needs another cache, or disables caching."""
    config = kwargs.get("generation_config", args[CONFIG_POSITION] if len(args) > CONFIG_POSITION else None)
    config = model.generation_config if config is None else config
    attributes = {
        name: getattr(config, name, None) for name in (*CACHE_OPTIONS, *ASSISTED_GENERATION_OPTIONS, "use_cache")
    }
    attributes |= kwargs
    if len(args) > ASSISTANT_POSITION:
        attributes["assistant_model"] = args[ASSISTANT_POSITION]
    if attributes["use_cache"] is False:
        return True
    return any(attributes[name] not in (None, False) for name in (*CACHE_OPTIONS, *ASSISTED_GENERATION_OPTIONS))
