"""The recipe in a model's folder, printed before it runs."""

from __future__ import annotations

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from thunder_core.foundation.printable import printable
from thunder_core.workflow.pipeline.request.folder_recipe import folder_recipe, trusted_recipe
from thunder_core.workflow.pipeline.request.request import Request


def show_trusted_recipe(console: Console, request: Request) -> None:
    """Print the recipe in the model's folder before it runs, or a note that it is ignored."""
    trusted = trusted_recipe(request)
    if trusted is not None:
        console.print(Text(f"running the recipe in the model's folder, {trusted}:", "bold"))
        text = printable(trusted.read_text(encoding="utf-8", errors="replace"))
        console.print(Syntax(text, "python", background_color="default"))
    elif (path := folder_recipe(request)) is not None:
        console.print(Text(f"ignoring the recipe {path} in the model's folder; --trust-recipe runs it", "dim"))
