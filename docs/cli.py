"""Writes docs/cli.md, the page of the command line, from the commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from thunder_cli.app import build_app

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# The command line

<!-- Written by `make docs` from docs/cli.py and thunder_cli/commands. -->

Results go to stdout; plans, progress and errors go to stderr. Every command takes `--json`, which prints one document
to stdout. Its `schema` has the kind of the document and the version (`thunder.optimize/1`). `thunder bench --json`
prints the file that `--baseline` reads; its version is `schema_version`. With `--json`, errors are documents too
(`thunder.error/1`). Progress bars appear only on a terminal, and `NO_COLOR` is respected. No command asks a question or
sends data. The page [exit statuses and error codes](errors.md) lists all errors.

Control characters in names and texts of models and artifacts are printed as escapes.

`HF_HOME` sets the folder of cached models; with `HF_HUB_OFFLINE=1` no socket is opened. `THUNDER_CACHE_DIR` sets the
folder of compiled kernels: see [the cache](cache.md). `THUNDER_CONFIG_DIR` sets the folder of the list of trusted keys.
`THUNDER_KEY_PASSPHRASE` is the passphrase of a private key: see [signatures](artifacts.md#signatures).
`THUNDER_TUNE` sets the default of `--tune`, also for programs that call `jit`: with `THUNDER_TUNE=0s`, no kernel is
measured. With `THUNDER_LOGS=all`, each stage of each compiled trace is written to a file: see
[every stage as a file](python.md#every-stage-as-a-file).

    thunder optimize --recipe hf-llama3              # the recipe's own small model
    thunder optimize ./bert --recipe hf-bert -o out  # a folder in Hugging Face layout
    thunder optimize --config run.toml --dry-run     # only the plan
    thunder optimize ./llama --search 10m --max-kl 1e-3  # the best of all candidates within a bound, by measurement
    thunder optimize ./bert -o out --include-weights # an artifact that needs no checkpoint
    thunder optimize ./llama --task generate -o text # an artifact that generates text
    thunder run text --prompt "Once upon a time"     # generates text and streams it
    thunder validate out                             # compares with eager PyTorch on the target machine
    thunder optimize ./llama --train -o step         # a training step: forward, backward and gradients
    thunder bench ./llama --train --against eager,inductor
    thunder bench out --json > baseline.json         # the sizes of the artifact; --batch and --seq set those of a model
    thunder bench out --baseline baseline.json --fail-above 5%
    thunder validate out --input texts.jsonl --eval texts.jsonl  # on real samples, with a metric before and after
    thunder bench out --require-speedup 1.1          # exit status 5 unless this speed-up is shown
    thunder bench out other                          # two artifacts, in turn in one process
    thunder bench before.json after.json             # two results
    thunder keys new team                            # a key pair: team signs, team.pub is for others
    thunder optimize ./bert -o out --sign-key team   # or `thunder sign out --key team`
    thunder verify out --key team.pub                # checks every byte and the signature; nothing is loaded

`thunder --install-completion` installs completion for the current shell (bash, zsh, fish, PowerShell), and
`--show-completion` prints the completion script. It completes commands, options, and the names of recipes, executors
and tasks, without slow imports. [The tutorial](tutorial.md) explains the commands step by step.

The page [Measuring](benchmark.md) explains how to read a measurement.

Without `--out`, the artifact is written to `MODEL-RECIPE.thunder` in the working directory, or to
`MODEL-RECIPE-2.thunder` and so on if that exists. RECIPE is followed by `-train` or `-generate` for a training step or
for generation. An existing folder in `--out` is kept, unless `--force` is given.
`--force` replaces empty folders, and artifacts without other files in them. The old artifact remains until the new one
is complete.

`--config FILE` reads the long options of `thunder optimize` from TOML; options on the command line take precedence:

```toml
recipe = "hf-llama3"
dtype = "bfloat16"
batch = 4
seq = 256
random-weights = true

[set]  # the recipe's own options
```
"""
HIDDEN = {"--help", "--install-completion", "--show-completion"}


def render() -> str:
    """Return the whole page."""
    group: Any = get_command(build_app())
    return "\n".join([HEAD, *commands(group, "thunder")])


def commands(group: Any, path: str) -> Iterator[str]:
    """Yield the sections of each command of a group, and of its subgroups."""
    for name, command in group.commands.items():
        full = f"{path} {name}"
        yield from section(command, full)
        yield from commands(command, full) if hasattr(command, "commands") else ()


def section(command: Any, path: str) -> Iterator[str]:
    """Yield the section of a command: its usage, its help, and its parameters."""
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    words = "".join(f" {argument.metavar or argument.name.upper()}" for argument in arguments)
    yield f"## `{path}{words}`\n"
    yield f"{(command.help or '').strip()}\n"
    rows = [row for parameter in command.params for row in parameter_rows(parameter)]
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")


def parameter_rows(parameter: Any) -> Iterator[str]:
    """Yield the row of a parameter's table."""
    if HIDDEN & set(parameter.opts):
        return
    is_option = parameter.param_type_name == "option"
    names = (
        ", ".join(f"`{name}`" for name in parameter.opts)
        if is_option
        else f"`{escape_bars(parameter.metavar or parameter.name.upper())}`"
    )
    takes = f" `{escape_bars(parameter.metavar)}`" if is_option and parameter.metavar and not parameter.is_flag else ""
    default = parameter.default
    default_note = (
        f" [default: {default}]" if is_option and default not in (None, False, "", ()) and not callable(default) else ""
    )
    yield f"| {names}{takes} | {escape_bars(parameter.help or '')}{default_note} |"


def escape_bars(text: str) -> str:
    """Return the text with escaped vertical bars, which would end a cell of a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
