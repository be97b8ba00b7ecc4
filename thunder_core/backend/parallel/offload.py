"""Offload of the shards of parameters to the memory of the CPU, as with `CPUOffloadPolicy` of PyTorch's `fully_shard`.

A program copies a shard to the GPU before it gathers the parameter, and copies the shard of a reduced gradient back to
the CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thunder_core.backend.parallel.emitter import Emitter
from thunder_core.backend.parallel.operators import operator
from thunder_core.foundation.errors import BadOption
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol

CPU = torch.device("cpu")
DEVICES = "_compute_devices"  # the attribute that maps names of offloaded parameters to the devices that compute
# An offload policy as users write it; the group is the value of `pin_memory`.
POLICY = re.compile(r"CPUOffloadPolicy(?:\(\s*\)|\(\s*(?:pin_memory\s*=\s*)?(True|False)\s*\))?")


@dataclass(frozen=True)
class Offload:
    """The offload of shards to the CPU. Copies from and to pinned memory (`pin_memory`) do not block the host."""

    pin_memory: bool = True

    def store(self, shard: Tensor) -> Tensor:
        """Return a copy of a shard in the memory of the CPU."""
        return torch.empty(shard.shape, dtype=shard.dtype, pin_memory=self.pin_memory).copy_(shard)


def parse_offload_policy(text: str) -> Offload | None:
    """Return the offload of a policy, such as `CPUOffloadPolicy(pin_memory=False)`; None for `OffloadPolicy`.

    Raises `BadOption` for other policies.
    """
    if text in ("", "OffloadPolicy", "OffloadPolicy()"):
        return None
    match = POLICY.fullmatch(text)
    if match is None:
        raise BadOption(
            f"offload_policy is {text!r}, which is not a policy of PyTorch",
            fix="use CPUOffloadPolicy, or CPUOffloadPolicy(pin_memory=False)",
        )
    return Offload(match[1] != "False")


def is_offloaded(device: torch.device) -> bool:
    """Whether shards on this device are copied to the CPU: only shards on the CPU are not."""
    return device.type != "cpu"


@operator("(Tensor(a)[] copies, Device device) -> Tensor(a)[]")
def finish_copies(copies: list[Tensor], device: torch.device) -> list[Tensor]:
    """Wait until copies from a device to the memory of the CPU are complete, and return the copies."""
    if device.type not in ("cpu", "meta") and not copies[0].is_meta:
        torch.accelerator.current_stream(device).synchronize()
    return copies


def copy_to(
    emitter: Emitter,
    tensor: TensorProxy,
    device: torch.device,
    *,
    non_blocking: bool,
    at: BoundSymbol,
    output: object = None,
) -> BoundSymbol:
    """Return a bound symbol that copies a tensor to a device, and that is `ordered`, so that no region contains it.

    `output` is the result of the copy, or None for a new proxy. For `at`, see `Emitter.call`.
    """
    result = output or replace(tensor, name=emitter.next_name(at), device=device, requires_grad=False)
    options = {"device": device, "non_blocking": non_blocking}
    return emitter.call(torch.ops.aten._to_copy.default, tensor, at=at, output=result, ordered=True, **options)
