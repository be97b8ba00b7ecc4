"""The request of `thunder debug`: its additional checks, and the folder for a reproduction."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from thunder_core.foundation.errors import BadOption, OutputExists
from thunder_core.foundation.options import option, require_values
from thunder_core.foundation.storage.manifest import require_outside_artifacts
from thunder_core.workflow.pipeline.request.destination import require_creatable


@dataclass(frozen=True)
class DebugRequest:
    """The options of `thunder debug`: whether to find lines that create NaN, and the folder for a reproduction."""

    nan: bool = option(
        False,
        bool,
        help="Find the first line that produces NaN or infinity, in eager PyTorch and in the optimized program."
        " Not for --task generate.",
    )
    out: Path | None = option(
        None,
        Path,
        metavar="DIR",
        help="Folder to write a small script and its inputs to, which reproduce the error without the model."
        " Not for --task generate.",
    )


def check_debug_request(request: DebugRequest, *, generates: bool = False) -> None:
    """Raise `OutputExists` or `OutputNotWritable` for the folder, before any heavy work.

    Raises `BadOption` for options of a single call if generation is checked.
    """
    require_values(request)
    call_options = {"--nan": request.nan, "--out": request.out is not None}
    for option_name in (name for name, is_used in call_options.items() if is_used and generates):
        raise BadOption(
            f"{option_name} and --task generate exclude each other: {option_name} is for a single call",
            fix="leave out --task generate: the prompt and each token are calls of the same model",
        )
    if request.out is None:
        return
    require_outside_artifacts(request.out)
    require_absent(request.out.expanduser())
    require_creatable(request.out.expanduser())


def require_absent(folder: Path) -> None:
    """Raise `OutputExists` for an existing folder or file."""
    if os.path.lexists(folder):
        raise OutputExists(f"{folder} exists already", fix="name another folder with --out, or remove this one")
