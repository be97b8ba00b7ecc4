"""`thunder verify`: checks the digests and the signatures of an artifact, without loading its programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_cli import options
from thunder_cli.ci.ci_options import CiOptions
from thunder_cli.console import print_json, stdout
from thunder_cli.option_groups import expand_options
from thunder_cli.options import FLAG, Debug, Json

if TYPE_CHECKING:
    from rich.text import Text

    from thunder_core.workflow.artifact.format.read import Artifact
    from thunder_core.workflow.artifact.trust.public_keys import PublicKey


@expand_options
def verify(
    artifact: options.Artifact,
    *,
    ci: CiOptions,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key",
            metavar="FILE",
            help="Require a signature by this key. If repeated, any of the keys suffices. Replaces the list of trusted"
            " keys.",
        ),
    ] = None,
    require_signature: Annotated[
        bool,
        typer.Option(
            "--require-signature", metavar=FLAG, help="Exit with status 6 unless a trusted key has signed the artifact."
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the digest of every file in ARTIFACT, and the signatures of ARTIFACT against the trusted keys.

    The exit status is 6 for a missing, changed or unlisted file, and for an invalid signature. With
    --key, the exit status is also 6 if none of the given keys has signed the artifact. Without --key and
    --require-signature, unsigned artifacts pass, and so do artifacts that only untrusted keys have signed.
    """
    from thunder_cli.ci.ci_report import collect_checks
    from thunder_core.workflow.artifact.format.artifact_folder import require_nothing_else
    from thunder_core.workflow.artifact.format.read import open_artifact
    from thunder_core.workflow.artifact.format.signature import keys_of, require_authentic, signers_of
    from thunder_core.workflow.artifact.trust.consent import Consent

    with collect_checks(ci, "verify"):
        key_files = None if key is None else tuple(path.expanduser() for path in key)
        opened = open_artifact(artifact)
        require_nothing_else(opened)
        if key or require_signature:
            require_authentic(opened, Consent(trusted_keys=key_files, require_signature=True))
        signers, trusted = signers_of(opened), keys_of(key_files)
        if json:
            print_json("verify/1", as_data(opened, signers, trusted))
        else:
            stdout().print(as_text(opened, signers, trusted), soft_wrap=True)


def as_data(opened: Artifact, signers: tuple[PublicKey, ...], trusted: tuple[PublicKey, ...]) -> dict[str, object]:
    """Return the results as plain data."""
    trusted_by_bytes = {known_key.raw: known_key for known_key in trusted}
    keys = [trusted_by_bytes.get(signer.raw, signer) for signer in signers]
    signatures = [
        {"key": signer.line, "fingerprint": signer.fingerprint, "trusted": signer in trusted} for signer in keys
    ]
    files = opened.manifest.files
    size = sum(facts.size for facts in files.values())
    facts_of_artifact = {
        "artifact": str(opened.folder),
        "files": len(files),
        "bytes": size,
        "seal": opened.manifest.digest,
    }
    return {**facts_of_artifact, "signatures": signatures, "trusted": any(signer in trusted for signer in signers)}


def as_text(opened: Artifact, signers: tuple[PublicKey, ...], trusted: tuple[PublicKey, ...]) -> Text:
    """Return the results as text, to be printed without wrapping."""
    from rich.text import Text

    from thunder_cli.views.quantity import count_noun, format_bytes

    files = opened.manifest.files
    total = f"{count_noun(len(files), 'file')}, {format_bytes(sum(facts.size for facts in files.values()))}, "
    text = Text.assemble(("artifact", "bold"), f"   {opened.folder}\n", ("files", "bold"), f"      {total}")
    text.append("all match the manifest", "green")
    text.append("\nseal", "bold").append(f"       {opened.manifest.digest}")
    trusted_by_bytes = {known_key.raw: known_key for known_key in trusted}
    for key in signers:
        state = ("trusted", "green") if key in trusted else ("not a trusted key", "yellow")
        name = str(trusted_by_bytes[key.raw]) if key in trusted else key.fingerprint
        text.append("\nsignature", "bold").append(f"  {name}, ").append(*state)
    return text if signers else text.append("\nsignature", "bold").append("  none", "yellow")
