"""A pytest plug-in that runs the tests of Triton kernels on the GPU: tensors are made there, and nothing interprets."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # Triton reads it when it is imported

import torch

from tests.executors.triton import closeness


def on_gpu(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function, which draws on a CPU, with its result on the GPU."""

    def drawn(*arguments: Any, **options: Any) -> torch.Tensor:
        with torch.device("cpu"):
            result = draw(*arguments, **options)
        return result.cuda()

    return drawn


closeness.draw = on_gpu(closeness.draw)
closeness.draw_integers = on_gpu(closeness.draw_integers)
torch.set_default_device("cuda")
