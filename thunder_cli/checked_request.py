"""The request of a command that loads a model, with its checks, and notices about downloads and trusted code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from thunder_cli.console import stderr
from thunder_cli.hub_notice import print_hub_notice
from thunder_cli.trusted_recipe import show_trusted_recipe
from thunder_core.workflow.pipeline.request.request_checks import check_request

if TYPE_CHECKING:
    from thunder_cli.settings import Settings
    from thunder_core.workflow.pipeline import Request


def checked_request(settings: Settings, console: Console) -> Request:
    """Return the request for the settings, after checking its names, sizes and paths without importing PyTorch."""
    request = settings.request()
    check_request(request)
    print_hub_notice(console, request.model)
    show_trusted_recipe(stderr(), request)
    return request
