"""Outputs of every type become named tensors and a structure that can be compared."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from thunder_core.foundation.errors import NotComparable
from thunder_core.foundation.transformers_versions import CACHE, EARLIER_CACHE
from thunder_core.workflow.validation.leaves import Leaves, leaves_of, require_same_structure

CACHE_FIELD = CACHE if CACHE in CausalLMOutputWithPast.__dataclass_fields__ else EARLIER_CACHE

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Boxed:
    """A dataclass that holds a tensor."""

    inside: torch.Tensor
    label: str = "a"


class Slotted:
    """An object whose state is in slots."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Looped:
    """An object that contains itself."""

    def __init__(self) -> None:
        self.me = self
        self.state = torch.zeros(1)


ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (ONE, ["output"]),
        ((ONE, [ONE, {"x": ONE}]), ["0", "1.0", "1.1.x"]),
        (OrderedDict(a=ONE, b=None), ["a"]),
        (Pair(ONE, (ONE,)), ["left", "right.0"]),
        (Boxed(ONE), ["inside"]),
        ({"held": Slotted(ONE)}, ["held.value"]),
        (Looped(), ["state"]),
        (torch.return_types.topk((ONE, ONE)), ["0", "1"]),
        ({"loss": 0.5}, ["loss"]),
        ("nothing", []),
    ],
)
def test_names_are_paths(output: object, names: list[str]) -> None:
    assert list(leaves_of(output).tensors) == names


def test_a_model_output_with_a_cache_has_python_paths() -> None:
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 4), layer)
    leaves = leaves_of(CausalLMOutputWithPast(logits=torch.zeros(1, 3, 8), **{CACHE_FIELD: cache}))
    assert list(leaves.tensors) == [
        "logits",
        *(f"{CACHE_FIELD}.layers.{layer}.{part}" for layer in range(2) for part in ("keys", "values")),
    ]
    assert leaves.structure[""] == "CausalLMOutputWithPast"
    assert leaves.structure[CACHE_FIELD] == "DynamicCache"


def test_objects_without_tensors_are_known_by_their_type_alone() -> None:
    leaves = leaves_of({"config": Slotted({"deep": 3}), "x": ONE})
    assert leaves.structure == {"": "dict", "config": "Slotted"}


@pytest.mark.parametrize(
    ("optimized", "eager", "message"),
    [
        ((ONE,), [ONE], "`output` is tuple in the optimized model and list in eager"),
        ({"a": ONE}, {"a": ONE, "b": ONE}, "`b` is missing in the optimized"),
        ({"a": ONE, "b": ONE}, {"a": ONE}, "`b` is a tensor of float32 and shape [2] in the optimized"),
        ({"a": ONE.half()}, {"a": ONE}, "`a` is a tensor of float16 and shape [2] in the optimized"),
        ({"a": ONE[:1]}, {"a": ONE}, "`a` is a tensor of float32 and shape [1] in the optimized"),
        ({"a": (ONE, None)}, {"a": (ONE, 3)}, "`a.1` is None in the optimized model and 3 in eager"),
    ],
)
def test_structures_that_do_not_match_are_named(optimized: object, eager: object, message: str) -> None:
    with pytest.raises(NotComparable) as caught:
        require_same_structure(leaves_of(optimized), leaves_of(eager))
    assert message in str(caught.value)
    assert caught.value.status == 4


def test_equal_structures_pass() -> None:
    require_same_structure(leaves_of({"a": (ONE, 1)}), leaves_of({"a": (2 * ONE, 1)}))
    require_same_structure(Leaves(), Leaves())


def test_no_output_hides_another_of_the_same_name() -> None:
    """A number and its text are two keys."""
    found = leaves_of({0: ONE, "0": ONE * 2, "a": 3})
    assert [*found.tensors] == ["0", "'0'"]
    with pytest.raises(NotComparable, match=r"have the name `a\.b`"):
        leaves_of({"a": {"b": ONE}, "a.b": ONE})


def test_arrays_and_sets_are_compared() -> None:
    for ours, eager in ((np.array([1.0, 2.0]), np.array([1.0, 3.0])), (np.float32(1), np.float32(2))):
        assert leaves_of([ours]).tensors["0"].tolist() != leaves_of([eager]).tensors["0"].tolist()
    assert leaves_of(np.array([1, 2], dtype=np.int32)).tensors["output"].dtype == torch.int32
    require_same_structure(leaves_of({"a", "b", 1}), leaves_of({1, "b", "a"}))
    for ours, eager in (({"a"}, {"b"}), (frozenset({1}), frozenset({1, 2})), (range(3), range(4)), ({1}, {1.5})):
        with pytest.raises(NotComparable):
            require_same_structure(leaves_of([ours]), leaves_of([eager]))


def test_opaque_containers_are_listed() -> None:
    assert leaves_of({"a": iter(()), "b": {ONE}, "c": Slotted(1)}).opaque == {"a": "tuple_iterator", "b": "set"}


class Made(Mapping):
    """A mapping whose item is made at each access, and freed after it."""

    def __init__(self, content):
        self.content = content

    def __len__(self):
        return 1

    def __iter__(self):
        return iter(["item"])

    def __getitem__(self, key):
        return SimpleNamespace(content=self.content)


def test_objects_that_are_made_at_each_access_are_all_compared():
    output = [Made(torch.tensor(float(number)) if number % 2 else "no tensor") for number in range(40)]
    assert len(leaves_of(output).tensors) == 20


class Private:
    """An object with a private slot, an empty slot, and the slots of a subclass as a single text."""

    __slots__ = ("__hidden", "unset")

    def __init__(self):
        self.__hidden = torch.ones(2)


class Public(Private):
    """An object whose slots are one name."""

    __slots__ = "value"  # noqa: PLC0205 - a name alone is allowed

    def __init__(self):
        super().__init__()
        self.value = torch.zeros(2)


def test_private_slots_and_a_single_slot_are_compared():
    assert leaves_of(Public()).tensors.keys() == {"value", "_Private__hidden"}
