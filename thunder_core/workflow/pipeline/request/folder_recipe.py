"""The recipe that a model's folder ships, which is run where its user says that it is trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.pipeline.request.request import Request

FILE = "thunder_recipe.py"


def folder_recipe(request: Request) -> Path | None:
    """The file of the recipe that the folder of a request's model ships; None where there is none."""
    if request.model.model is None:
        return None
    path = Path(request.model.model).expanduser() / FILE
    return path if path.is_file() else None


def trusted_recipe(request: Request) -> Path | None:
    """The file of the recipe that a request trusts; None where it trusts none.

    Raises `BadOption` where it is to be trusted, and the model's folder ships none.
    """
    if not request.trust_recipe:
        return None
    path = folder_recipe(request)
    if path is None:
        raise BadOption(
            f"--trust-recipe is given, but {request.model.model or 'the sample'} is not a folder with a {FILE}",
            fix="leave out --trust-recipe, or name the file of a recipe: --recipe path/to/recipe.py",
        )
    return path


def with_trusted_recipe(request: Request) -> Request:
    """The request with the recipe of the model's folder added to those that are named, where it is trusted."""
    path = trusted_recipe(request)
    if path is None:
        return request
    named = request.recipe if isinstance(request.recipe, tuple) else (request.recipe,)
    return replace(request, recipe=(*named, str(path)))
