"""The request of a command that loads a model: checked, with notices of what it fetches and whose code it runs."""

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


def checked_request(settings: Settings, told: Console) -> Request:
    """The request of settings; raises what names, sizes and paths tell of it, before PyTorch is imported."""
    request = settings.request()
    check_request(request)
    print_hub_notice(told, request.model)
    show_trusted_recipe(stderr(), request)
    return request
