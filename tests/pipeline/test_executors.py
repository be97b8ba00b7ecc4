"""Executors of a recipe: availability, and the losses if none of them fuses."""

from __future__ import annotations

import pytest
import torch

import thunder_core
from tests.pipeline.conftest import quick
from thunder_core.backend.fusion.fuse import FusionExecutor, Refusal
from thunder_core.foundation.errors import DegradedWarning, EnvironmentLacks
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.pipeline import optimize, plan

HIDDEN = "no compiler in this test"


class Refusing(FusionExecutor):
    """An executor that is offered everything and compiles nothing."""

    name = "refusing"
    claims = "regions"

    def __init__(self, *, lasting: bool) -> None:
        self.lasting = lasting

    def fuses(self, bsym):
        return True

    def compile(self, regions):
        return [Refusal(HIDDEN, lasting=self.lasting) for _ in regions]


class Absent(Refusing):
    """An executor that is available on no device."""

    name = "absent"

    def missing(self):
        return HIDDEN


class ByTheMachine(Recipe):
    """A recipe in which one executor refuses everything because of the machine, and another accepts everything."""

    executors = (Refusing(lasting=False), "inductor", "torch")


class Unfusable(Recipe):
    """A recipe in which every operation is refused because of its type."""

    executors = (Refusing(lasting=True), "torch")


class Partly(Recipe):
    """A recipe in which one executor refuses operations that another accepts."""

    executors = ("inductor", "torch")


class Without(Recipe):
    """A recipe whose only fusing executor is not available."""

    executors = (Absent(lasting=True), "torch")


class WithAnother(Recipe):
    """A recipe with two fusing executors, of which one is not available."""

    executors = (Absent(lasting=True), "inductor", "torch")


@pytest.mark.parametrize("recipe", [ByTheMachine, Unfusable])
def test_refused_operations_degrade_the_recipe(out, recipe):
    report = optimize(quick(out, recipe, benchmark=False)).report
    (lost,) = report.degraded
    assert lost.part == "fused kernels"
    operations = sum(refusal.operations for refusal in report.refused if refusal.executor == "refusing")
    assert lost.reason == f"refusing gave up {operations} operations: {HIDDEN}"


def test_refused_operations_are_an_error_if_strict(out):
    with pytest.raises(EnvironmentLacks, match=HIDDEN):
        optimize(quick(out, Unfusable, benchmark=False, strict=True))
    assert list(out.parent.iterdir()) == []


def test_fused_operations_do_not_degrade_the_recipe(out):
    assert optimize(quick(out, Partly, benchmark=False, strict=True)).report.degraded == ()


def test_a_recipe_without_its_only_fusion_is_degraded(out):
    (lost,) = plan(quick(out, Without)).prepared.degraded
    assert (lost.part, lost.reason) == ("fused kernels", HIDDEN)
    assert plan(quick(out, WithAnother)).prepared.degraded == ()
    with pytest.raises(EnvironmentLacks, match=HIDDEN):
        plan(quick(out, Without, strict=True))
    with pytest.warns(DegradedWarning, match=HIDDEN):
        thunder_core.compile(torch.nn.Linear(2, 2), Without)


def test_a_compiler_that_compiles_nothing_degrades_recipes_on_the_cpu(out, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    planned = plan(quick(out))
    (lost,) = planned.prepared.degraded
    assert "/bin/false does not compile three lines" in lost.reason
    assert (
        dict(planned.rows())["degraded"]
        == f"fused kernels, executors packed-linear, packed-attention, inductor: {lost.reason} ({lost.fix})"
    )
    assert dict(planned.rows())["executors"] == "torch"
