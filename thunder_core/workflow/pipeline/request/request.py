"""The user's request to the pipeline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options import option
from thunder_core.foundation.options.duration import parse_duration
from thunder_core.foundation.options.left_out import parse_left_out
from thunder_core.foundation.options.target import parse_target
from thunder_core.foundation.options.whole_number import is_whole_number
from thunder_core.workflow.models.inputs.data_file import require_data_file, require_metric
from thunder_core.workflow.models.request.names import is_generation
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.mesh import axes_in, require_axes
from thunder_core.workflow.pipeline.request.part_names import (
    require_executor_name,
    require_recipe_name,
    require_transform_name,
)
from thunder_core.workflow.pipeline.request.ranges import SizeRange, ranges_in, require_ranges

if TYPE_CHECKING:
    from thunder_core.passes.recipe import Recipe


COMPILERS = ("jit", "thunderfx")
MAX_ROUNDS = 1_000_000  # more would take days even for the smallest model
INPUTS = 3  # the default number of inputs to validate on
DEFAULT_LENGTH = "128, or the model's maximum if that is less"


def require_one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise `BadOption` for a value that is not among the choices."""
    if value not in choices:
        raise BadOption(f"{option} is {value!r}", fix=f"use {' or '.join(filter(None, choices))}")


def require_calibration(option: str, value: str) -> None:
    """Raise `BadOption` for a number of inputs below 1, and the errors of `require_data_file` for a file."""
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdecimal():
        if not is_whole_number(value) or int(value) < 1:
            raise BadOption(
                f"{option} is {value:.80}", fix=f"set {option} to a number of 1 or more, or to a file of samples"
            )
    elif value:
        require_data_file(option, Path(value))


def require_compiler(option: str, name: str) -> None:
    """Raise `BadOption` for an unknown compiler."""
    if name not in COMPILERS:
        raise BadOption(f"{option} is {name!r}", fix=f"use one of: {', '.join(COMPILERS)}")


def require_threads(option: str, count: int) -> None:
    """Raise `BadOption` for fewer than 1 thread, or more threads than the machine has processors."""
    processors = os.cpu_count() or 1
    if not 1 <= count <= processors:
        fix = f"set {option} to a number from 1 to {processors}, the processors of this machine"
        raise BadOption(f"{option} is {count}", fix=fix)


@dataclass(frozen=True)
class Request:
    """One optimization: a model, a recipe with its options, the sizes of the inputs, and the destination.

    A field that is defined by `option` is also a command-line option and a key of a settings file.

    - `model`: if `model.model` and `model.sample` are None, the recipe's own sample is used.
    - `out`: None is a new folder in the working directory, named after the model and the recipe.
    - `seq`: None is 128 or the length of the recipe, or the model's maximum if that is less; with a cache, it is 1.
    - `runs` and `warmup`: the rounds of the benchmark. `inputs`: the number of inputs of the validation.
    - `include_weights`: copy the model's weights into the artifact, which then needs no checkpoint.
    - `target`: compile for a GPU of this architecture (`sm_90`), which this machine may lack. Nothing runs, and
      `thunder validate` validates on the GPU.
    - `sign_key`: the file of a private key to sign the artifact with.
    - `input`: a file of real inputs, which are traced, validated and measured instead of random inputs.
    - `evaluate`: a file of real samples for a metric of eager PyTorch and the optimized model. `metric`: None is the
      task's metric.
    - `require_speedup`: write no artifact unless its speed-up over eager is shown to be at least this number.
    - `allow_non_finite`: accept NaN, infinite or all-zero outputs from eager PyTorch.
    - `cache`: None is a call without a cache. `height` and `width`: None is the size in the model's config.
    - `dynamic`: the ranges of sizes that the artifact must support, by the recipe's names of dimensions. The model is
      traced at `batch`, `seq` and so on, or at a size within the range, and validated and measured at its ends, too.
    - `mesh`: the axes of the mesh of ranks, for a combination of recipes for several ranks; the outermost axis is
      first.
    - `train`: optimize a training step: train mode, with labels, forward, loss and backward.

    With the task `generate`, `generate` of the transformers library is optimized, for at most `batch` prompts of at
    most `prompt_length` tokens, and `new_tokens` new tokens. The default of `batch` is 8 for this task, and otherwise
    1.
    """

    recipe: str | type[Recipe] | Recipe | tuple[object, ...] = option(
        "default",
        metavar="NAME",
        short="r",
        repeats=True,
        help="Name of a recipe (`thunder recipes` lists them), `auto` to select one, or a file: `recipe.py` or"
        " `recipe.py:Name`. Repeat to combine recipes; their order does not matter",
        default_text="the recipe named default",
        completion="recipes",
        check=lambda _, recipe: require_recipe_name(recipe) if isinstance(recipe, str) else None,
    )
    model: ModelRequest = field(default_factory=ModelRequest)
    options: Mapping[str, object] = option(
        factory=dict,
        kind=dict,
        name="set",
        metavar="KEY=VALUE",
        repeats=True,
        help="Set an option of the recipe, such as `embeddings=false`. `thunder recipes show NAME` lists the options. "
        "May be repeated.",
    )
    add_transform: tuple[str, ...] = option(
        (),
        metavar="NAME",
        repeats=True,
        help="Transform to add to the recipe, with its options as a Python call, such as "
        "`Autocast(dtype=torch.float16)`. May be repeated.",
        check=lambda _, text: require_transform_name(text),
    )
    add_executor: tuple[str, ...] = option(
        (),
        metavar="NAME",
        repeats=True,
        help="Executor to add to the recipe, by name or by file: `executor.py` or `executor.py:NAME`. The executor "
        "declares which other executors come before and after it. May be repeated.",
        completion="executors",
        check=lambda _, name: require_executor_name(name),
    )
    without: tuple[str, ...] = option(
        (),
        metavar="NAME[:MODULE]",
        repeats=True,
        help="Transform or executor to remove from the recipe. `EXECUTOR:MODULE`, such as "
        "`inductor:layers.3.mlp`, disables an executor in a module and its submodules. `*` is a wildcard."
        " May be repeated.",
        completion="executors",
        check=lambda _, text: parse_left_out(text),
    )
    compiler: str = option(
        "",
        metavar="NAME",
        help="Front end that traces the model: `jit`, or `thunderfx` (TorchDynamo; its programs cannot be saved in an "
        "artifact)",
        default_text="the recipe's",
        check=lambda option, name: require_compiler(option, name) if name else None,
    )
    trust_recipe: bool = option(
        False,
        bool,
        help="Print the recipe in the model's folder (`thunder_recipe.py`), run it, and combine it with the "
        "selected recipes. Without this option, the recipe in the model's folder is ignored.",
    )
    out: Path | None = option(
        None,
        Path,
        metavar="DIR",
        short="o",
        help="Folder to write the artifact to",
        default_text="./MODEL-RECIPE.thunder",
    )
    force: bool = option(False, bool, help="Replace an existing artifact at --out.")
    force_slow: bool = option(
        False,
        bool,
        help="Accept a combination of recipes that is known to be slower than eager PyTorch on this processor.",
    )
    strict: bool = option(
        False,
        bool,
        help="Fail instead of skipping parts of the recipe that cannot run on this machine or with --dynamic.",
    )
    batch: int | None = option(
        None,
        int,
        metavar="N",
        help="Number of samples in an input; for `--task generate`, the largest number of prompts",
        default_text="1, or 8 prompts",
        minimum=1,
    )
    seq: int | None = option(
        None,
        int,
        metavar="N",
        help="Sequence length in tokens",
        default_text="128 or the recipe's length, or the model's maximum if that is less",
        minimum=1,
    )
    cache: int | None = option(
        None,
        int,
        metavar="N",
        help="Length of a pre-filled KV cache passed to each call. The default of --seq is then 1.",
        default_text="no cache",
        minimum=0,
    )
    prompt_length: int | None = option(
        None,
        int,
        metavar="N",
        help="Maximum prompt length in tokens, for `--task generate`",
        default_text=DEFAULT_LENGTH,
        minimum=1,
    )
    new_tokens: int | None = option(
        None,
        int,
        metavar="N",
        help="Maximum number of generated tokens, for `--task generate`",
        default_text=DEFAULT_LENGTH,
        minimum=1,
    )
    height: int | None = option(
        None, int, metavar="N", help="Image height in pixels", default_text="the model's", minimum=1
    )
    width: int | None = option(
        None, int, metavar="N", help="Image width in pixels", default_text="the model's", minimum=1
    )
    dynamic: Mapping[str, SizeRange] = option(
        factory=dict,
        kind=dict,
        metavar="NAME=A:B",
        repeats=True,
        help="Dimension that varies between A and B at run time, such as seq=1:8192 or batch=1:16. May be repeated.",
        parse=ranges_in,
        check=require_ranges,
    )
    mesh: Mapping[str, int] = option(
        factory=dict,
        kind=dict,
        metavar="NAME=N",
        repeats=True,
        help="Axis of the device mesh and its number of ranks, for combined parallel recipes. Give the outermost axis "
        "first: the axis of `ddp`, then of `fsdp`, then of `tensor-parallel`.",
        parse=axes_in,
        check=require_axes,
    )
    runs: int = option(
        30,
        int,
        metavar="N",
        help="Number of timed runs of each contender; --task generate makes at most 6",
        minimum=2,
        maximum=MAX_ROUNDS,
    )
    warmup: int = option(
        5,
        int,
        metavar="N",
        help="Number of warm-up runs (not timed); --task generate makes at most 1",
        minimum=0,
        maximum=MAX_ROUNDS,
    )
    inputs: int = option(
        INPUTS,
        int,
        name="validate-inputs",
        former_name="inputs",
        metavar="N",
        help="Number of inputs to validate on",
        minimum=1,
        maximum=MAX_ROUNDS,
    )
    validate_budget: float | None = option(
        None,
        float,
        metavar="SECONDS",
        minimum=0,
        help="Time limit for validation in seconds. The report lists skipped inputs",
        default_text="the time of 5 eager calls for each input, at least 30 s",
    )
    benchmark_budget: float = option(
        30.0,
        float,
        metavar="SECONDS",
        minimum=0,
        help="Time limit for the benchmark of one input size, in seconds. Slow calls get fewer runs",
        default_text="30",
    )
    tune: float | None = option(
        None,
        str,
        metavar="TIME",
        help="Time limit for comparing the kernels of each compiled program, such as 10s or 1m; 0s compares none. "
        "The kernel cache keeps the measurements",
        default_text="1s",
        parse=parse_duration,
    )
    threads: int | None = option(
        None,
        int,
        metavar="N",
        help="Number of CPU threads for PyTorch; the kernels are compiled for this number",
        default_text="PyTorch's choice",
        minimum=1,
        check=require_threads,
    )
    validate: bool = option(
        True,
        bool,
        name="no-validate",
        negative=True,
        help="Skip validation against eager PyTorch. The report records this.",
    )
    include_weights: bool = option(
        False, bool, help="Copy the weights into the artifact, which then needs no checkpoint."
    )
    benchmark: bool = option(True, bool, name="no-benchmark", negative=True, help="Skip the benchmark.")
    target: str = option(
        "",
        metavar="ARCH",
        help="Cross-compile for a GPU architecture, such as sm_90, even if this machine lacks it. Nothing is"
        " run; validate later with `thunder validate`.",
        check=lambda _, name: parse_target(name) if name else None,
        parse=lambda _, name: parse_target(name),
    )
    train: bool = option(False, bool, help="Compile a training step (forward, loss and backward) instead of inference.")
    allow_non_finite: bool = option(
        False,
        bool,
        help="Accept NaN, infinite or all-zero outputs from eager PyTorch. The report records this.",
    )
    sign_key: Path | None = option(
        None, Path, metavar="FILE", help="Private key to sign the artifact with (see `thunder keys new`)."
    )
    require_speedup: float | None = option(
        None,
        float,
        metavar="X",
        help="Exit with status 5, and write no artifact, unless the speed-up over eager PyTorch is at least X. The "
        "whole 95% confidence interval must be at least X, and the measurement must not be unstable.",
    )
    input: Path | None = option(
        None,
        Path,
        metavar="FILE",
        help="File of inputs to use instead of random inputs: .safetensors, .npz or .jsonl.",
        check=require_data_file,
    )
    evaluate: Path | None = option(
        None,
        Path,
        name="eval",
        metavar="FILE",
        help="File of labelled samples. Report a task metric of eager PyTorch and of the optimized model.",
        check=require_data_file,
    )
    metric: str | None = option(
        None,
        metavar="NAME",
        help="Metric for --eval: accuracy, perplexity, mse or cosine",
        default_text="the task's metric",
        check=lambda _, name: require_metric(name),
    )

    calibrate: str = option(
        "",
        metavar="FILE|N",
        help="Calibration data for 4-bit recipes: a file of samples, or the number of random inputs.",
        check=require_calibration,
    )
    skip_layers: str = option(
        "",
        metavar="auto",
        help="`auto` keeps the layers with the largest quantization errors in full precision, as many as the recipe's"
        " quality bound requires.",
        check=lambda option, value: require_one_of(option, value, ("", "auto")),
    )

    @property
    def generates(self) -> bool:
        """Whether generation is optimized instead of single calls."""
        return is_generation(self.model.task)
