"""A word on what is fetched from elsewhere, which may take long."""

from __future__ import annotations

from rich.console import Console

from thunder_core.models.request import ModelRequest
from thunder_core.pipeline.request_checks import asks_the_hub


def print_hub_notice(console: Console, model: ModelRequest) -> None:
    """Say that the hub is asked for a model, where it is."""
    if asks_the_hub(model):
        console.print(f"asking the hub for {model.model}")
