"""Programs for the databases' samples: compiled strictly, and again if a program reads values."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core import jit
from thunder_core.foundation.errors import DataDependent


class Compiled:
    """A compiled program; `guarded` is whether it is refused with `data_dependent="error"`."""

    def __init__(self, program: Any) -> None:
        self._program = jit(program, data_dependent="error")
        self._guarding = jit(program)
        self.guarded = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the call."""
        if self.guarded:
            return self._guarding(*args, **kwargs)
        state = torch.get_rng_state()
        try:
            return self._program(*args, **kwargs)
        except DataDependent:
            torch.set_rng_state(state)
            self.guarded = True
            return self._guarding(*args, **kwargs)
