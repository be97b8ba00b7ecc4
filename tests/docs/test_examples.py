"""Every example on the pages and in the docstrings of the public names runs."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

import thunder_core as thunder
from tests.readme import ROOT, blocks

PAGES = (
    "docs/artifacts.md",
    "docs/benchmark.md",
    "docs/cache.md",
    "docs/debug.md",
    "docs/distributed.md",
    "docs/function_transforms.md",
    "docs/generation.md",
    "docs/higher_order.md",
    "docs/kernels.md",
    "docs/life_of_a_call.md",
    "docs/lifetimes.md",
    "docs/lookasides.md",
    "docs/memory.md",
    "docs/patterns.md",
    "docs/python.md",
    "docs/quantization.md",
    "docs/recipes.md",
    "docs/regions.md",
    "docs/search.md",
    "docs/sharp_edges.md",
    "docs/symbolic.md",
    "docs/thunderfx.md",
    "docs/training.md",
)
MODULES = (
    "thunder_core.backend.cache.store",
    "thunder_core.compilation.compiler.last_call",
    "thunder_core.compilation.compiler.lookaside_listing",
    "thunder_core.functional",
    "thunder_core.backend.claiming.executor",
    "thunder_core.backend.claiming.operator",
    "thunder_core.backend.patterns.pattern",
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:Warning only once"),  # PyTorch overrides its own kernels for vmap
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # Dynamo reads .grad
]
FLAGS = doctest.ELLIPSIS


@pytest.mark.filterwarnings("ignore:the recipe bf16")  # a processor without instructions for bfloat16
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page == "docs/kernels.md":
        pytest.importorskip("triton")
    result = doctest.testfile(str(ROOT / page), module_relative=False, optionflags=FLAGS)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=FLAGS)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_readme_shows_the_trace_of_its_example(tmp_path, capsys):
    (example,) = (block for block in blocks("README.md", "python") if block.startswith("class"))
    (shown,) = blocks("README.md", "text")
    file = tmp_path / "models" / "gate.py"
    file.parent.mkdir()
    file.write_text(example)
    exec(compile(example, str(file), "exec"), {"torch": torch, "thunder": thunder})
    assert capsys.readouterr().out.strip() == shown.strip()
