"""Preserve state during a validation: the parameters and buffers of the model, and the generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from thunder_core.foundation.errors import NotComparable
from thunder_core.workflow.validation.model_copies import is_identical
from thunder_core.workflow.validation.wide_weights import constant_buffers


def devices_of(model: torch.nn.Module) -> tuple[torch.device, ...]:
    """Return the GPUs of a model's parameters."""
    return tuple({tensor.device for tensor in model.parameters() if tensor.is_cuda})


@contextmanager
def preserve_random_state(model: torch.nn.Module) -> Iterator[None]:
    """Restore the generators of Python, NumPy and PyTorch after the block, on the CPU and on the model's GPUs."""
    state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices_of(model)):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)


@contextmanager
def require_unchanged_parameters(model: torch.nn.Module) -> Iterator[None]:
    """Raise `NotComparable` if the block writes to the model's parameters, which the copies share."""
    versions = {name: parameter._version for name, parameter in model.named_parameters()}
    yield
    written = [name for name, parameter in model.named_parameters() if parameter._version != versions[name]]
    if written:
        raise NotComparable(
            f"a call of the model writes to its parameter `{written[0]}`, so a second call computes a different result",
            fix="make a buffer of each tensor that a call updates: self.register_buffer(...)",
        )


@contextmanager
def preserve_buffers(model: torch.nn.Module, copies: Mapping[int, torch.Tensor] | None = None) -> Iterator[None]:
    """Restore the values and identities of the model's buffers after the block.

    `copies` are copies of buffers by the ids of the buffers; other buffers are copied.
    """
    constant, copies = constant_buffers(model), copies or {}
    owners = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if id(buffer) not in constant
    ]
    values = [_copy_of(buffer, copies.get(id(buffer))) for _, _, buffer in owners]
    try:
        yield
    finally:
        for (module, name, buffer), value in zip(owners, values, strict=True):
            if not is_identical(buffer, value):
                buffer.copy_(value)
            module._buffers[name] = buffer


def _copy_of(buffer: torch.Tensor, copied: torch.Tensor | None) -> torch.Tensor:
    return copied if copied is not None and is_identical(buffer, copied) else buffer.clone()
