"""Errors of exit statuses 70 and 130: a bug of ours, and Ctrl-C."""

from __future__ import annotations

from thunder_core.errors.tree import InternalError, ThunderError


class Bug(InternalError):
    """Something that cannot happen has happened. Please report it with the output of `thunder doctor --json`."""

    code = "TH7001"


class Interrupted(ThunderError):
    """The user pressed Ctrl-C. Nothing was left half-written."""

    code = "TH1301"
    status = 130
