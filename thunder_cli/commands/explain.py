"""`thunder explain CODE`: prints the meaning of an error code."""

from __future__ import annotations

import inspect
import re
from typing import Annotated

import typer
from rich.text import Text

from thunder_cli.console import print_json, stdout
from thunder_cli.options import Debug, Json
from thunder_core.foundation.errors import ThunderError, UnknownName, all_errors
from thunder_core.foundation.similar_names import did_you_mean

Error = type[ThunderError]


def complete_code(incomplete: str) -> list[tuple[str, str]]:
    """Return the codes that begin with a prefix, each with the first line of its meaning."""
    codes = ((error.code, meaning(error).partition("\n")[0]) for error in all_errors())
    return [(code, text) for code, text in codes if code.startswith(incomplete.upper())]


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE", help="Error code, such as TH0202. Default: list all.", autocompletion=complete_code
        ),
    ] = None,
    *,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Explain an error code."""
    chosen = list(all_errors()) if code is None else [find_error(code)]
    if json:
        print_json("explain/1", {"errors": [as_data(error) for error in chosen]})
    elif code is None:
        list_errors(chosen)
    else:
        stdout().print(describe(chosen[0]))


def find_error(code: str) -> Error:
    """Return the error with a code or a class name, ignoring case; raise `UnknownName` with the nearest codes."""
    errors = {error.code: error for error in all_errors()}
    by_name = {error.__name__.lower(): error for error in errors.values()}
    upper_code = code.strip().upper()
    if (known_error := errors.get(upper_code) or by_name.get(upper_code.lower())) is not None:
        return known_error
    raise UnknownName(
        f"there is no error code {code!r}",
        fix=f"{did_you_mean(upper_code, errors)}`thunder explain` lists all codes",
    )


def meaning(error: Error) -> str:
    """Return the meaning of an error, from its docstring."""
    return inspect.cleandoc(error.__doc__ or "")


def as_data(error: Error) -> dict[str, object]:
    """Return one error as plain data."""
    return {"code": error.code, "name": error.__name__, "status": error.status, "meaning": meaning(error)}


def list_errors(errors: list[Error]) -> None:
    """Print a line for each error."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("code", "exit", "meaning"):
        table.add_column(column, no_wrap=column != "meaning")
    for error in errors:
        table.add_row(Text(error.code, "red"), str(error.status), Text(meaning(error).partition("\n")[0]))
    stdout().print(table)


def describe(error: Error) -> Text:
    """Return one error as text: its code, name and exit status, and its meaning."""
    head = Text.assemble(
        (error.code, "bold red"), " ", (error.__name__, "bold"), (f"  exit status {error.status}", "dim")
    )
    return head.append(f"\n\n{unwrap(meaning(error))}")


def unwrap(text: str) -> str:
    """Join the lines of each paragraph and list item into one line, which a console wraps at its own width."""
    return re.sub(r"(?<=\S)\n *(?![\s-])", " ", text)
