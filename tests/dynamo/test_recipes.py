"""Recipes that trace the program with Dynamo."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import BadOption
from thunder_core.tracing.extension.transform import Transform
from thunder_core.workflow.pipeline.request.recipes import requested_recipe
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.request_checks import check_request
from thunder_core.workflow.pipeline.session.planning import plan

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Captured(thunder.Recipe):
    """A recipe that traces every module with Dynamo."""

    compiler = "thunderfx"


class Plain(thunder.Recipe):
    """A recipe for every module."""


class Printing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        y = self.linear(x)
        print("seen")
        return y.relu()


class WithMethods(Transform):
    """A transform that changes a method."""

    def __call__(self, trace):
        return trace

    def methods(self, model):
        return {"forward": lambda self, x: x}


@pytest.mark.parametrize("recipe", [Captured, Captured() + Plain(), [Plain, Captured]])
def test_recipe_of_dynamo_compiles_both_graphs(recipe, capsys):
    model = Printing()
    compiled = thunder.compile(model, recipe)
    x = torch.randn(3, 2)
    assert torch.equal(compiled(x), model(x))
    assert capsys.readouterr().out == "seen\nseen\n"
    assert isinstance(compiled, Printing)
    assert len(thunder.graphs(compiled)) == 2
    assert len(thunder.splits(compiled)) == 1


def test_settings_of_the_recipe_reach_each_graph():
    compiled = thunder.compile(Printing(), Captured, max_programs=5)
    compiled(torch.ones(1, 2))
    assert {graph._thunder.options.max_programs for graph in thunder.graphs(compiled)} == {5}


def test_option_without_meaning_for_graphs_is_refused():
    with pytest.raises(BadOption, match="Dynamo chooses the symbolic sizes"):
        thunder.compile(Printing(), Captured, symbolic=["x.size(0)"])
    with pytest.raises(BadOption, match="changes methods of the model"):
        thunder.compile(Printing(), Captured() + WithMethods())


def test_request_names_the_compiler():
    request = Request(recipe="default", compiler="thunderfx")
    recipe = requested_recipe(request)
    assert (recipe.acquires_by, recipe.name) == ("thunderfx", "default")
    assert requested_recipe(Request(recipe=Captured, compiler="jit")).acquires_by == "jit"
    with pytest.raises(BadOption, match="thunderfx, whose programs cannot be saved in an artifact"):
        plan(request)
    with pytest.raises(BadOption, match="use one of: jit, thunderfx"):
        check_request(Request(compiler="fx"))
