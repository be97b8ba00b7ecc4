"""Snapshots of inputs: large tensors are not copied, and a write to a large tensor is still detected."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from tests.fault_localization.examined import examine_call
from thunder_core.backend.claiming.deferred_tensor import SMALL_BYTES
from thunder_core.backend.claiming.input_snapshot import InputSnapshot, fingerprint

LARGE = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))  # 2 MiB


def test_small_tensor_is_copied_and_large_tensor_is_not():
    small = torch.ones(8)
    snapshot = InputSnapshot.of({"large": LARGE, "small": small, "number": 3}, ())
    assert snapshot.values["large"].data_ptr() == LARGE.data_ptr()
    assert snapshot.values["small"].data_ptr() != small.data_ptr()
    assert snapshot.values["number"] == 3
    assert list(snapshot.values) == ["large", "small", "number"]
    assert list(snapshot.fingerprints) == ["large"]


CHANGES = {
    "one element": lambda x: x[300, 17].neg_(),
    "the first element": lambda x: x[0, 0].neg_(),
    "the last element": lambda x: x[-1, -1].neg_(),
    "two elements exchanged": lambda x: x[7, :2].copy_(x[7, :2].flip(0)),
    "two rows exchanged": lambda x: x[:2].copy_(x[:2].flip(0)),
    "the sign of zero": lambda x: x.mul_(0).neg_(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_large_tensor_is_detected(change, dtype):
    value = LARGE.repeat(2, 1).to(dtype)
    if change == "the sign of zero":
        value.zero_()
    snapshot = InputSnapshot.of({"x": value}, ())
    assert snapshot.is_unchanged("x", value)
    CHANGES[change](value)
    assert not snapshot.is_unchanged("x", value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
def test_fingerprint_covers_the_memory_that_a_view_spans(dtype):
    base = (torch.arange(3 << 20) % 100).to(dtype)
    for start in (0, 1, 3, 8):
        view = base[start : (2 << 20) + start - 3]
        before = fingerprint(view)
        base[start + (2 << 20) + 16 :] = 0
        if start >= 8:
            base[: start - 7] = 0
        assert torch.equal(before, fingerprint(view))
        for place in (0, 5, -1):
            kept = view[place].clone()
            view[place] = kept + 1
            assert not torch.equal(before, fingerprint(view))
            view[place] = kept
        assert torch.equal(before, fingerprint(view))


def test_strided_and_transposed_tensors_have_fingerprints():
    for view in (LARGE.t(), LARGE[:, 3:], LARGE[::2]):
        changed = view.clone(memory_format=torch.preserve_format)
        before = fingerprint(changed)
        changed[1, 1] += 1
        assert not torch.equal(before, fingerprint(changed))


def scaling(x: torch.Tensor) -> torch.Tensor:
    """Return a product followed by `silu`."""
    return torch.nn.functional.silu(x) * 2


@pytest.mark.parametrize("place", [0, 100_000, -1])
def test_executor_that_writes_to_a_large_input_is_refused(place):
    executor = thunder.OperatorExecutor("mine")

    @executor.implements(torch.nn.functional.silu)
    def my_silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002
        result = torch.nn.functional.silu(input)
        input.detach().view(-1)[place] += 1
        return result

    (fault, *_) = examine_call(scaling, (executor, "torch"), x=LARGE.clone()).faults
    assert (fault.kind, fault.by) == ("executor", "mine")
    assert "which eager PyTorch does not write to, has changed" in fault.difference


def in_place(x: torch.Tensor) -> torch.Tensor:
    """Write to the input."""
    y = x.mul_(2)
    return torch.nn.functional.silu(y) + x


def test_program_that_writes_to_a_large_input_has_no_fault():
    kept = LARGE.clone()
    assert not examine_call(in_place, ("inductor", "torch"), x=kept).faults
    assert torch.equal(kept, LARGE)


def test_many_small_tensors_are_not_copied():
    tensors = {f"weight {number}": torch.ones(256, 256) for number in range(256)}  # 64 MiB
    copied = [
        name
        for name, value in InputSnapshot.of(tensors, ()).values.items()
        if value.data_ptr() != tensors[name].data_ptr()
    ]
    assert 0 < sum(tensors[name].nbytes for name in copied) <= SMALL_BYTES
