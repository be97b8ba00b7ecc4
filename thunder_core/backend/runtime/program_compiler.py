"""The interface of a compiler, as compiled functions call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program import Program


class ProgramCompiler(Protocol):
    """A compiler of calls; numbers and sizes that were `observed` to change become symbolic if possible."""

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """Return the program for a call."""

    @property
    def settings(self) -> Any:
        """The settings of the compiler: the transforms, the options and the device."""

    @property
    def differs_from_eager(self) -> bool:
        """Whether lookasides replace calls, or a transform is parallel: eager PyTorch computes something else."""

    @property
    def leaves_to_eager(self) -> bool:
        """Whether eager PyTorch makes the calls that no trace can represent."""
