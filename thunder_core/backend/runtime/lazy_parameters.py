"""Modules with lazy parameters, whose first call runs in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.foundation.errors import CannotReplay


def is_uninitialized(subject: Callable[..., Any]) -> bool:
    """Whether a module has lazy parameters or buffers, which its first call, in eager PyTorch, materializes."""
    if not isinstance(subject, torch.nn.Module):
        return False
    tensors = (*torch.nn.Module.parameters(subject), *torch.nn.Module.buffers(subject))
    return any(map(torch.nn.parameter.is_lazy, tensors))


def initialization(
    subject: Callable[..., Any], compiler: ProgramCompiler, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """Return the eager call that initializes lazy parameters; raise `CannotReplay` if eager PyTorch differs."""
    if compiler.differs_from_eager:
        raise CannotReplay(
            "lazy parameters get their shapes in eager PyTorch, where lookasides and parallel recipes do not apply",
            fix="call the module once before you compile it",
        )
    return partial(subject, *args, **kwargs)
