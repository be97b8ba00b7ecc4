"""Compile a first program by Thunder and by Dynamo, in the zoo's server, which then forks a process for each type.

The time of a first call then contains no one-time costs of a process, such as imports and tables of operators.
"""

from __future__ import annotations

import torch

import tests.zoo.examine  # noqa: F401 - imports the modules that all examinations need
import thunder_core as thunder


def warm_up() -> None:
    """Compile a small module by Thunder and by Dynamo."""
    torch.set_num_threads(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
    with torch.no_grad():
        thunder.jit(module, executors=("torch",))(torch.ones(2, 4))
        torch.compile(module, backend="eager", dynamic=False)(torch.ones(2, 4))


warm_up()
