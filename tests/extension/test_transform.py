"""The order of transforms follows from their traits alone, and conflicts name both parties."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_core.foundation.errors import BadRecipe, RecipeConflict, UnknownName
from thunder_core.passes.transforms.cse import ShareCommonExpressions
from thunder_core.passes.transforms.dce import DropDeadCode
from thunder_core.tracing.extension.transform import Transform, order_transforms
from thunder_core.tracing.ir.trace import Trace


class Silent(Transform):
    """A transform that leaves a trace unchanged."""

    def __call__(self, trace: Trace) -> Trace:
        return trace


@dataclass(frozen=True)
class Quantize(Silent):
    bits: int = 8
    before = ("Shard",)


@dataclass(frozen=True)
class Shard(Silent):
    pass


@dataclass(frozen=True)
class Fuse(Silent):
    after = ("Shard", "Quantize")


@dataclass(frozen=True)
class Assemble(Silent):
    pass


@dataclass(frozen=True)
class KeepFloat(Silent):
    excludes = ("Quantize",)


@dataclass(frozen=True)
class Chicken(Silent):
    after = ("Egg",)


@dataclass(frozen=True)
class Egg(Silent):
    after = ("Chicken",)


@given(st.permutations([Quantize(), Shard(), Fuse(), Assemble()]))
def test_the_order_given_does_not_matter(transforms: list[Transform]) -> None:
    assert order_transforms(transforms) == (Assemble(), Quantize(), Shard(), Fuse())


def test_traits_name_files_too() -> None:
    @dataclass(frozen=True)
    class BeforeTheSweep(Silent):
        before = ("dce",)
        after = ("cse",)

    assert order_transforms([DropDeadCode(), BeforeTheSweep(), ShareCommonExpressions()]) == (
        ShareCommonExpressions(),
        BeforeTheSweep(),
        DropDeadCode(),
    )


def test_a_trait_that_names_an_absent_transform_is_met() -> None:
    assert order_transforms([Fuse()]) == (Fuse(),)
    assert order_transforms([]) == ()


def test_transform_that_is_given_twice_counts_once() -> None:
    assert order_transforms([Quantize(4), Shard(), Quantize(4)]) == (Quantize(4), Shard())


def test_different_options_conflict() -> None:
    with pytest.raises(RecipeConflict, match=r"Quantize\(bits=8\) and Quantize\(bits=4\)"):
        order_transforms([Quantize(8), Quantize(4)])


@pytest.mark.parametrize("transforms", [[KeepFloat(), Quantize()], [Quantize(), KeepFloat()]])
def test_exclusion_names_both_parties(transforms: list[Transform]) -> None:
    with pytest.raises(RecipeConflict, match=r"KeepFloat excludes Quantize") as caught:
        order_transforms(transforms)
    assert caught.value.status == 2


def test_a_cycle_names_both_parties() -> None:
    with pytest.raises(RecipeConflict, match=r"(Chicken and Egg|Egg and Chicken) must each come before the other"):
        order_transforms([Egg(), Chicken(), Shard()])


def test_preparation_leaves_the_model_unchanged() -> None:
    model = torch.nn.Linear(2, 2)
    assert Quantize().prepare(model) is model


@pytest.mark.parametrize("trait", ["after", "before", "excludes"])
@pytest.mark.parametrize("name", ["dec", "DropDeadCod", "nothing_of_the_kind", "budget"])
def test_a_trait_that_names_nothing_is_refused(trait: str, name: str) -> None:
    misspelled = dataclass(frozen=True)(type("Misspelled", (Silent,), {trait: (name,)}))
    with pytest.raises(UnknownName, match=f"Misspelled: {trait} names '{name}'") as caught:
        order_transforms([misspelled()])
    assert "known: " in caught.value.fix
    assert {"DropDeadCode", "dce", "Functionalize"} <= set(re.split(r"[ ,]+", caught.value.fix))


def test_the_nearest_transforms_are_suggested() -> None:
    misspelled = type("Misspelled", (Silent,), {"after": ("DropDeadCod",)})
    with pytest.raises(UnknownName) as caught:
        order_transforms([misspelled()])
    assert caught.value.fix.startswith("did you mean DropDeadCode?")


def test_traits_may_name_transforms_that_are_not_given_and_not_imported() -> None:
    code = """
from thunder_core.tracing.extension.transform import Transform, order_transforms
class Early(Transform):
    before = ("Functionalize", "autocast", "DropDeadCode")
    def __call__(self, trace): return trace
import sys
assert "thunder_core.passes.transforms.autocast" not in sys.modules
assert len(order_transforms([Early()])) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "declared", [{"after": "dce"}, {"befor": ("dce",)}, {"exclude": ("dce",)}, {"setup_config": None}]
)
def test_unknown_attributes_of_a_transform_are_refused(declared: dict[str, object]) -> None:
    assert issubclass(Silent, Silent), "which an abstract class remembers"
    with pytest.raises(BadRecipe, match=next(iter(declared))):
        type("Misspelled", (Silent,), declared)


def test_options_may_have_any_name() -> None:
    @dataclass(frozen=True)
    class Wanting(Silent):
        need: int = 3
        excluded: tuple[str, ...] = ()

    assert order_transforms([Wanting(excluded=("x",))]) == (Wanting(excluded=("x",)),)


@pytest.mark.parametrize("transform", [Shard, "shard", None])
def test_objects_that_are_no_transforms_are_refused(transform: object) -> None:
    with pytest.raises(
        BadRecipe, match=("not" if not isinstance(transform, type) else "instead of") + " an instance of Transform"
    ):
        order_transforms([transform])
