"""The process state that decides how operations compute, for the guards of a trace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

from thunder_core.tracing.capture.torch_facts.autocast import autocast_devices
from thunder_core.tracing.capture.torch_facts.settings import device_contexts

STATE_QUERIES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("torch.is_grad_enabled()", torch.is_grad_enabled),
    ("torch.is_inference_mode_enabled()", torch.is_inference_mode_enabled),
    ("torch.get_default_dtype()", torch.get_default_dtype),
    ("torch.are_deterministic_algorithms_enabled()", torch.are_deterministic_algorithms_enabled),
    ("torch._C._len_torch_function_stack()", torch._C._len_torch_function_stack),
    ("torch.autograd.forward_ad._current_level", lambda: forward_ad._current_level),
)

DEFAULT_DEVICE = "getattr(torch._C._get_function_stack_at({}), 'device', None)"


def process_state(device: torch.device | None = None) -> dict[str, object]:
    """Return the process state that decides how operations compute: queries in Python, and their answers.

    The state includes default devices, which are torch function modes. `device` is the device that the program will run
    on; None for the devices of this machine.
    """
    devices = autocast_devices(elsewhere=device is not None)
    state: dict[str, object] = {query: ask() for query, ask in STATE_QUERIES}
    state |= {DEFAULT_DEVICE.format(index): context.device for index, context in device_contexts().items()}
    state |= {f'torch.is_autocast_enabled("{device}")': torch.is_autocast_enabled(device) for device in devices}
    active = [device for device in devices if torch.is_autocast_enabled(device)]
    return state | {f'torch.get_autocast_dtype("{device}")': torch.get_autocast_dtype(device) for device in active}
