"""The request for a model: the options that name a model and say how it is loaded, and their accepted values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options import option
from thunder_core.workflow.models.request.names import spelled_device, spelled_dtype, spelled_task

MODEL = "Model"  # the heading of these options in the help
LARGEST_SEED = 2**63 - 1  # below the limit of PyTorch's generators, so that larger seeds can be derived


PLAIN_OUTPUTS = ("dict", "tuple")  # outputs of plain tensors, which do not need the transformers library
OUTPUTS = (*PLAIN_OUTPUTS, "model")  # `model`: the output class of the transformers library
MERGE, KEEP = "merge", "keep"  # the values of --adapter


def require_outputs(option: str, name: str) -> None:
    """Raise `BadOption` for an unknown kind of outputs."""
    if name not in OUTPUTS:
        raise BadOption(f"{option} is {name!r:.80}", fix=f"use one of: {', '.join(OUTPUTS)}")


def require_adapter_mode(option: str, name: str) -> None:
    """Raise `BadOption` for an unknown value of the option `adapter`."""
    if name not in (MERGE, KEEP):
        raise BadOption(f"{option} is {name!r:.80}", fix=f"use one of: {MERGE}, {KEEP}")


@dataclass(frozen=True)
class SampleModel:
    """A small model with seeded weights: a class of the transformers library and its config's arguments."""

    architecture: str
    config: Mapping[str, object]


@dataclass(frozen=True)
class ModelRequest:
    """A model by folder, Hub name or sample, and how to load it.

    If `dtype` or `device` is None, the recipe that optimizes the model chooses it (`with_placement`). Without a recipe,
    the checkpoint determines the dtype, and the device is the CPU. With `train`, the model is loaded for training
    steps: an adapter is kept with trainable weights, and a diffusers denoiser gets its loss.
    """

    model: str | None = option(
        None,
        metavar="MODEL",
        help="A model folder in Hugging Face layout, a Hub name, or timm:ARCHITECTURE. Default: the recipe's small "
        "sample model.",
    )
    sample: SampleModel | None = None
    train: bool = False
    task: str | None = option(
        None,
        metavar="NAME",
        panel=MODEL,
        help="Task of the model, if the config does not state it: such as causal-lm, or the Hub's name "
        "text-generation. `generate` selects text generation by the model's `generate()` method.",
        completion="tasks",
        check=lambda _, name: spelled_task(name),
    )
    dtype: str | None = option(
        None,
        metavar="NAME",
        panel=MODEL,
        help="Data type of the weights: float32, bfloat16, float16 or float64",
        default_text="the recipe's own, else the checkpoint's",
        check=lambda _, name: spelled_dtype(name),
    )
    device: str | None = option(
        None,
        metavar="NAME",
        panel=MODEL,
        help="Device to run on: cpu, cuda or cuda:N",
        default_text="the recipe's own, else cuda where there is a GPU",
        check=lambda _, name: spelled_device(name),
    )
    random_weights: bool = option(
        False, bool, panel=MODEL, help="Build MODEL from its config alone, with seeded random weights."
    )
    allow_random_weights: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        panel=MODEL,
        repeats=True,
        help="Weights that may be random if the checkpoint lacks them: names, or modules such as `classifier`. * is "
        "a wildcard. May be repeated.",
    )
    allow_unused_weights: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        panel=MODEL,
        repeats=True,
        help="Weights of the checkpoint that the model may leave out, by name or module; * is a wildcard. May be "
        "repeated.",
    )
    outputs: str | None = option(
        None,
        metavar="NAME",
        panel=MODEL,
        help="Outputs of a call: `dict` for named tensors, `tuple`, or `model` for the output class of transformers. "
        "With `dict` and `tuple`, calls return no KV cache, and artifacts run without transformers.",
        default_text="as in the config of the model",
        check=require_outputs,
    )
    adapter: str | None = option(
        None,
        metavar="NAME",
        panel=MODEL,
        help="Treatment of a PEFT adapter in MODEL: `merge` adds the adapter to the weights of its base model, "
        "`keep` computes it separately.",
        default_text="merge",
        check=require_adapter_mode,
    )
    seed: int = option(
        0,
        int,
        metavar="N",
        panel=MODEL,
        help="Seed for random weights and random inputs",
        minimum=0,
        maximum=LARGEST_SEED,
    )
    trust_remote_code: bool = option(
        False,
        bool,
        panel=MODEL,
        help="Allow Python code that comes with the model, in its folder or from the Hub, to run. Read the code first.",
    )
    revision: str | None = option(None, metavar="REV", panel=MODEL, help="Branch, tag or commit of a Hub model.")
