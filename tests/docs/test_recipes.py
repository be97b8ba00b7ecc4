"""The page of recipes matches the recipes."""

from __future__ import annotations

from docs.recipes import PAGE, option_rows, recipe_rows, render
from thunder_core.foundation import plugins
from thunder_core.workflow.pipeline.request.recipes import recipe_class


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_every_recipe_and_option_has_a_row() -> None:
    names = plugins.names("recipes")
    assert [row[0] for row in recipe_rows()] == [f"`{name}`" for name in names]
    options = [f"`{name}.{option}`" for name in names for option in recipe_class(name).Options.model_fields]
    assert [row[0] for row in option_rows()] == options
    assert options
