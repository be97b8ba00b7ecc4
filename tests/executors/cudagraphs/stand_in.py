"""A stand-in for the recording of CUDA graphs on the CPU, and what the tests of graphs share."""

from __future__ import annotations

from functools import partial
from weakref import ref

import torch

import thunder_core as thunder
from thunder_executors.cudagraphs import CudaGraphs


class StandIn:
    """A stand-in that records a function: a replay calls the function and writes to the memory of the first results.

    A replay reads the addresses of the recorded inputs, and keeps no tensor alive. Writes during the recording are
    undone, because recording runs nothing. Autograd does not see the writes of a replay. A replay also overwrites the
    results of the other functions that share the memory pool, because they may be where its temporaries are.
    """

    def __init__(self):
        self.records = self.replays = self.own_pools = 0
        self.error = ""
        self.tensors = ()
        self.memory = 1 << 40
        self.pool = 0  # the bytes of each graph's own pool
        self.shared = []

    def device_stream(self, tensors):
        self.tensors = [ref(tensor) for tensor in tensors]
        return 0, 0

    def memory_of(self, device):
        return self.memory

    def pool_nbytes(self, replay):
        return self.pool

    def record(self, function, place, has_own_pool=False):
        if self.error:
            raise RuntimeError(self.error)
        self.records += 1
        self.own_pools += has_own_pool
        function = partial(function.func, *map(at_address, function.args))
        storages = [tensor().untyped_storage() for tensor in self.tensors]
        before = [storage.clone() for storage in storages]
        results = function()
        for storage, old in zip(storages, before, strict=True):
            storage.copy_(old)

        given = {tensor.untyped_storage().data_ptr() for tensor in function.args if isinstance(tensor, torch.Tensor)}
        made = [storage for result in results if (storage := result.untyped_storage()).data_ptr() not in given]
        if not has_own_pool:
            self.shared.append(made)

        def replay():
            self.replays += 1
            for others in self.shared:
                for storage in others if others is not made else ():
                    storage.fill_(0xFF)
            again = function()
            for old, new in zip(results, again, strict=True):
                old.untyped_storage().copy_(new.untyped_storage())

        return replay, results


def at_address(value):
    """Return a tensor at the same address that does not keep the memory alive; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    memory = value.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), value.device, memory.nbytes())
    empty = torch.empty(0, dtype=value.dtype, device=value.device)
    return empty.set_(storage, value.storage_offset(), value.size(), value.stride())


class OnCpu(CudaGraphs):
    """The wrapper, for lines on the CPU."""

    def wraps(self, bsym):
        return True


def graphs_in(compiled):
    return [line for line in thunder.last_traces(compiled)[-1].bound_symbols if line.executor == "cudagraphs"]
