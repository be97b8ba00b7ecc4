"""What a user asks of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from thunder_core.models.request import ModelRequest

if TYPE_CHECKING:
    from thunder_core.recipe import Recipe


@dataclass(frozen=True)
class Request:
    """One optimization: a model, a recipe with its options, the sizes of the inputs, and where the result goes.

    `model.model` and `model.sample` both None ask for the recipe's own sample. `out` None asks for a new folder in
    the working folder, named for the model and the recipe. `seq` None is 128, or what the model was built for if that
    is less. `runs` and `warmup` are rounds of the benchmark, `inputs` the number of inputs of the validation.
    `include_weights` copies the model's weights into the artifact, which then needs no checkpoint.
    `target` makes the program for a GPU of that architecture (`sm_90`), which need not be here: then nothing runs, and
    validation is left to `thunder validate` on the GPU.
    `sign_key` is the file of a private key that the artifact is signed with.
    `input` is a file of real inputs, which are traced, validated and measured in place of drawn ones; `evaluate` one of
    real samples, by which the model is judged before and after, by the metric that fits its task or is named.
    `require_speedup` refuses to write an artifact whose speed-up over eager is not shown to be at least that.
    `allow_non_finite` accepts NaN, infinities and nothing but zeros in what eager PyTorch gives.
    `train` makes it of a step of training: the model in train mode, with labels, forward, loss and backward.
    """

    recipe: str | type[Recipe] | Recipe = "default"
    model: ModelRequest = field(default_factory=ModelRequest)
    options: Mapping[str, object] = field(default_factory=dict)
    out: Path | None = None
    force: bool = False
    strict: bool = False
    batch: int = 1
    seq: int | None = None
    runs: int = 30
    warmup: int = 5
    inputs: int = 3
    validate: bool = True
    include_weights: bool = False
    benchmark: bool = True
    target: str = ""
    train: bool = False
    allow_non_finite: bool = False
    sign_key: Path | None = None
    require_speedup: float | None = None
    input: Path | None = None
    evaluate: Path | None = None
    metric: str | None = None
