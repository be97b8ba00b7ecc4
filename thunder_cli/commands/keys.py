"""`thunder keys`: creates keys to sign artifacts with, and manages the list of trusted keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from thunder_cli.command_class import refuse_ignored_json
from thunder_cli.console import print_json, stdout
from thunder_cli.options import Debug, Json
from thunder_cli.views.quantity import count_noun
from thunder_core.foundation.storage.absolute import absolute

keys = typer.Typer(help="Create signing keys, and manage the list of trusted keys.", invoke_without_command=True)


@keys.callback()
def list_by_default(context: typer.Context, *, json: Json = False, debug: Debug = False) -> None:
    """Create signing keys, and manage the list of trusted keys."""
    if context.invoked_subcommand is None:
        list_keys(json=json)
    else:
        refuse_ignored_json(context, json)


@keys.command("list")
def list_keys(*, json: Json = False, debug: Debug = False) -> None:
    """List the trusted keys. Artifacts signed with them load without a warning."""
    from thunder_core.workflow.artifact.trust.public_keys import trusted_file, trusted_list

    trusted = trusted_list()
    if json:
        rows = [
            {"key": known_key.line, "fingerprint": known_key.fingerprint, "comment": known_key.comment}
            for known_key in trusted
        ]
        print_json("keys/1", {"file": str(trusted_file()), "keys": rows})
        return
    for key in trusted:
        stdout().print(Text.assemble((key.fingerprint, "bold"), f"  {key.comment}"), soft_wrap=True)
    summary = f"{count_noun(len(trusted), 'trusted key')} in " if trusted else "no trusted keys in "
    stdout().print(Text.assemble((summary, "dim"), str(trusted_file())), soft_wrap=True)


@keys.command()
def new(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="File to write the private key to. The public key is written to FILE.pub."),
    ],
    *,
    comment: Annotated[
        str | None, typer.Option("--comment", metavar="TEXT", help="Comment for the key [default: FILE's name]")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Create a key pair: the private key in FILE, readable by you alone, and the public key in FILE.pub."""
    from thunder_core.workflow.artifact.trust.keys import new_key_pair, public_path

    path = absolute(file)
    pair = new_key_pair(path, path.name if comment is None else " ".join(comment.split()))
    if json:
        files = {"private": str(path), "public": str(public_path(path))}
        print_json("keys-new/1", {**files, "key": pair.line, "fingerprint": pair.fingerprint})
        return
    text = Text.assemble(("private", "bold"), f"  {path}\n", ("public", "bold"), f"   {public_path(path)}\n")
    stdout().print(text.append("key", "bold").append(f"      {pair}"), soft_wrap=True)


@keys.command()
def trust(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File with public keys, such as the .pub file that `thunder keys new` writes."
        ),
    ],
    *,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Add the keys in FILE to the list of trusted keys. Artifacts signed with them load without a warning."""
    from thunder_core.workflow.artifact.trust.keys import read_public_keys
    from thunder_core.workflow.artifact.trust.public_keys import trusted_list, write_trusted

    added = read_public_keys(file.expanduser())
    write_trusted((*trusted_list(), *added))
    list_keys(json=json)


@keys.command()
def forget(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="Fingerprint, comment or base64 text of a key, or a file of public keys."),
    ],
    *,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove keys from the list of trusted keys: every key that matches KEY, or every key in the file KEY."""
    from thunder_core.foundation.errors import UnknownName
    from thunder_core.foundation.similar_names import did_you_mean
    from thunder_core.workflow.artifact.trust.keys import read_public_keys
    from thunder_core.workflow.artifact.trust.public_keys import trusted_list, write_trusted

    trusted = trusted_list()
    removed = [
        known_key
        for known_key in trusted
        if key and key in (known_key.fingerprint, known_key.comment, known_key.text)  # an empty KEY matches no key
    ]
    if not removed and Path(key).expanduser().is_file():
        keys_of_file = read_public_keys(Path(key).expanduser())
        removed = [known_key for known_key in trusted if known_key in keys_of_file]
    if not removed:
        near = did_you_mean(key, [known_key.comment or known_key.fingerprint for known_key in trusted])
        raise UnknownName(f"no key {key!r} is trusted", fix=f"{near}`thunder keys list` lists the trusted keys")
    write_trusted(known_key for known_key in trusted if known_key not in removed)
    list_keys(json=json)
