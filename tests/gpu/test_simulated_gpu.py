"""The stand-in for a GPU: memory without data is lent like the memory of a graph."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.gpu.simulated_gpu import lend
from thunder_executors.cudagraphs.loans import Loan


def test_memory_without_data_is_in_use_while_a_tensor_uses_it() -> None:
    with FakeTensorMode():
        memory = torch.empty(8, dtype=torch.uint8)
        loan = Loan.__new__(Loan)
        loan.memory, loan._reference = memory, None
        for _ in range(2):
            assert not loan.is_in_use
            tensor = torch.empty(0).set_(lend(loan), 0, (2,), (1,))
            view = tensor[1:]
            del tensor
            assert loan.is_in_use
            del view
        assert not loan.is_in_use
