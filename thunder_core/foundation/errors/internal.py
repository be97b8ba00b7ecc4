"""Errors of exit statuses 70 and 130: a bug in Thunder, and Ctrl-C."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import InternalError, ThunderError


class Bug(InternalError):
    """An internal error of Thunder. Please report it with the output of `thunder doctor --json`.

    Repeat the command with `--debug`, which adds the traceback to the message, and include the traceback in the
    report.
    """

    code = "TH7001"


class Interrupted(ThunderError):
    """The user pressed Ctrl-C. No file was left half-written.

    Run the command again. Compiled kernels are in the cache, so the second run is faster.
    """

    code = "TH1301"
    status = 130
