"""Packed weights lie in blocks of huge pages, which are freed with their tensors."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from thunder_executors.packed_linear.huge_pages import ALIGNMENT, BLOCK, SMALL, HugePages

COUNT = SMALL // 4 + 1


def test_tensors_of_a_block_are_aligned_and_do_not_overlap():
    memory = HugePages()
    tensors = [memory.empty(COUNT).fill_(number) for number in range(5)]
    assert all((tensor == number).all() for number, tensor in enumerate(tensors))
    assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)
    assert tensors[-1].data_ptr() - tensors[0].data_ptr() < BLOCK


@pytest.mark.parametrize("count", [0, 1, SMALL // 4 - 1, COUNT, BLOCK // 4, BLOCK // 4 + 1])
def test_memory_has_the_requested_numbers(count):
    tensor = HugePages().empty(count)
    assert (tensor.shape, tensor.dtype) == ((count,), torch.float32)
    assert tensor.untyped_storage().nbytes() == 4 * count
    assert (tensor.zero_() == 0).all()


def test_full_block_is_followed_by_another():
    memory = HugePages()
    tensors = [memory.empty(BLOCK // 8) for _ in range(3)]
    assert torch.stack([tensor.fill_(number)[0] for number, tensor in enumerate(tensors)]).tolist() == [0, 1, 2]


def test_block_is_freed_with_its_last_tensor():
    memory = HugePages()
    first, second = memory.empty(COUNT), memory.empty(COUNT)
    assert memory.block is not None
    del first
    gc.collect()
    assert memory.block() is not None
    del second
    gc.collect()
    assert memory.block() is None
    assert (memory.empty(COUNT).fill_(3.0) == 3).all()


def test_system_without_huge_pages_gives_ordinary_memory(monkeypatch):
    class Refused(mmap.mmap):
        def madvise(self, *_):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("thunder_executors.packed_linear.huge_pages.mmap.mmap", Refused)
    assert (HugePages().empty(COUNT).fill_(2.0) == 2).all()
