"""The transforms whose programs belong to the ranks of a process group."""

from __future__ import annotations

from thunder_core.passes.transforms.ddp import AverageGradients
from thunder_core.passes.transforms.fsdp import ShardParameters
from thunder_core.passes.transforms.tensor_parallel import ParallelizeLinears

ParallelTransform = AverageGradients | ShardParameters | ParallelizeLinears
