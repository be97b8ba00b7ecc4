"""Tensor parallelism: each rank has some columns or rows of the weights of linear layers."""

from __future__ import annotations

from pydantic import Field

from thunder_core.passes.recipe import RecipeOptions, Transform
from thunder_core.passes.transforms.tensor_parallel import ParallelizeLinears
from thunder_recipes.default import Default


class TensorParallel(Default):
    """Tensor parallelism: each rank has some columns or rows of the weights of linear layers.

    The options and styles have the names of `torch.distributed.tensor.parallel.parallelize_module`. All ranks must have
    the same inputs. Use this recipe in a script that `torchrun` starts:
    `thunder_core.compile(model, ["hf-llama3", "tensor-parallel"])`.
    """

    class Options(RecipeOptions):
        """The options that `--set name=value` sets."""

        parallelize_plan: str = Field("", description="styles of modules; empty means the plan of the model")
        process_group: str = Field("", description="name of the process group; empty means the default group")

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transform that divides linear layers among the ranks, with the options."""
        return (*super().setup_transforms(), ParallelizeLinears(**self.chosen.model_dump()))
