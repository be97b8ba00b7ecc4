"""Templates for a new recipe: a documented file that runs, and its test."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, OutputExists
from thunder_core.foundation.storage.full_disk import report_unwritable
from thunder_core.foundation.storage.manifest import require_outside_artifacts

RECIPE = '''\
"""The recipe {title}, in one line: `thunder recipes` shows it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from thunder_core.recipe import Lookaside, Recipe, RecipeOptions, Transform


class {kind}(Recipe):
    """The recipe {title}, in one line.

    Add its purpose and its cost. Use it with `thunder optimize MODEL --recipe {file}`, or combined with others:
    `--recipe hf-llama3 --recipe {file}`.
    """

    # The model types of transformers that it supports; empty for every torch.nn.Module.
    families: ClassVar[tuple[str, ...]] = ()
    # The executors that may claim bound symbols, in this order; `thunder executors` lists them.
    executors: ClassVar[tuple[str, ...]] = ("sdpa", "packed-linear", "packed-attention", "inductor", "torch")
    # Traits: `after`, `before`, `needs`, `excludes` and `provides` name other parts.

    class Options(RecipeOptions):
        """The options that `--set name=value` sets."""

        memory_budget: float = Field(1.0, ge=0, le=1, description="the share of activations that a training step saves")

    def setup_transforms(self) -> tuple[Transform, ...]:
        """The transforms, in any order: their traits determine the order."""
        return ()

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """The functions that replace other functions."""
        return ()

    def setup_config(self) -> dict[str, object]:
        """The settings of `jit`."""
        return {{"memory_budget": self.options["memory_budget"]}}
'''
TEST = '''\
"""Tests of the recipe {title}."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import thunder_core
from thunder_core.errors import BadOption

RECIPE = str(Path(__file__).with_name("{file}"))


def test_the_result_is_that_of_eager_pytorch() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(3, 8)
    torch.testing.assert_close(thunder_core.compile(model, RECIPE)(x), model(x))


def test_an_option_out_of_bounds_is_refused() -> None:
    with pytest.raises(BadOption):
        thunder_core.compile(torch.nn.ReLU(), RECIPE, memory_budget=2)
'''


def write_recipe(name: str, folder: Path) -> tuple[Path, Path]:
    """Write the templates of a recipe and its test into a folder, and return both files.

    Raises `BadOption` for an invalid name, `OutputExists` for existing files, `OutOfDisk` and `OutputNotWritable`; in
    these cases neither file is written.
    """
    words = name.strip().lower().replace("_", "-").split("-")
    if (
        not all(re.fullmatch(r"[a-z0-9]+", word) for word in words)
        or not words[0][0].isalpha()
        or keyword.iskeyword("_".join(words))
    ):
        raise BadOption(f"{name!r:.80} is not a recipe name", fix="use words joined by hyphens, such as careful-llama")
    title, file, kind = "-".join(words), f"{'_'.join(words)}.py", "".join(word.capitalize() for word in words)
    if title in plugins.names("recipes"):
        raise BadOption(f"there is a recipe {title} already", fix="choose another name")
    texts = {
        folder / file: RECIPE.format(title=title, file=file, kind=kind),
        folder / f"test_{file}": TEST.format(title=title, file=file),
    }
    require_outside_artifacts(folder / file)
    with report_unwritable(folder, fix="name a writable folder with --out"):
        require_free(texts)
        folder.mkdir(parents=True, exist_ok=True)
        write_all(texts)
    recipe, test = texts
    return recipe, test


def write_all(texts: Mapping[Path, str]) -> None:
    """Write new files with these texts. If this fails or is interrupted, remove all of them."""
    try:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except BaseException:
        for path in texts:
            with suppress(OSError):
                path.unlink()
        raise


def require_free(paths: Iterable[Path]) -> None:
    """Raise `OutputExists` for a file that exists."""
    for path in paths:
        if path.exists():
            raise OutputExists(f"{path} exists", fix="choose another name, or another folder with --out")
