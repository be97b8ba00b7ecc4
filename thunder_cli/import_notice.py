"""A notice while PyTorch is imported, which takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console

from thunder_core.foundation.tested_versions import require_tested_torch

NOTICE = "importing PyTorch"


@contextmanager
def importing(console: Console) -> Iterator[None]:
    """Show a line or a spinner while the block imports PyTorch, unless PyTorch is already imported.

    Output of the imported libraries goes to stderr, so that stdout has only results.
    """
    with redirect_stdout(sys.stderr):
        if "torch" in sys.modules or console.quiet:
            yield
        elif console.is_terminal:
            with console.status(NOTICE):
                yield
        else:
            console.print(NOTICE)
            yield


@contextmanager
def importing_tested_torch(console: Console) -> Iterator[None]:
    """Raise `TorchNotTested` for an untested release of PyTorch; otherwise, show the notice of `importing`."""
    require_tested_torch()
    with importing(console):
        yield
