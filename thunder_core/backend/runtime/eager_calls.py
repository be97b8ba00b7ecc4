"""Calls that run in eager PyTorch: the first call of a module with lazy parameters, and calls with too many values."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.backend.runtime.retraces import is_line_of, warn_of
from thunder_core.foundation.errors import CannotReplay, DataDependent, ThunderError


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


@dataclass(eq=False)
class EagerFallback:
    """The fallback of a subject to eager PyTorch, when too many values of tensors determine its programs.

    First, new programs call only the function around the line that reads the values in eager PyTorch; the `eager_lines`
    of the `observed` values have these lines. If that does not suffice, the fallback `is_on`: all calls that no program
    accepts run in eager PyTorch.
    """

    subject: Callable[..., Any]
    compiler: ProgramCompiler
    observed: ObservedValues
    reasons: MutableSequence[str]
    is_on: bool = False

    def leave_to_eager(self, too_many: DataDependent) -> None:
        """Leave the function around a line with too many values to eager PyTorch, or else all calls.

        Raises `too_many` if eager PyTorch would compute something else than the programs.
        """
        line = too_many.where
        if self.compiler.differs_from_eager or line is None:
            raise too_many
        if line in self.observed.eager_lines or is_line_of(self.subject, line):
            self.turn_on(too_many)
        else:
            self._note("the function around this line is called in eager PyTorch", too_many)
        self.observed.eager_lines |= {line}

    def turn_on(self, error: ThunderError) -> None:
        """Run all calls that no program accepts in eager PyTorch."""
        self.is_on = True
        self._note("calls that no program takes are made in eager PyTorch", error)

    def _note(self, what: str, error: ThunderError) -> None:
        """Warn once, and record as a reason, what runs in eager PyTorch because of a line."""
        self.reasons.append(f"{error.where}: {what}, since {error.what}")
        warn_of(self.subject, f"{what} ({error.where}), since {error.what}", error.fix)
