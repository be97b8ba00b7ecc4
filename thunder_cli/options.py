"""The options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from thunder_core import plugins
from thunder_core.artifact.consent import Consent
from thunder_core.errors import BadOption
from thunder_core.models.names import HUB_TASKS, TASKS


def complete_recipe(incomplete: str) -> list[tuple[str, str]]:
    """The recipes whose names begin so, each with what it is, for the shell's completion."""
    return [(r.name, r.summary) for r in plugins.listing("recipes") if r.name.startswith(incomplete)]


def complete_executor(incomplete: str) -> list[tuple[str, str]]:
    """The executors whose names begin so, each with what it is, for the shell's completion."""
    return [(e.name, e.summary) for e in plugins.listing("executors") if e.name.startswith(incomplete)]


def complete_task(incomplete: str) -> list[str]:
    """The tasks whose names begin so, for the shell's completion."""
    return sorted(name for name in (*TASKS, *HUB_TASKS) if name.startswith(incomplete))


FLAG = " "  # for the metavar of a flag: typer writes the type there, which says nothing
MODEL = "The model"
TRUST = "Trust"
OUTPUT = "What is printed"

Json = Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print the result as JSON.", rich_help_panel=OUTPUT)]
Debug = Annotated[
    bool, typer.Option("--debug", metavar=FLAG, help="Show tracebacks and what libraries log.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", metavar=FLAG, help="No plan and no progress.", rich_help_panel=OUTPUT)
]
Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A folder in Hugging Face layout, or a hub name; without it, the recipe's own small sample model.",
        show_default=False,
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        metavar="NAME",
        help="The recipe; `thunder recipes` lists them [default: default]",
        autocompletion=complete_recipe,
    ),
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the recipe; may be repeated.")
]
Train = Annotated[
    bool,
    typer.Option("--train", metavar=FLAG, help="A step of training: forward, loss and backward."),
]
Batch = Annotated[int | None, typer.Option("--batch", metavar="N", help="Samples in an input [default: 1]")]
Seq = Annotated[int | None, typer.Option("--seq", metavar="N", help="Tokens in a sample [default: 128]")]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="float32, bfloat16, float16 or float64 [default: the recipe's own, else the checkpoint's]",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cpu, cuda or cuda:N [default: the recipe's own, else cuda where there is a GPU]",
        rich_help_panel=MODEL,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="ARCH",
        help="Make it for a GPU that need not be here, such as sm_90; nothing is run, and validation stays pending.",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="What the model is for, if not what its config says: causal-lm, or as the hub has it, text-generation.",
        rich_help_panel=MODEL,
        autocompletion=complete_task,
    ),
]
Revision = Annotated[
    str | None,
    typer.Option("--revision", metavar="REV", help="Branch, tag or commit of a hub model.", rich_help_panel=MODEL),
]
Runs = Annotated[
    int | None, typer.Option("--runs", metavar="N", help="Rounds of the benchmark that count [default: 30]")
]
Warmup = Annotated[
    int | None, typer.Option("--warmup", metavar="N", help="Rounds of the benchmark that do not [default: 5]")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="Seed of random weights and of all inputs.", rich_help_panel=MODEL),
]
RandomWeights = Annotated[
    bool,
    typer.Option(
        "--random-weights",
        metavar=FLAG,
        help="Build MODEL from its config alone, with seeded weights.",
        rich_help_panel=MODEL,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        metavar=FLAG,
        help="Run the Python code that MODEL brings. Read it first.",
        rich_help_panel=MODEL,
    ),
]
Input = Annotated[
    Path | None,
    typer.Option("--input", metavar="FILE", help="Real inputs in place of drawn ones: .safetensors, .npz or .jsonl."),
]
Evaluate = Annotated[
    Path | None,
    typer.Option("--eval", metavar="FILE", help="Real samples, by which the model is judged before and after."),
]
Metric = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help="accuracy, perplexity or cosine [default: the one of the task]"),
]
RequireSpeedup = Annotated[
    float | None,
    typer.Option(
        "--require-speedup", metavar="X", help="Exit with 5 unless the whole interval of the speed-up is X or more."
    ),
]
AllowNonFinite = Annotated[
    bool,
    typer.Option(
        "--allow-non-finite",
        metavar=FLAG,
        help="Accept NaN, infinities and nothing but zeros in what eager PyTorch gives; the report says so.",
    ),
]
TrustedModules = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-module",
        metavar="NAME",
        help="A module that may be imported for an artifact, with what is beneath it; may be repeated.",
        rich_help_panel=TRUST,
    ),
]
TrustedKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="A public key to trust, in place of the list of trusted keys; may be repeated.",
        rich_help_panel=TRUST,
    ),
]
RequireSignature = Annotated[
    bool,
    typer.Option(
        "--require-signature",
        metavar=FLAG,
        help="Refuse an artifact that no trusted key has signed.",
        rich_help_panel=TRUST,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", metavar=FLAG, help="Fail where this machine lacks a part of the recipe.")
]


@dataclass(frozen=True)
class TrustOptions:
    """What every command takes that runs an artifact."""

    trust_module: TrustedModules = None
    key: TrustedKeys = None
    require_signature: RequireSignature = False

    def consent(self, *, trust_remote_code: bool) -> Consent:
        """What the user allows."""
        keys = None if self.key is None else tuple(path.expanduser() for path in self.key)
        return Consent(trust_remote_code, tuple(self.trust_module or ()), keys, self.require_signature)

    def refuse(self) -> None:
        """Raise `BadOption` where one of them was given and there is no artifact."""
        given = [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value]
        if given:
            raise BadOption(f"{', '.join(given)} is for artifacts, and this is none", fix="leave it out")


@dataclass(frozen=True)
class ModelOptions:
    """What every command takes that loads a model and applies a recipe; `expand_options` makes options of it."""

    recipe: RecipeName = None
    assignments: Assignments = None
    train: Train = False
    dtype: Dtype = None
    device: Device = None
    task: Task = None
    revision: Revision = None
    random_weights: RandomWeights = False
    trust_remote_code: TrustRemoteCode = False
    seed: Seed = None
