"""Detached Ed25519 signatures of artifacts, in a file next to the manifest.

The signed message has two parts: a fixed context, which prevents other uses of the signature, and the manifest's
digest, which covers every file. The library `cryptography` is imported only when it is needed.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import warnings
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    BadSignature,
    NotSigned,
    UnsignedWarning,
)
from thunder_core.foundation.printable import printable
from thunder_core.foundation.storage.full_disk import report_unwritable
from thunder_core.foundation.storage.manifest import StoredFacts
from thunder_core.workflow.artifact.format.manifest import SIGNATURE, Manifest
from thunder_core.workflow.artifact.format.read import Artifact, first_of, inside, read_inside
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.artifact.trust.public_keys import PublicKey, parse_lines, parse_text, trusted_list

CONTEXT = b"thunder artifact signature 1\0"
MAX_SIGNATURE = 1 << 16  # bytes of the file
KEYS_MODULE = "thunder_core.workflow.artifact.trust.keys"


class SignatureFacts(StoredFacts):
    """A public key in base64 in OpenSSH's format, its comment, and its signature in base64."""

    key: str
    comment: str = ""
    signature: str


class Signatures(StoredFacts):
    """The signatures of an artifact, one for each key; the latest is the last."""

    schema_version: Literal[1] = 1
    signatures: tuple[SignatureFacts, ...]


def message_of(manifest: Manifest) -> bytes:
    """Return the message that is signed for an artifact."""
    return CONTEXT + manifest.digest.encode()


def import_key_function(name: str) -> Any:
    """Import a function of `keys`, which needs the package for cryptography."""
    return plugins.import_object(f"{KEYS_MODULE}:{name}")


def is_signed(folder: Path) -> bool:
    """Whether a folder has a file of signatures, valid or not."""
    return os.path.lexists(folder / SIGNATURE)


def sign_folder(folder: Path, manifest: Manifest, private: object, comment: str = "") -> PublicKey:
    """Sign the manifest's digest, and replace the key's earlier signature in the folder's file, if there is one.

    Signatures that are not valid for this manifest are dropped. The files of the folder are not checked; the caller has
    verified them. Raises `OutputNotWritable`, and `BadSignature` if the file of signatures cannot be read.
    """
    key, signature = import_key_function("sign_message")(private, message_of(manifest))
    others = valid_signatures(folder, manifest) if is_signed(folder) else ()
    claimed = parse_text(key.text, comment).comment
    mine = SignatureFacts(key=key.text, comment=claimed, signature=base64.b64encode(signature).decode())
    signatures = Signatures(signatures=(*(facts for facts in others if facts.key != mine.key), mine))
    new = folder / f".{SIGNATURE}.{secrets.token_hex(8)}"
    try:
        with report_unwritable(folder, fix="sign a copy of the artifact"):
            with new.open("x", encoding="utf-8") as file:  # mode x refuses an existing link
                file.write(signatures.model_dump_json(indent=1) + "\n")
            new.replace(folder / SIGNATURE)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    return PublicKey(key.raw, claimed)


def valid_signatures(folder: Path, manifest: Manifest) -> tuple[SignatureFacts, ...]:
    """Return the signatures in a folder's file that are valid for this manifest; raise `BadSignature`."""
    return tuple(facts for facts in read_signatures(folder).signatures if verify_signature(facts, manifest) is not None)


def read_signatures(folder: Path) -> Signatures:
    """Read the file of signatures as plain data; raise `BadSignature`."""
    try:
        if inside(folder, SIGNATURE).stat().st_size > MAX_SIGNATURE:
            raise bad_signature(folder, f"{SIGNATURE} is too large for a file of signatures")
        signatures = Signatures.model_validate_json(read_inside(folder, SIGNATURE))
    except ValidationError as error:
        raise bad_signature(folder, f"{SIGNATURE} is not in the form that Thunder writes: {first_of(error)}") from error
    except (ArtifactDamaged, OSError) as error:
        raise bad_signature(folder, str(getattr(error, "what", error))) from error
    if not signatures.signatures:
        raise bad_signature(folder, f"{SIGNATURE} contains no signature")
    return signatures


def verify_signature(facts: SignatureFacts, manifest: Manifest) -> PublicKey | None:
    """Return the key that made a signature of the artifact; None if the signature is not valid."""
    try:
        key = parse_text(facts.key, facts.comment)
        signature = base64.b64decode(facts.signature, validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if import_key_function("verifies")(key, signature, message_of(manifest)) else None


def signers_of(artifact: Artifact) -> tuple[PublicKey, ...]:
    """Return the keys that signed an artifact; raise `BadSignature` if any signature is not valid."""
    if not is_signed(artifact.folder):
        return ()
    signatures = read_signatures(artifact.folder).signatures
    keys = tuple(key for facts in signatures if (key := verify_signature(facts, artifact.manifest)) is not None)
    if len(keys) < len(signatures):
        raise bad_signature(
            artifact.folder, "a signature does not match this artifact: the signature or the manifest has been changed"
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

    The comments in the artifact are not signed. Raises `BadKey` if the list of keys cannot be trusted, `BadSignature`,
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
    names = ", ".join(key.name_with_comment for key in signers)
    by = f"is signed by {names}, which is not a trusted key" if signers else "is not signed"
    return f"{folder} {by}"


def bad_signature(folder: Path, what: str) -> BadSignature:
    """Return the error for an invalid signature."""
    return BadSignature(
        f"a signature of {folder} is not valid: {what}",
        fix="get the artifact again from its signer; if you made the artifact, sign it again with `thunder sign`",
    )
