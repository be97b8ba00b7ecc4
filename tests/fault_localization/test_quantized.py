"""No fault is found in right programs of quantized models, whose codes amplify rounding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.families import FAMILIES
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline.debug import Diagnosis, debug_model
from thunder_core.workflow.pipeline.request.debug_request import DebugRequest
from thunder_core.workflow.pipeline.request.request import Request

RECIPES = ("bf16", "fp8", "int4-weight-only", "int8-dynamic", "int8-weight-only", "nf4-lora")
DTYPES = ("float32", "bfloat16", "float16")


def diagnosis(family: str, recipe: str, dtype: str = "float32", without: tuple[str, ...] = ("inductor",)) -> Diagnosis:
    """The report of `thunder debug` for a sample of a family under a recipe that quantizes."""
    model = ModelRequest(sample=SAMPLES[family], dtype=dtype)
    request = Request(recipe=("default", recipe), model=model, without=without, force_slow=True)
    return debug_model(request, DebugRequest())


@pytest.mark.sample(3)
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_false_alarm_under_each_recipe(recipe):
    assert not diagnosis("llama3", recipe).faults


@pytest.mark.parametrize(("family", "recipe"), [("bert", "int8-dynamic"), ("llama3", "int4-weight-only")])
def test_no_false_alarm_with_fused_regions(family, recipe):
    found = diagnosis(family, recipe, without=())
    assert not found.faults
    assert any(line.executor == "inductor" for line in found.internal_check.lines)


def pairs() -> Iterator[tuple[str, str, str]]:
    """Families, recipes and dtypes such that every pair of values occurs: a third of all combinations."""
    for (row, family), (column, recipe) in itertools.product(enumerate(FAMILIES), enumerate(RECIPES)):
        yield family, recipe, DTYPES[(row + column) % len(DTYPES)]


@pytest.mark.sample(8)
@pytest.mark.slow
@pytest.mark.parametrize(("family", "recipe", "dtype"), list(pairs()))
def test_no_false_alarm_in_any_pair_of_family_recipe_and_dtype(family, recipe, dtype):
    assert not diagnosis(family, recipe, dtype).faults
