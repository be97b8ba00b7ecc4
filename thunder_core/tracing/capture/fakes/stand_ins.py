"""Stand-ins: real tensors with the metadata of a recording's fakes, on which another program is traced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.tracing.capture.fakes.fake import mark
from thunder_core.tracing.capture.fakes.tensors import Tensors
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.torch_facts.autograd_nodes import tracked_from_outside
from thunder_core.tracing.ir.proxy import tensor_proxy


class StandIns:
    """Real tensors, one for each tensor of a recording, with the same memory sharing.

    An unchanged tensor from outside is its own stand-in. The data of the other stand-ins is never read. Their symbolic
    sizes have the values of the traced call.
    """

    def __init__(
        self, tensors: Tensors, device: torch.device | None = None, sizes: SymbolicSizes | None = None
    ) -> None:
        self._tensors = tensors
        self._device = device
        self._sizes = sizes
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._behind: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the stand-in of a tensor of the program."""
        if id(tensor) not in self._stand_ins:
            stand_in = self._make_stand_in(tensor)
            self._stand_ins[id(tensor)] = (tensor, stand_in)
            self._behind[id(stand_in)] = (stand_in, tensor)
        return self._stand_ins[id(tensor)][1]

    def behind(self, stand_in: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor of the program that a stand-in represents, or None."""
        pair = self._behind.get(id(stand_in))
        return None if pair is None else pair[1]

    def give(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Use a tensor with data as the stand-in of a tensor of the program."""
        self._stand_ins[id(tensor)] = (tensor, value)
        self._behind[id(value)] = (value, tensor)

    def _make_stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = self._tensors.fake(tensor)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            proxy = tensor_proxy("", fake)
            shape, stride = map(self._in_call, (proxy.shape, proxy.stride))
            proxy = replace(proxy, device=tensor.device, shape=shape, stride=stride)
            if fake is not tensor and proxy == tensor_proxy("", tensor):
                return tensor
            stand_in = torch.empty(0, dtype=fake.dtype, device=self._device or fake.device)
            (offset,) = self._in_call((fake.storage_offset(),))
            stand_in.set_(self._storage(fake), offset, shape, stride)
            mark(stand_in, is_conj=fake.is_conj(), is_neg=fake.is_neg())
            if not fake.requires_grad:
                return stand_in
            return stand_in.requires_grad_(True) if fake.is_leaf else tracked_from_outside(stand_in)

    def _storage(self, fake: torch.Tensor) -> torch.UntypedStorage:
        """Return memory of the size of a fake's storage; untouched pages take no physical memory."""
        storage = fake.untyped_storage()
        if storage._cdata not in self._storages:
            (count,) = self._in_call((storage.nbytes(),))
            memory = torch.zeros(count, dtype=torch.uint8, device=self._device or fake.device)
            self._storages[storage._cdata] = memory.untyped_storage()
        return self._storages[storage._cdata]

    def _in_call(self, sizes: tuple[Any, ...]) -> tuple[int, ...]:
        """Return sizes with the values of the traced call."""
        numbers = self._sizes
        return tuple(
            int(numbers.in_call(size)) if numbers is not None and isinstance(size, torch.SymInt) else size
            for size in sizes
        )
