"""The static cache of transformers as what a compiled model generates with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.transformers_versions import CACHE_NAMES
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.ir.trace import Trace

# Options of `generate` that choose a cache, or a way to generate that transformers does not have for the static one.
OTHER_CACHES = ("cache_implementation", *CACHE_NAMES, "custom_generate")
ASSISTED = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "is_assistant")
# On a GPU transformers compiles a model that generates with a static cache, unless it is told not to.
STATIC = {"cache_implementation": "static", "disable_compile": True}
CONFIG_PLACE = 1  # of `generation_config` among the positional arguments of `generate`
ASSISTANT_PLACE = 6  # of `assistant_model`


@dataclass(frozen=True)
class GenerateWithStaticCache(Transform):
    """Let `generate` of a compiled model of transformers use a static cache, unless the call or its config says more.

    New keys and values are then written in their places, and no token copies those before it. The trace is unchanged.
    """

    def __call__(self, trace: Trace) -> Trace:
        """The trace as it is."""
        return trace

    def methods(self, model: torch.nn.Module) -> Mapping[str, Callable[..., Any]]:
        """`generate`, for a model that has it."""
        kind: Any = type(model)
        if not callable(getattr(kind, "generate", None)):
            return {}

        @functools.wraps(kind.generate)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = {} if names_cache(self, args, kwargs) else STATIC
            return kind.generate(self, *args, **{**chosen, **kwargs})

        return {"generate": generate}


def names_cache(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of `generate`, or the config that it goes by, says what cache there is, or needs another one."""
    config = kwargs.get("generation_config", args[CONFIG_PLACE] if len(args) > CONFIG_PLACE else None)
    config = model.generation_config if config is None else config
    stated = {name: getattr(config, name, None) for name in (*OTHER_CACHES, *ASSISTED, "use_cache")}
    stated |= kwargs
    if len(args) > ASSISTANT_PLACE:
        stated["assistant_model"] = args[ASSISTANT_PLACE]
    if stated["use_cache"] is False:
        return True
    return any(stated[name] not in (None, False) for name in (*OTHER_CACHES, *ASSISTED))
