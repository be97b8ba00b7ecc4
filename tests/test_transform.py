"""The order of transforms comes from their traits alone, and conflicts name both parties."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_core.errors import RecipeConflict
from thunder_core.ir.trace import Trace
from thunder_core.transform import Transform, order_transforms
from thunder_core.transforms.cse import ShareCommonExpressions
from thunder_core.transforms.dce import DropDeadCode


class Silent(Transform):
    """Leaves a trace as it is."""

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


def test_a_trait_that_names_nobody_present_is_met() -> None:
    assert order_transforms([Fuse()]) == (Fuse(),)
    assert order_transforms([]) == ()


def test_one_that_is_given_twice_counts_once() -> None:
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


def test_preparation_leaves_the_model_as_it_is() -> None:
    model = torch.nn.Linear(2, 2)
    assert Quantize().prepare(model) is model
