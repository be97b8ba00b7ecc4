"""A stand-in for the recording of CUDA graphs on the CPU, and what the tests of graphs share."""

from __future__ import annotations

import torch

import thunder_core as thunder
from thunder_executors.cudagraphs import CudaGraphs


class StandIn:
    """A stand-in that records a function: a replay calls the function and writes to the memory of the first results.

    Writes during the recording are undone, because recording runs nothing. Autograd does not see the writes of a
    replay.
    """

    def __init__(self):
        self.records = self.replays = 0
        self.error = ""
        self.tensors = ()
        self.memory = 1 << 40

    def device_stream(self, tensors):
        self.tensors = tensors
        return 0, 0

    def memory_of(self, device):
        return self.memory

    def record(self, function, place):
        if self.error:
            raise RuntimeError(self.error)
        self.records += 1
        tensors = self.tensors
        storages = [tensor.untyped_storage() for tensor in tensors]
        before = [storage.clone() for storage in storages]
        with torch.autograd._unsafe_preserve_version_counter(tensors):
            results = function()
        for storage, old in zip(storages, before, strict=True):
            storage.copy_(old)

        def replay():
            self.replays += 1
            with torch.autograd._unsafe_preserve_version_counter(tensors):
                again = function()
            for old, new in zip(results, again, strict=True):
                old.untyped_storage().copy_(new.untyped_storage())

        return replay, results


class OnCpu(CudaGraphs):
    """The wrapper, for lines on the CPU."""

    def wraps(self, bsym):
        return True


def graphs_in(compiled):
    return [line for line in thunder.last_traces(compiled)[-1].bound_symbols if line.executor == "cudagraphs"]
