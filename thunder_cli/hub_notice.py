"""A notice before a model is fetched from the Hub, which may take long."""

from __future__ import annotations

from rich.console import Console

from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.request_checks import asks_the_hub


def print_hub_notice(console: Console, model: ModelRequest) -> None:
    """Print a notice if the model will be looked up on the Hub."""
    if asks_the_hub(model):
        console.print(f"looking up {model.model} on the Hugging Face Hub")
