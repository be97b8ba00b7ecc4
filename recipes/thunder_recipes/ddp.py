"""Data parallel training: each rank has the whole model, and gradients are averaged in buckets."""

from __future__ import annotations

from pydantic import Field

from thunder_core.passes.recipe import RecipeOptions, Transform
from thunder_core.passes.transforms.ddp import AverageGradients
from thunder_recipes.default import Default


class DDP(Default):
    """Data parallel training: each rank has the whole model, and gradients are averaged in buckets.

    The options have the names of `torch.nn.parallel.DistributedDataParallel`. Use this recipe in a script that
    `torchrun` starts: `thunder_core.compile(model, ["hf-llama3", "ddp"])`.
    """

    class Options(RecipeOptions):
        """The options that `--set name=value` sets."""

        bucket_cap_mb: float = Field(25.0, gt=0, description="MiB of gradients that are reduced together")
        broadcast_buffers: bool = Field(True, description="broadcast the buffers of the first rank at each call")
        process_group: str = Field("", description="name of the process group; empty means the default group")

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transform that averages gradients, with the options."""
        return (*super().setup_transforms(), AverageGradients(**self.chosen.model_dump()))
