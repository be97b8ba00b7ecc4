"""`thunder sign`: signs an artifact, so that others can verify its origin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thunder_cli.console import print_json, stdout
from thunder_cli.options import Debug, Json


def sign(
    artifact: Annotated[
        Path,
        typer.Argument(metavar="ARTIFACT", help="Artifact folder.", show_default=False),
    ],
    *,
    key: Annotated[
        Path,
        typer.Option("--key", metavar="FILE", help="Private key, made by `thunder keys new`.", show_default=False),
    ],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the digest of every file, then sign ARTIFACT.

    Like `thunder verify`, the command fails if the folder contains a file that the manifest does not list. The
    signature is written to `manifest.json.sig`, in the format of `ssh-keygen -Y sign`. An earlier signature by this
    key is replaced; valid signatures by other keys are kept. No other file changes.
    """
    from rich.text import Text

    from thunder_core.workflow.artifact.format.artifact_folder import require_nothing_else
    from thunder_core.workflow.artifact.format.read import open_artifact
    from thunder_core.workflow.artifact.format.signature import sign_folder
    from thunder_core.workflow.artifact.trust.keys import read_private_key

    private = read_private_key(key.expanduser())
    opened = open_artifact(artifact)
    require_nothing_else(opened)
    signer = sign_folder(opened.folder, opened.manifest, private)
    if json:
        seal = opened.manifest.digest
        print_json("sign/1", {"artifact": str(opened.folder), "seal": seal, "key": signer.line})
        return
    text = Text.assemble(("signed", "bold green"), f"  {opened.folder}\n", ("by", "bold"), f"      {signer}")
    stdout().print(text, soft_wrap=True)
