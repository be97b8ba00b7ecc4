"""Report errors of a compiled call that the model also raises in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from thunder_core.backend.runtime.tracers import LIBRARIES
from thunder_core.foundation.errors import ModelRaises, SourceLine, ThunderError
from thunder_core.foundation.errors.tree import message_line
from thunder_core.tracing.extension.authorship import frames_of
from thunder_core.workflow.models.memory.free_memory import is_out_of_memory


def refuse_models_error(name: str, eager: Callable[[], object], error: Exception) -> None:
    """Raise `ModelRaises` if the eager call raises the same error as the compiled call; otherwise, do nothing."""
    if isinstance(error, ThunderError) or is_out_of_memory(error) or is_device_error(error):
        return
    try:
        eager()
    except Exception as eager_error:
        if type(eager_error) is type(error) and str(eager_error) == str(error):
            raise ModelRaises(
                f"{name} raises {type(eager_error).__name__} in eager PyTorch too: {message_line(eager_error)}",
                fix="change the sizes, the inputs, the task or --train, as the message says",
                where=_models_line(eager_error),
            ) from eager_error


def is_device_error(error: Exception) -> bool:
    """Whether an error is from a GPU, after which all calls of the process on this GPU fail."""
    return isinstance(error, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(error)


def _models_line(error: Exception) -> SourceLine | None:
    """Return the innermost source line in the traceback that belongs neither to PyTorch nor to Thunder."""
    lines = [
        SourceLine(frame.f_code.co_filename, number, frame.f_code.co_qualname) for frame, number in frames_of(error)
    ]
    return next((line for line in reversed(lines) if not line.filename.startswith(LIBRARIES)), None)
