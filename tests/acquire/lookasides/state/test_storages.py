"""Storages that a program makes from bytes have eager's class and device; a storage as a result is refused by name."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, RecompileWarning

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


STORAGES_RETURNED = {
    "typed": lambda x: (x + 1).storage(),
    "untyped": lambda x: (x + 1).untyped_storage(),
    "of bytes": lambda x: torch.FloatStorage.from_buffer(DATA, "little"),
}


@pytest.mark.parametrize("name", STORAGES_RETURNED)
def test_eager_makes_calls_that_return_a_storage(name: str) -> None:
    fast, x = thunder.jit(STORAGES_RETURNED[name]), torch.ones(2)
    with pytest.warns(RecompileWarning, match="UntypedStorage, which cannot be rebuilt"):
        assert fast(x).tolist() == STORAGES_RETURNED[name](x).tolist()
    with pytest.raises(CannotReplay, match="UntypedStorage, which cannot be rebuilt"):
        thunder.jit(STORAGES_RETURNED[name], data_dependent="error")(x)
