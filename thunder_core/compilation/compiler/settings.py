"""The settings of a compiler, which decide whether a compiled function becomes a part of the calling program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch

from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.transform import Transform


class CompilerSettings(Protocol):
    """The settings of a compiler."""

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms, in their order."""

    @property
    def options(self) -> CompileOptions:
        """The other options."""

    @property
    def lookasides(self) -> tuple[Lookaside, ...]:
        """The functions that replace other functions."""

    @property
    def device(self) -> torch.device | None:
        """The device to compile for; None for the devices of the arguments."""


def without_device(settings: Any) -> Any:
    """Return settings without their device, for a comparison that ignores the device."""
    return replace(settings, device=None) if getattr(settings, "device", None) is not None else settings
