"""Values keep their classes: sizes, slices, named tuples and other subclasses of tuple, in calls and in results."""

from __future__ import annotations

import types
from collections import namedtuple
from typing import Any, NamedTuple

import pytest
import torch

import thunder_core as thunder

Point = namedtuple("Point", "h w")
CACHES = ("symbolic values", "default")
SHAPES = ((4, 3), (5, 3), (2, 6), (4, 3))


class Row(tuple[Any, ...]):  # noqa: SLOT001
    """A tuple with attributes."""


class Column(list[Any]):
    """A user-defined subclass of list."""


def labelled(*items: Any, **attributes: Any) -> Row:
    row = Row(items)
    vars(row).update(attributes)
    return row


SIZES = {
    "new of a size": lambda x: x.new(x.size()).shape,
    "new of a part of a size": lambda x: x.new(x.size()[1:]).shape,
    "new of a size made of numbers": lambda x: x.new(torch.Size([x.size(0), 2])).zero_(),
    "new of a sum of sizes": lambda x: x.new(x.shape + x.shape[:1]).shape,
    "new of numbers is no data": lambda x: x.new(x.size(0), 2).shape,
    "new of a tuple is data": lambda x: x.new(tuple(x.size())),
    "the constructor": lambda x: torch.Tensor(x.size()).shape,
    "classes": lambda x: [
        type(item) for item in (x.shape, x.shape[1:], x.shape + x.shape, x.shape * 2, tuple(x.shape))
    ],
    "elements": lambda x: x * x.shape[1:].numel(),
    "results": lambda x: {"a": [x.shape, x.shape[::2]], "b": torch.Size([x.size(0) + 1, 2]), "c": torch.Size([])},
}
RESULTS = {
    "a slice of a tensor": lambda x: slice(x.sum(), None),
    "slices in a list": lambda x: [slice(None, x.sum()), slice(0, 2, x.shape[0])],
    "slices in a named tuple": lambda x: Point(slice(x, None), x),
    "a slice in a slice": lambda x: slice(slice(x, 1), [x], {"k": x}),
    "a slice of a list": lambda x: slice([1, 2], None),
    "a slice of a number": lambda x: slice(x.sum().item(), None),
    "as paste_masks": lambda x: (x, (slice(x.min().long(), x.max().long() + 1), slice(None))),
    "a text of a slice": lambda x: f"{slice(x.sum(), None)}",
    "a tuple with attributes": lambda x: labelled(x, 1, extra=x * 2, n=x.size(0)),
    "a list of a class": lambda x: Column([slice(x, x), x.size(0)]),
    "what torch.max returns": lambda x: x.max(0),
}


class Kept:
    """Values that programs store outside."""

    last: Any = None


KEPT: list[Any] = []


def leaves_slices(x):
    KEPT.append(slice(x.sum(), x.shape[0]))
    Kept.last = labelled(slice(None, x * 2, [1, 2]), name=x)
    return x


def plain_data(value: Any) -> Any:
    """Return a value as plain data with the classes of its containers and the values of its tensors."""
    if isinstance(value, torch.Tensor):
        return type(value), value.shape, value.tolist()
    if isinstance(value, tuple | list):
        return type(value), [plain_data(item) for item in value], plain_data(getattr(value, "__dict__", {}))
    if isinstance(value, dict):
        return {key: plain_data(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice, plain_data([value.start, value.stop, value.step])
    return value


def compile_for(program: Any, cache: str) -> Any:
    return thunder.jit(program) if cache == "default" else thunder.jit(program, cache=cache)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", [*SIZES, *RESULTS])
def test_classes_of_values_match_eager(name: str, cache: str) -> None:
    program = (SIZES | RESULTS)[name]
    compiled = compile_for(program, cache)
    for shape in SHAPES:
        x = torch.rand(shape)
        assert plain_data(compiled(x)) == plain_data(program(x))


@pytest.mark.parametrize("cache", CACHES)
def test_slices_that_are_stored_outside_hold_the_tensors_of_the_call(cache: str) -> None:
    compiled = compile_for(leaves_slices, cache)
    for shape in SHAPES:
        x, states = torch.rand(shape), []
        for function in (compiled, leaves_slices):
            function(x)
            states.append(plain_data([*KEPT, Kept.last]))
            KEPT.clear()
        assert states[0] == states[1]


def test_attributes_of_outside_slices_are_read() -> None:
    def program(x, where):
        return x[where] * 2

    compiled, x = thunder.jit(program), torch.rand(6, 3)
    places = [torch.tensor(index) for index in range(4)]
    for where in (slice(places[1], None), slice(places[2], places[3]), slice(2, None), slice(None, places[2])):
        torch.testing.assert_close(compiled(x, where), program(x, where))
    given = (slice(places[1], None), slice(places[0], 1))
    torch.testing.assert_close(compiled(x, given), program(x, given))


def test_a_list_in_a_slice_is_guarded() -> None:
    compiled = thunder.jit(lambda x, where: x * where.start[0])
    where = slice([1, 2], None)
    assert compiled(torch.ones(1), where) == 1
    where.start[0] = 5
    assert compiled(torch.ones(1), where) == 5


class Disguised:
    """An object whose `__class__` is not its class."""

    k = 1

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return types.FunctionType


def test_an_attribute_of_a_class_in_disguise_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = thunder.jit(lambda x: x * Disguised().k), torch.ones(2)
    assert torch.equal(compiled(x), x)
    monkeypatch.setattr(Disguised, "k", 2)
    assert torch.equal(compiled(x), x * 2)


class CountedFields(NamedTuple):
    """A tuple of Python with an attribute that classes of C have."""

    a: torch.Tensor
    b: int


CountedFields.n_sequence_fields = 2  # type: ignore[attr-defined]


def test_a_class_with_an_attribute_of_struct_sequences_is_rebuilt() -> None:
    x = torch.ones(2)
    result = thunder.jit(lambda x: CountedFields(x * 2, 3))(x)
    assert type(result) is CountedFields
    assert torch.equal(result.a, x * 2)
