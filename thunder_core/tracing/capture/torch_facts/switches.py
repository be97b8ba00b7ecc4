"""Switches: calls that change the effect of autograd, autocast and inference mode on later operations."""

from __future__ import annotations

import torch

from thunder_core.tracing.capture.torch_facts.symbols import SET_GRAD
from thunder_core.tracing.ir.symbol import BoundSymbol

AUTOCAST = (
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
    torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting,
    torch.clear_autocast_cache,
)
INFERENCE_MODE = (torch.inference_mode, torch.inference_mode.__enter__, torch.inference_mode.__exit__)


def switches_autocast(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes autocast's state."""
    return bsym.symbol.target in AUTOCAST


def names_autocast_switch(text: str) -> bool:
    """Whether the text of a program names a function that changes autocast's state."""
    return any(function.__name__ in text for function in AUTOCAST)


def switches_inference_mode(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol creates, enters or leaves a context of inference mode."""
    return bsym.symbol.target in INFERENCE_MODE


def switches_mode(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes the grad mode, autocast's state or inference mode, which programs restore."""
    return bsym.symbol.target == SET_GRAD or switches_autocast(bsym) or switches_inference_mode(bsym)
