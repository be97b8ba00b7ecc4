"""Fully sharded training: each rank has some rows of each parameter, which are gathered where they are read."""

from __future__ import annotations

from pydantic import Field

from thunder_core.passes.recipe import RecipeOptions, Transform
from thunder_core.passes.transforms.fsdp import ShardParameters
from thunder_recipes.default import Default


class FSDP(Default):
    """Fully sharded training: each rank has some rows of each parameter, which are gathered where they are read.

    The options have the names of `torch.distributed.fsdp.fully_shard`. Use this recipe in a script that `torchrun`
    starts: `thunder_core.compile(model, ["hf-llama3", "fsdp"])`.
    """

    class Options(RecipeOptions):
        """The options that `--set name=value` sets."""

        reshard_after_forward: bool = Field(True, description="gather parameters again in the backward (ZeRO-3)")
        bucket_cap_mb: float = Field(25.0, gt=0, description="MiB of a layer that are gathered or reduced together")
        reduce_dtype: str = Field("", description="dtype in which gradients are reduced; empty means their dtype")
        max_in_flight_gb: float = Field(
            0.0,
            ge=0,
            description="largest GiB of gathered parameters and gradients at a time; 0 gathers one bucket ahead",
        )
        offload_policy: str = Field(
            "", description="CPUOffloadPolicy keeps shards in CPU memory; empty keeps them on the model's device"
        )
        process_group: str = Field("", description="name of the process group; empty means the default group")

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transform that shards parameters, with the options."""
        return (*super().setup_transforms(), ShardParameters(**self.chosen.model_dump()))
