"""Detached signatures of artifacts in OpenSSH's format, in the file `manifest.json.sig`.

The signed message is the manifest, which has the digest of every file. `ssh-keygen -Y sign` writes and `ssh-keygen -Y
verify` reads the same file. The library `cryptography` is imported only when it is needed.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    BadSignature,
    NotSigned,
    UnsignedWarning,
)
from thunder_core.foundation.printable import printable
from thunder_core.foundation.storage.full_disk import report_unwritable
from thunder_core.workflow.artifact.format.manifest import FORMER_SIGNATURE, SIGNATURE, Manifest
from thunder_core.workflow.artifact.format.read import Artifact, inside, read_inside
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.artifact.trust.public_keys import PublicKey, parse_lines, trusted_list
from thunder_core.workflow.artifact.trust.ssh_signature import SshSignature, parse_signatures

MAX_SIGNATURE = 1 << 16  # bytes of the file
KEYS_MODULE = "thunder_core.workflow.artifact.trust.keys"


def import_key_function(name: str) -> Any:
    """Import a function of `keys`, which needs the package for cryptography."""
    return plugins.import_object(f"{KEYS_MODULE}:{name}")


def is_signed(folder: Path) -> bool:
    """Whether a folder has a file of signatures, valid or not."""
    return any(os.path.lexists(folder / name) for name in (SIGNATURE, FORMER_SIGNATURE))


def sign_folder(folder: Path, manifest: Manifest, private: object) -> PublicKey:
    """Sign an artifact, and replace the key's earlier signature in the folder's file, if there is one.

    Signatures that are not valid for this manifest are dropped. The files of the folder are not checked; the caller has
    verified them. Raises `OutputNotWritable`, and `BadSignature` if the file of signatures cannot be read.
    """
    mine: SshSignature = import_key_function("sign_message")(private, manifest.to_bytes())
    others = valid_signatures(folder, manifest) if os.path.lexists(folder / SIGNATURE) else ()
    signatures = (mine, *(signature for signature in others if signature.key != mine.key))
    new = folder / f".{SIGNATURE}.{secrets.token_hex(8)}"
    try:
        with report_unwritable(folder, fix="sign a copy of the artifact"):
            with new.open("x", encoding="utf-8") as file:  # mode x refuses an existing link
                file.writelines(map(str, signatures))
            new.replace(folder / SIGNATURE)
            (folder / FORMER_SIGNATURE).unlink(missing_ok=True)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    return mine.key


def valid_signatures(folder: Path, manifest: Manifest) -> tuple[SshSignature, ...]:
    """Return the signatures in a folder's file that are valid for this manifest; raise `BadSignature`."""
    verifies, message = import_key_function("verifies"), manifest.to_bytes()
    return tuple(signature for signature in read_signatures(folder) if verifies(signature, message))


def read_signatures(folder: Path) -> tuple[SshSignature, ...]:
    """Read the file of signatures; raise `BadSignature`."""
    try:
        if inside(folder, SIGNATURE).stat().st_size > MAX_SIGNATURE:
            raise bad_signature(folder, f"{SIGNATURE} is too large for a file of signatures")
        return parse_signatures(read_inside(folder, SIGNATURE).decode("ascii", errors="replace"))
    except ValueError as error:
        raise bad_signature(folder, f"{SIGNATURE} {error}") from error
    except (ArtifactDamaged, OSError) as error:
        raise bad_signature(folder, str(getattr(error, "what", error))) from error


def signers_of(artifact: Artifact) -> tuple[PublicKey, ...]:
    """Return the keys that signed an artifact; raise `BadSignature` if any signature is not valid."""
    folder = artifact.folder
    if os.path.lexists(folder / FORMER_SIGNATURE):
        raise BadSignature(
            f"{folder} has signatures in the former format of Thunder 0.2.0: {FORMER_SIGNATURE}",
            fix=f"sign it again with `thunder sign`; or delete {FORMER_SIGNATURE} to use the artifact as unsigned",
        )
    if not is_signed(folder):
        return ()
    keys = tuple(signature.key for signature in valid_signatures(folder, artifact.manifest))
    if len(keys) < len(read_signatures(folder)):
        raise bad_signature(
            folder, "a signature does not match this artifact: the signature or the manifest has been changed"
        )
    return keys


def keys_of(key_sources: Iterable[str | PathLike[str]] | None) -> tuple[PublicKey, ...]:
    """Return the keys that a user passed as files or as text; if the argument is None, the user's trusted keys."""
    if key_sources is None:
        return trusted_list()
    sources = (key_sources,) if isinstance(key_sources, str | PathLike) else key_sources
    return tuple(key for name in sources for key in keys_from(name))


def keys_from(name: str | PathLike[str]) -> tuple[PublicKey, ...]:
    """Return the keys in a file, or the key in a line of text; raise `BadKey`."""
    if isinstance(name, str) and name.lstrip().startswith(("ssh-", "ecdsa-")):
        return tuple(parse_lines(name, "trusted_keys"))
    keys: tuple[PublicKey, ...] = import_key_function("read_public_keys")(Path(name).expanduser())
    return keys


def require_authentic(artifact: Artifact, consent: Consent) -> tuple[PublicKey, ...]:
    """Return the trusted keys that signed an artifact, with the comments from the user's list of keys.

    Raises `BadKey` if the list of keys cannot be trusted, `BadSignature`,
    and `NotSigned` if a signature by a trusted key is required and missing. Warns with `UnsignedWarning` if no
    signature is required, but there are trusted keys and none of them signed the artifact.
    """
    signers, trusted = signers_of(artifact), keys_of(consent.trusted_keys)
    keys = tuple(dict.fromkeys(key for key in trusted if key in signers))
    if not keys and consent.require_signature:
        raise NotSigned(
            untrusted_message(artifact.folder, signers),
            fix="sign the artifact with `thunder sign`, or trust the key of its signature: `thunder keys trust FILE`",
        )
    if not keys and trusted:
        warnings.warn(printable(untrusted_message(artifact.folder, signers)), UnsignedWarning, stacklevel=3)
    return keys


def untrusted_message(folder: Path, signers: tuple[PublicKey, ...]) -> str:
    """Return the message for an artifact that no trusted key signed."""
    names = ", ".join(key.fingerprint for key in signers)
    by = f"is signed by {names}, which is not a trusted key" if signers else "is not signed"
    return f"{folder} {by}"


def bad_signature(folder: Path, what: str) -> BadSignature:
    """Return the error for an invalid signature."""
    return BadSignature(
        f"a signature of {folder} is not valid: {what}",
        fix="get the artifact again from its signer; if you made the artifact, sign it again with `thunder sign`",
    )
