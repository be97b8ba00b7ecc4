"""The request that a user makes of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from thunder_core.errors import BadOption
from thunder_core.models.data_file import require_data_file, require_metric
from thunder_core.models.names import is_generation
from thunder_core.models.request import ModelRequest
from thunder_core.options import option
from thunder_core.options.left_out import parse_left_out
from thunder_core.options.target import parse_target
from thunder_core.pipeline.part_names import require_executor_name, require_recipe_name, require_transform_name
from thunder_core.pipeline.ranges import SizeRange, ranges_in, require_ranges

if TYPE_CHECKING:
    from thunder_core.recipe import Recipe


COMPILERS = ("jit", "thunderfx")


def require_one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    """Raise `BadOption` for a value that is none of those that are known."""
    if value not in known:
        raise BadOption(f"{option} is {value!r}", fix=f"use {' or '.join(filter(None, known))}")


def require_calibration(option: str, value: str) -> None:
    """Raise `BadOption` for a number of inputs below one, and what `require_data_file` raises for a file."""
    if value.lstrip("-").isdigit():
        if int(value) < 1:
            raise BadOption(f"{option} is {value}", fix=f"give {option} a number of 1 or more, or a file of samples")
    elif value:
        require_data_file(option, Path(value))


def require_compiler(option: str, name: str) -> None:
    """Raise `BadOption` for the name of no compiler."""
    if name not in COMPILERS:
        raise BadOption(f"{option} is {name!r}", fix=f"use one of: {', '.join(COMPILERS)}")


@dataclass(frozen=True)
class Request:
    """One optimization: a model, a recipe with its options, the sizes of the inputs, and where the result goes.

    A field that is made by `option` is an option of the command line and a key of a settings file by that alone.

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
    `cache` None is a call without a cache; with one, `seq` None is 1. `height` and `width` None are what the model's
    config names.
    `dynamic` has the ranges of sizes that the artifact is to serve, by the names that the recipe gives to dimensions;
    it is traced at `batch`, `seq` and so on, or where these are within the range, and validated and measured at its
    ends, too.
    With the task `generate` what is optimized is `generate` of the transformers library, for batches of at most `batch`
    prompts (None is 8, and else 1), each of at most `prompt_length` tokens, and `new_tokens` behind them.
    `train` makes it of a step of training: the model in train mode, with labels, forward, loss and backward.
    """

    recipe: str | type[Recipe] | Recipe | tuple[object, ...] = option(
        "default",
        metavar="NAME",
        short="r",
        repeats=True,
        help="The recipe; `thunder recipes` lists them, and `auto` chooses one. Several are added to each other, in "
        "whatever order. A file of your own is named by its path, `recipe.py` or `recipe.py:Name`",
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
        help="An option of the recipe; may be repeated.",
    )
    add_transform: tuple[str, ...] = option(
        (),
        metavar="NAME",
        repeats=True,
        help="A transform to add to the recipe, with its options as Python writes them, such as "
        "`Autocast(dtype=torch.float16)`; may be repeated.",
        check=lambda _, text: require_transform_name(text),
    )
    add_executor: tuple[str, ...] = option(
        (),
        metavar="NAME",
        repeats=True,
        help="An executor to add to the recipe, by its name or its file, executor.py or executor.py:NAME; its traits "
        "decide when it may claim. May be repeated.",
        completion="executors",
        check=lambda _, name: require_executor_name(name),
    )
    without: tuple[str, ...] = option(
        (),
        metavar="NAME[:MODULE]",
        repeats=True,
        help="A transform or an executor to leave out of the recipe, or an executor to leave out of one module and all "
        "that it contains, such as `inductor:layers.3.mlp`; `*` stands for anything. May be repeated.",
        completion="executors",
        check=lambda _, text: parse_left_out(text),
    )
    compiler: str = option(
        "",
        metavar="NAME",
        help="Who acquires the program: jit, or thunderfx (PyTorch's Dynamo), whose programs lie in no artifact",
        default_text="the recipe's",
        check=lambda option, name: require_compiler(option, name) if name else None,
    )
    trust_recipe: bool = option(
        False,
        bool,
        help="Run the recipe that the model's folder ships (`thunder_recipe.py`), and add it to the others; it is "
        "shown first. Without this it is not run.",
    )
    out: Path | None = option(
        None,
        Path,
        metavar="DIR",
        short="o",
        help="Where the artifact goes",
        default_text="./MODEL-RECIPE.thunder",
    )
    force: bool = option(False, bool, help="Replace the artifact that is at --out.")
    force_slow: bool = option(
        False, bool, help="Add recipes to others that are slower than eager PyTorch on this processor."
    )
    strict: bool = option(False, bool, help="Fail where this machine lacks a part of the recipe.")
    batch: int | None = option(
        None,
        int,
        metavar="N",
        help="Samples in an input; of `--task generate`, prompts in the largest batch",
        default_text="1, or 8 prompts",
        least=1,
    )
    seq: int | None = option(None, int, metavar="N", help="Tokens in a sample", default_text="128", least=1)
    cache: int | None = option(
        None,
        int,
        metavar="N",
        help="Tokens whose keys and values a call is given in a cache; sets --seq to 1.",
        default_text="no cache",
        least=0,
    )
    prompt_length: int | None = option(
        None,
        int,
        metavar="N",
        help="Tokens of a prompt, at most; for `--task generate`",
        default_text="128",
        least=1,
    )
    new_tokens: int | None = option(
        None,
        int,
        metavar="N",
        help="Tokens that follow a prompt, at most; for `--task generate`",
        default_text="128",
        least=1,
    )
    height: int | None = option(
        None, int, metavar="N", help="Pixels of an image from top to bottom", default_text="the model's", least=1
    )
    width: int | None = option(
        None, int, metavar="N", help="Pixels of an image from left to right", default_text="the model's", least=1
    )
    dynamic: Mapping[str, SizeRange] = option(
        factory=dict,
        kind=dict,
        metavar="NAME=A:B",
        repeats=True,
        help="A size that differs from call to call, from A to B, such as seq=1:8192 or batch=1:16; may be repeated.",
        parse=ranges_in,
        check=require_ranges,
    )
    runs: int = option(30, int, metavar="N", help="Rounds of the benchmark that count", least=2)
    warmup: int = option(5, int, metavar="N", help="Rounds of the benchmark that do not", least=0)
    inputs: int = option(3, int, metavar="N", help="How many inputs are validated on", least=1)
    validate_budget: float | None = option(
        None,
        float,
        metavar="SECONDS",
        least=0,
        help="Seconds that validation may take; inputs that it leaves out are reported",
        default_text="the time of 5 eager calls for each input, at least 30",
    )
    benchmark_budget: float = option(
        30.0,
        float,
        metavar="SECONDS",
        least=0,
        help="Seconds that the benchmark of one size may take; slow calls get fewer rounds",
        default_text="30",
    )
    validate: bool = option(
        True,
        bool,
        name="no-validate",
        negative=True,
        help="Publish without comparing with eager; the report says so.",
    )
    include_weights: bool = option(False, bool, help="Copy the weights too: the artifact needs no checkpoint.")
    benchmark: bool = option(True, bool, name="no-benchmark", negative=True, help="Do not measure.")
    target: str = option(
        "",
        metavar="ARCH",
        help="Make it for a GPU that need not be here, such as sm_90; nothing is run, and validation stays pending.",
        check=lambda _, name: parse_target(name) if name else None,
    )
    train: bool = option(False, bool, help="A step of training: forward, loss and backward.")
    allow_non_finite: bool = option(
        False,
        bool,
        help="Accept NaN, infinities and nothing but zeros in what eager PyTorch gives; the report says so.",
    )
    sign_key: Path | None = option(
        None, Path, metavar="FILE", help="Sign the artifact with this private key (`thunder keys new`)."
    )
    require_speedup: float | None = option(
        None, float, metavar="X", help="Exit with 5 unless the whole interval of the speed-up is X or more."
    )
    input: Path | None = option(
        None,
        Path,
        metavar="FILE",
        help="Real inputs in place of drawn ones: .safetensors, .npz or .jsonl.",
        check=require_data_file,
    )
    evaluate: Path | None = option(
        None,
        Path,
        name="eval",
        metavar="FILE",
        help="Real samples, by which the model is judged before and after.",
        check=require_data_file,
    )
    metric: str | None = option(
        None,
        metavar="NAME",
        help="accuracy, perplexity or cosine",
        default_text="the one of the task",
        check=lambda _, name: require_metric(name),
    )

    calibrate: str = option(
        "",
        metavar="FILE|N",
        help="For recipes that quantize to 4 bits: real samples, or the number of drawn inputs, by which weights are "
        "rounded.",
        check=require_calibration,
    )
    skip_layers: str = option(
        "",
        metavar="auto",
        help="For recipes that quantize: leave out the layers that lose most, until the bound holds.",
        check=lambda option, value: require_one_of(option, value, ("", "auto")),
    )

    @property
    def generates(self) -> bool:
        """Whether it is generation that is optimized, and not single calls."""
        return is_generation(self.model.task)
