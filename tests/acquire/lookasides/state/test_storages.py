"""Storages that a program makes from bytes have eager's class and device; a storage as a result is refused by name."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay

DATA = bytes(range(8))
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

ANSWERS = {
    "class of booleans": lambda x: isinstance(torch.BoolStorage.from_buffer(DATA, "native"), torch.BoolStorage),
    "another class": lambda x: isinstance(torch.BoolStorage.from_buffer(DATA, "native"), torch.FloatStorage),
    "class of floats": lambda x: isinstance(torch.FloatStorage.from_buffer(DATA, "little"), torch.FloatStorage),
    "device": lambda x: torch.DoubleStorage.from_buffer(DATA, "little").device,
    "name": lambda x: torch.BoolStorage.from_buffer(DATA, "native").type(),
    "untyped": lambda x: torch.UntypedStorage.from_buffer(DATA, dtype=torch.uint8).device,
    "length": lambda x: x * len(torch.ByteStorage.from_buffer(DATA, "native")),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_storages_of_bytes_match_eager(name: str) -> None:
    x = torch.ones(2)
    ours, eager = thunder.jit(ANSWERS[name])(x), ANSWERS[name](x)
    assert torch.equal(ours, eager) if isinstance(eager, torch.Tensor) else ours == eager


@pytest.mark.parametrize("make", [lambda x: x.storage(), lambda x: torch.FloatStorage.from_buffer(DATA, "little")])
def test_a_storage_as_a_result_is_refused_by_its_name(make: object) -> None:
    with pytest.raises(CannotReplay, match="UntypedStorage, which cannot be rebuilt"):
        thunder.jit(make)(torch.ones(2))
