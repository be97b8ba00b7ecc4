"""Writes docs/cli.md, the page of the command line, from the commands themselves."""

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

Results go to stdout, plans, progress and errors to stderr. Every command takes `--json`, which prints one document
to stdout: its `schema` names what it is and its version (`thunder.optimize/1`). `thunder bench --json` prints the file
that `--baseline` reads, whose version is its `schema_version`. Errors are then documents too (`thunder.error/1`).
There are progress bars on a terminal only, `NO_COLOR` is respected, nothing is ever asked, and nothing is sent
anywhere. [Exit statuses and error codes](errors.md) have a page of their own.

Every character that a terminal obeys, in names and texts of models and artifacts, is printed as an escape.

`HF_HOME` says where models are cached; with `HF_HUB_OFFLINE=1` no socket is opened. `THUNDER_CACHE_DIR` says where
compiled kernels are kept; [the cache](cache.md) has a page of its own. `THUNDER_CONFIG_DIR` says where the list of
trusted keys is, `THUNDER_KEY_PASSPHRASE` what protects a private key: see [signatures](artifacts.md#signatures).
`THUNDER_TUNE` sets the default of `--tune`, also for programs that call `jit`: with `THUNDER_TUNE=0s`, no kernel is
measured. With `THUNDER_LOGS=all` each stage of each trace that is compiled is written to a file: see
[every stage as a file](python.md#every-stage-as-a-file).

    thunder optimize --recipe hf-llama3              # the recipe's own small model
    thunder optimize ./bert --recipe hf-bert -o out  # a folder in Hugging Face layout
    thunder optimize --config run.toml --dry-run     # the plan alone
    thunder optimize ./llama --search 10m --max-kl 1e-3 # the best of all candidates within a bound, by measurement
    thunder optimize ./bert -o out --include-weights # an artifact that needs no checkpoint
    thunder run out --prompt "Once upon a time"       # the text that follows, as it is computed
    thunder validate out                             # beside eager PyTorch, on the machine that is to run it
    thunder optimize ./llama --train -o step         # a step of training: loss and gradients, forward and backward
    thunder bench ./llama --train --against eager,inductor
    thunder bench out --batch 1,8 --seq 128 --json > baseline.json
    thunder bench out --batch 1,8 --seq 128 --baseline baseline.json --fail-above 5%
    thunder validate out --input texts.jsonl --eval texts.jsonl  # on real samples, with a metric before and after
    thunder bench out --require-speedup 1.1          # a gate: exit status 5 unless that is shown
    thunder bench out other --seq 128                # two artifacts, in turn in one process
    thunder bench before.json after.json             # two results
    thunder keys new team                            # a pair of keys: team to sign with, team.pub for others
    thunder optimize ./bert -o out --sign-key team   # or `thunder sign out --key team`
    thunder verify out --key team.pub                # every byte, and whose it is; nothing is loaded

`thunder --install-completion` installs completion for the shell that it is called from (bash, zsh, fish, PowerShell),
and `--show-completion` prints it: commands, options, and the names of recipes, executors and tasks. Nothing heavy is
imported for it. [The tutorial](tutorial.md) leads through the commands.

[What a measurement says](benchmark.md), and when it says nothing, has a page of its own.

Without `--out` the artifact goes to `MODEL-RECIPE.thunder` in the working folder, or `MODEL-RECIPE-2.thunder` and so on
where that exists. A folder named with `--out` is kept if it exists, unless `--force` is given, which replaces
empty folders and artifacts, if these hold no file but their own; the old one is there until the new one is whole.

`--config FILE` reads the long options of `thunder optimize` from TOML; what the command line says wins:

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
    """The whole page."""
    group: Any = get_command(build_app())
    return "\n".join([HEAD, *commands(group, "thunder")])


def commands(group: Any, path: str) -> Iterator[str]:
    """Each command of a group, and those of the groups in it."""
    for name, command in group.commands.items():
        full = f"{path} {name}"
        yield from section(command, full)
        yield from commands(command, full) if hasattr(command, "commands") else ()


def section(command: Any, path: str) -> Iterator[str]:
    """One command: its usage, what it does, and its parameters."""
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    words = "".join(f" {argument.metavar or argument.name.upper()}" for argument in arguments)
    yield f"## `{path}{words}`\n"
    yield f"{(command.help or '').strip()}\n"
    rows = [row for parameter in command.params for row in parameter_rows(parameter)]
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")


def parameter_rows(parameter: Any) -> Iterator[str]:
    """The row of a parameter's table."""
    if HIDDEN & set(parameter.opts):
        return
    is_option = parameter.param_type_name == "option"
    names = (
        ", ".join(f"`{name}`" for name in parameter.opts)
        if is_option
        else f"`{parameter.metavar or parameter.name.upper()}`"
    )
    takes = f" `{parameter.metavar}`" if is_option and parameter.metavar and not parameter.is_flag else ""
    default = parameter.default
    told = (
        f" [default: {default}]" if is_option and default not in (None, False, "", ()) and not callable(default) else ""
    )
    yield f"| {names}{takes} | {(parameter.help or '').replace('|', chr(92) + '|')}{told} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
