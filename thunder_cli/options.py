"""The options of the command line: the options that requests define, converted for typer, and shared options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options import Option, option, options_of
from thunder_core.foundation.tested_versions import ALLOW
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.models.request.names import HUB_TASKS, TASKS
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.bench_request import OTHER_GENERATION_CONTENDERS
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.search_request import OBJECTIVES, SearchRequest

STYLES = ("table", "csv", "markdown")


def complete_recipe(incomplete: str) -> list[tuple[str, str]]:
    """Return the recipes whose names begin with a prefix, with their summaries, for the shell's completion."""
    return [(r.name, r.summary) for r in plugins.listing("recipes") if r.name.startswith(incomplete)]


def complete_executor(incomplete: str) -> list[tuple[str, str]]:
    """Return the executors whose names begin with a prefix, with their summaries, for the shell's completion."""
    return [(e.name, e.summary) for e in plugins.listing("executors") if e.name.startswith(incomplete)]


def complete_task(incomplete: str) -> list[str]:
    """Return the tasks whose names begin with a prefix, for the shell's completion."""
    return sorted(name for name in (*TASKS, *HUB_TASKS) if name.startswith(incomplete))


def complete_contender(incomplete: str) -> list[str]:
    """Complete the last name in a list of contenders such as `eager,ind`; the names before it are kept."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in OTHER_GENERATION_CONTENDERS if name.startswith(last)]


def complete_objective(incomplete: str) -> list[str]:
    """Return the objectives of a search whose names begin with a prefix, for the shell's completion."""
    return [name for name in OBJECTIVES if name.startswith(incomplete)]


def complete_style(incomplete: str) -> list[str]:
    """Return the output formats whose names begin with a prefix, for the shell's completion."""
    return [name for name in STYLES if name.startswith(incomplete)]


COMPLETIONS: dict[str, Callable[[str], Any]] = {
    "recipes": complete_recipe,
    "executors": complete_executor,
    "tasks": complete_task,
    "contenders": complete_contender,
    "objectives": complete_objective,
    "styles": complete_style,
}


def allow_untested_torch(is_allowed: bool) -> bool:
    """Allow releases of PyTorch that were never tested, for this process and its child processes."""
    if is_allowed:
        os.environ[ALLOW] = "1"
    return is_allowed


FLAG = " "  # the metavar of a flag: without it, typer would print the type `BOOLEAN` in the help
TRUST = "Trust"
OUTPUT = "Output"

Artifact = Annotated[
    Path,
    typer.Argument(metavar="ARTIFACT", help="An artifact folder, written by `thunder optimize`.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print the result as JSON.", rich_help_panel=OUTPUT)]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        metavar=FLAG,
        help="Show tracebacks, and the warnings and log messages of other libraries.",
        rich_help_panel=OUTPUT,
    ),
]
AllowUntestedTorch = Annotated[
    bool,
    typer.Option(
        "--allow-untested-torch",
        metavar=FLAG,
        callback=allow_untested_torch,
        help="Allow a release of PyTorch that Thunder was not tested with.",
        rich_help_panel=TRUST,
    ),
]


def quiet_option(help_text: str) -> Any:
    """Return the option --quiet with the help for a command."""
    return typer.Option("--quiet", "-q", metavar=FLAG, help=help_text, rich_help_panel=OUTPUT)


Quiet = Annotated[bool, quiet_option("Do not print the plan or progress.")]
Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help=options_of(ModelRequest)["model"].help, show_default=False),
]

Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="ARTIFACT|MODEL",
        help="An artifact folder, a model folder or a Hub name. Default: the recipe's small sample model.",
        show_default=False,
    ),
]

SETTINGS: Mapping[str, Option] = {
    definition.name: definition
    for request in (ModelRequest, Request, SearchRequest)
    for definition in options_of(request).values()
}
FORMER_NAMES = {definition.former_name: name for name, definition in SETTINGS.items() if definition.former_name}
# The names of the settings of every command that loads a model and applies a recipe.
MODEL_SETTINGS = (
    "recipe",
    "set",
    "add-transform",
    "add-executor",
    "without",
    "compiler",
    "trust-recipe",
    "train",
    *(definition.name for definition in options_of(ModelRequest).values() if definition.field != "model"),
)
SEARCH_SETTINGS = tuple(options_of(SearchRequest)[name].name for name in options_of(SearchRequest))
EVERY_SETTING = tuple(dict.fromkeys((*MODEL_SETTINGS, *(name for name in SETTINGS if name != "model"))))


def help_of(option: Option) -> str:
    """Return the help of an option, followed by its default in brackets."""
    return f"{option.help.removesuffix('.')} [default: {option.default_text}]" if option.default_text else option.help


def parameter_of(definition: Option) -> inspect.Parameter:
    """Convert an option to a parameter of a command function; typer makes the command-line option from it."""
    is_flag = definition.kind is bool
    spelled = [definition.flag, *([f"-{definition.short}"] if definition.short else [])]
    option = typer.Option(
        *spelled,
        metavar=FLAG if is_flag else definition.metavar,
        help=help_of(definition),
        rich_help_panel=definition.panel or None,
        autocompletion=COMPLETIONS.get(definition.completion),
    )
    kind: Any = str if definition.parse or definition.kind is dict else definition.kind
    return inspect.Parameter(
        definition.name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_flag else None,
        annotation=Annotated[bool if is_flag else (list[kind] if definition.repeats else kind) | None, option],
    )


@dataclass(frozen=True)
class TrustOptions:
    """The options of every command that runs an artifact."""

    trust_module: tuple[str, ...] = option(
        (),
        metavar="NAME",
        panel=TRUST,
        repeats=True,
        help="Python module that an artifact may import, with its submodules. May be repeated.",
    )
    key: tuple[Path, ...] | None = option(
        None,
        Path,
        metavar="FILE",
        panel=TRUST,
        repeats=True,
        help="Public key to trust, instead of the list of trusted keys. May be repeated.",
    )
    require_signature: bool = option(
        False, bool, panel=TRUST, help="Refuse an artifact that no trusted key has signed."
    )

    def consent(self, *, trust_remote_code: bool) -> Consent:
        """Return the code, modules and keys that the user has agreed to trust."""
        keys = None if self.key is None else tuple(path.expanduser() for path in self.key)
        return Consent(trust_remote_code, self.trust_module, keys, self.require_signature)

    def refuse(self) -> None:
        """Raise `BadOption` if one of these options was specified; the caller has a model, not an artifact."""
        artifact_options = [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value]
        if artifact_options:
            verb = "needs" if len(artifact_options) == 1 else "need"
            raise BadOption(
                f"{', '.join(artifact_options)} {verb} an artifact, but MODEL is not an artifact",
                fix=f"leave out {', '.join(artifact_options)}",
            )
