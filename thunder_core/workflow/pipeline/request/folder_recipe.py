"""The recipe in a model's folder. It runs only if the user trusts it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.pipeline.request.request import Request

FILE = "thunder_recipe.py"


def folder_recipe(request: Request) -> Path | None:
    """Return the recipe file in the folder of a request's model; None if there is none."""
    if request.model.model is None:
        return None
    path = Path(request.model.model).expanduser() / FILE
    return path if path.is_file() else None


def trusted_recipe(request: Request) -> Path | None:
    """Return the recipe file that a request trusts; None if it trusts none.

    Raises `BadOption` if the request trusts a recipe, but the model's folder has none.
    """
    if not request.trust_recipe:
        return None
    path = folder_recipe(request)
    if path is None:
        raise BadOption(
            f"--trust-recipe is set, but {request.model.model or 'the sample'} is not a folder with a {FILE}",
            fix="leave out --trust-recipe, or name the file of a recipe: --recipe path/to/recipe.py",
        )
    return path


def with_trusted_recipe(request: Request) -> Request:
    """Return the request with the recipe of the model's folder added, if the request trusts it."""
    path = trusted_recipe(request)
    if path is None:
        return request
    named = request.recipe if isinstance(request.recipe, tuple) else (request.recipe,)
    return replace(request, recipe=(*named, str(path)))
