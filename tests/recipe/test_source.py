"""Options are refused from a recipe's source as by the recipe itself, and unreadable sources are left to the import."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from tests.readme import blocks
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, ThunderError, UnknownName
from thunder_core.passes.recipe.source import declared_recipe, refuse_options
from thunder_core.workflow.pipeline.request.recipes import find_recipe

HEAD = '''"""A recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Optional

import pydantic
from pydantic import ConfigDict, Field, PositiveInt, field_validator, model_validator

import thunder_core.passes.recipe as recipes
from thunder_core.passes.recipe import Recipe, RecipeOptions, Transform

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST = 2


@dataclass(frozen=True)
class Shard(Transform):
    """A transform beside the recipe."""


'''
CAREFUL = (
    HEAD
    + '''class Careful(Recipe):
    """A recipe with options."""

    class Options(RecipeOptions):
        """Its options."""

        bits: int = Field(8, ge=2, le=16, description="width")
        scheme: Literal["rows", "tensors"] = "rows"
        exact: bool = False
        rate: Annotated[float, Field(gt=0.0)] | None = None
        size: Optional[PositiveInt] = pydantic.Field(default=None)
        label: str = Field("a", pattern="^[a-z]+$", max_length=3)
        KEPT: ClassVar[int] = 3

    def setup_transforms(self) -> tuple[Transform, ...]:
        return (*super().setup_transforms(), Shard())
'''
)
DERIVED = '''"""A recipe of another one's options, and more."""

from __future__ import annotations

from foreign_recipes.careful import Careful


class Derived(Careful):
    """A recipe of another one's options, and more."""

    class Options(Careful.Options):
        bits: int = 4
        depth: int
'''
INHERITING = DERIVED[: DERIVED.index("    class Options")].replace("Derived", "Inheriting")
GIVEN: list[dict[str, object]] = [
    {"bit": "4"},
    {"KEPT": "4"},
    {"qqq": 1, "bits": 99},
    {"bits": "many"},
    {"bits": 99},
    {"bits": "1"},
    {"bits": 2.5},
    {"bits": True},
    {"scheme": "columns"},
    {"exact": "perhaps", "bits": "x"},
    {"rate": "0"},
    {"rate": "fast"},
    {"size": -1},
    {"label": "ABC"},
    {"label": "abcd"},
    {"depth": "x"},
    {"bits": "4", "scheme": "tensors", "exact": "yes", "rate": "0.5", "size": "2", "label": "b"},
    {"bits": "4", "depth": "2"},
]
OURS = [recipe.name for recipe in plugins.listing("recipes") if recipe.module.startswith("thunder_recipes.")]
# Bodies of `Options` whose names are readable, but not the effect of their values.
NAMES_ALONE = {
    "a computed bound": "bits: int = Field(8, ge=LEAST)",
    "a type of another module": "bits: pydantic.SecretStr = None",
    "an alias": 'bits: int = Field(8, alias="b")',
    "a validator": "bits: int = 8\n        @field_validator('bits')\n        def even(cls, bits): return bits",
    "a setting": "bits: int = 8\n        model_config = ConfigDict(str_to_lower=True)",
}
UNTOLD = {
    "a decorated recipe": HEAD + "@recipes.functools.total_ordering\nclass Careful(Recipe):\n    name_of_it = 1\n",
    "a module that does something": CAREFUL + "\nprint(Careful)\n",
    "a recipe that is handed over": CAREFUL + "\nhash_of_it = hash(Careful)\n",
    "a recipe that is bound again": CAREFUL + "\nCareful = Careful\n",
    "two recipes": CAREFUL + "\n\nclass Other(Recipe):\n    pass\n",
    "no recipe": HEAD,
    "an initializer": CAREFUL + "\n    def __init__(self, **options): super().__init__()\n",
    "a name of its own": CAREFUL + "\n    @property\n    def name(self): return 'own'\n",
    "options from elsewhere": HEAD + "class Careful(Recipe):\n    Options = type('Options', (RecipeOptions,), {})\n",
    "a base that is mixed in": HEAD + "class Mixin:\n    pass\n\n\nclass Careful(Mixin, Recipe):\n    pass\n",
    "a base that is not found": HEAD + "from nowhere.at_all import Base\n\n\nclass Careful(Base):\n    pass\n",
    "a star": "from thunder_core.passes.recipe import *\n\n\nclass Careful(Recipe):\n    pass\n",
    "options that end": CAREFUL.replace("KEPT: ClassVar[int]", "from typing import Final\n        KEPT: Final[int]"),
    "no Python": "class Careful(Recipe:\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A third-party package of recipes, registered by an entry point."""
    package = tmp_path / "foreign_recipes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    points = EntryPoints([EntryPoint("theirs", "foreign_recipes", "thunder.recipes")])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points.select(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.startswith("foreign_recipes")]:
        del sys.modules[name]


def refusal(ask: object, *arguments: object) -> tuple[str, str, str] | None:
    """The code and the message of the error that a call raises, or None."""
    try:
        ask(*arguments)  # type: ignore[operator]
    except ThunderError as error:
        return error.code, error.what, error.fix or ""
    return None


def write(folder: Path) -> None:
    for name, source in {"careful": CAREFUL, "derived": DERIVED, "inheriting": INHERITING}.items():
        (folder / f"{name}.py").write_text(source)


def test_options_are_refused_from_the_source_as_by_the_recipe(folder: Path) -> None:
    write(folder)
    asked = [(name, options) for name in ("careful", "derived", "inheriting") for options in GIVEN]
    refusals = [refusal(refuse_options, *arguments) for arguments in asked]
    assert not [name for name in sys.modules if name.startswith("foreign_recipes.")]
    assert refusals == [refusal(find_recipe, *arguments) for arguments in asked]
    assert {code for code, _, _ in filter(None, refusals)} == {UnknownName.code, BadOption.code}
    assert refusals.count(None) >= 3


@pytest.mark.parametrize("body", NAMES_ALONE)
def test_option_names_are_read_even_if_values_are_not(folder: Path, body: str) -> None:
    (folder / "careful.py").write_text(
        f"{HEAD}class Careful(Recipe):\n    class Options(RecipeOptions):\n        {NAMES_ALONE[body]}\n"
    )
    declared = declared_recipe("careful")
    assert declared is not None
    assert declared.options.names == ("bits",)
    assert declared.options.kind is None
    refuse_options("careful", {"bits": object()})
    with pytest.raises(UnknownName, match="recipe careful has no option 'bit'") as caught:
        refuse_options("careful", {"bit": 1})
    assert refusal(find_recipe, "careful", {"bit": 1}) == (caught.value.code, caught.value.what, caught.value.fix)


@pytest.mark.parametrize("source", UNTOLD)
def test_unreadable_recipes_are_left_to_importing(folder: Path, source: str) -> None:
    (folder / "careful.py").write_text(UNTOLD[source])
    assert declared_recipe("careful") is None
    refuse_options("careful", {"unheard_of": 1})


def test_options_of_an_imported_recipe_are_read_from_the_class(folder: Path) -> None:
    write(folder)
    plugins.load("recipes", "careful").Careful.Options = plugins.load("recipes", "derived").Derived.Options
    refuse_options("careful", {"nothing": 1})


def test_the_recipe_of_the_readme_is_read_from_its_source(folder: Path) -> None:
    (folder / "careful_llama.py").write_text(blocks("recipes/README.md", "python")[0])
    with pytest.raises(BadOption, match="recipe careful-llama does not accept error_factor='-1'"):
        refuse_options("careful-llama", {"error_factor": "-1"})


@pytest.mark.parametrize("name", OURS)
def test_each_recipe_of_ours_is_read_from_its_source(name: str) -> None:
    declared = declared_recipe(name)
    assert declared is not None
    recipe = find_recipe(name, {})
    assert declared.name == recipe.name
    assert declared.options.kind is not None
    assert list(declared.options.names) == list(recipe.options)
