"""Detached Ed25519 signatures of artifacts, in a file beside the manifest, which stays as it is.

Signed is a context, which keeps the signature from being one of anything else, and the manifest's seal, a digest that
covers every file. The library that computes is imported where there is something to compute.
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
    OutputNotWritable,
    UnsignedWarning,
)
from thunder_core.foundation.printable import printable
from thunder_core.foundation.storage.manifest import StoredFacts
from thunder_core.workflow.artifact.format.manifest import SIGNATURE, Manifest
from thunder_core.workflow.artifact.format.read import Artifact, first_of, inside, read_inside
from thunder_core.workflow.artifact.trust.consent import Consent
from thunder_core.workflow.artifact.trust.public_keys import PublicKey, parse_lines, parse_text, trusted_list

CONTEXT = b"thunder artifact signature 1\0"
MOST_SIGNATURE = 1 << 16  # bytes of the file
KEYS = "thunder_core.workflow.artifact.trust.keys"


class SignatureFacts(StoredFacts):
    """A key in base64 as OpenSSH writes it, whose it is said to be, and its signature in base64."""

    key: str
    comment: str = ""
    signature: str


class Signatures(StoredFacts):
    """The signatures of an artifact, the latest last; each key has one."""

    schema_version: Literal[1] = 1
    signatures: tuple[SignatureFacts, ...]


def message_of(manifest: Manifest) -> bytes:
    """The message that is signed of an artifact."""
    return CONTEXT + manifest.digest.encode()


def computing(name: str) -> Any:
    """A function of the module that computes with keys, which is imported now."""
    return plugins.imported(f"{KEYS}:{name}")


def is_signed(folder: Path) -> bool:
    """Whether there is a file of signatures, whatever it holds."""
    return os.path.lexists(folder / SIGNATURE)


def sign_folder(folder: Path, manifest: Manifest, private: Any, comment: str = "") -> PublicKey:
    """Sign the manifest's seal and write it to the folder's signatures, in place of an earlier one by the same key.

    Signatures of an earlier state of the artifact are dropped. The files of the folder are not looked at: the caller
    has verified them. Raises `OutputNotWritable`, and `BadSignature` for signatures that this version cannot read.
    """
    key, signature = computing("signed")(private, message_of(manifest))
    others = valid_signatures(folder, manifest) if is_signed(folder) else ()
    claimed = parse_text(key.text, comment).comment
    mine = SignatureFacts(key=key.text, comment=claimed, signature=base64.b64encode(signature).decode())
    whole = Signatures(signatures=(*(one for one in others if one.key != mine.key), mine))
    new = folder / f".{SIGNATURE}.{secrets.token_hex(8)}"
    try:
        with new.open("x", encoding="utf-8") as file:  # refuses a link that lies there
            file.write(whole.model_dump_json(indent=1) + "\n")
        new.replace(folder / SIGNATURE)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise OutputNotWritable(
            f"{folder} cannot be written: {error.strerror}", fix="sign a copy of the artifact"
        ) from error
    return PublicKey(key.raw, claimed)


def valid_signatures(folder: Path, manifest: Manifest) -> tuple[SignatureFacts, ...]:
    """The signatures of a folder's file that are of this artifact; raises `BadSignature` if it cannot be read."""
    return tuple(one for one in read_signatures(folder).signatures if verified(one, manifest) is not None)


def read_signatures(folder: Path) -> Signatures:
    """The file of signatures as plain data; raises `BadSignature`."""
    try:
        if inside(folder, SIGNATURE).stat().st_size > MOST_SIGNATURE:
            raise bad_signature(folder, f"{SIGNATURE} is too large for a file of signatures")
        found = Signatures.model_validate_json(read_inside(folder, SIGNATURE))
    except ValidationError as error:
        raise bad_signature(folder, f"{SIGNATURE} is not one of Thunder's: {first_of(error)}") from error
    except (ArtifactDamaged, OSError) as error:
        raise bad_signature(folder, str(getattr(error, "what", error))) from error
    if not found.signatures:
        raise bad_signature(folder, f"{SIGNATURE} holds no signature")
    return found


def verified(facts: SignatureFacts, manifest: Manifest) -> PublicKey | None:
    """The key by which this is a signature of the artifact; None where it is none."""
    try:
        key = parse_text(facts.key, facts.comment)
        signature = base64.b64decode(facts.signature, validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if computing("verifies")(key, signature, message_of(manifest)) else None


def signers_of(artifact: Artifact) -> tuple[PublicKey, ...]:
    """The keys that an artifact is signed by; none where it is not. Raises `BadSignature` if any one is not of it."""
    if not is_signed(artifact.folder):
        return ()
    found = [verified(one, artifact.manifest) for one in read_signatures(artifact.folder).signatures]
    keys = tuple(key for key in found if key is not None)
    if len(keys) < len(found):
        raise bad_signature(
            artifact.folder, "a signature does not match this artifact: the signature or the manifest has been changed"
        )
    return keys


def keys_of(given: Iterable[str | PathLike[str]] | None) -> tuple[PublicKey, ...]:
    """The keys that a user names, each by a file or as a line; those of the user's list where none are given at all."""
    if given is None:
        return trusted_list()
    several = (given,) if isinstance(given, str | PathLike) else given
    return tuple(key for one in several for key in keys_named(one))


def keys_named(given: str | PathLike[str]) -> tuple[PublicKey, ...]:
    """The keys of a file, or of a line; raises `BadKey`."""
    if isinstance(given, str) and given.lstrip().startswith(("ssh-", "ecdsa-")):
        return tuple(parse_lines(given, "trusted_keys"))
    keys: tuple[PublicKey, ...] = computing("read_public_keys")(Path(given).expanduser())
    return keys


def require_authentic(artifact: Artifact, consent: Consent) -> tuple[PublicKey, ...]:
    """The trusted keys that an artifact is signed by, with the user's own comments: those in the file are not signed.

    Raises `BadKey` for a list that cannot be trusted, `BadSignature`, and `NotSigned` where a signature by a trusted
    key is required and there is none; warns with `UnsignedWarning` where none is required, but keys are trusted.
    """
    signers, trusted = signers_of(artifact), keys_of(consent.trusted_keys)
    found = tuple(dict.fromkeys(key for key in trusted if key in signers))
    if not found and consent.require_signature:
        raise NotSigned(
            untrusted_message(artifact.folder, signers),
            fix="sign the artifact with `thunder sign`, or trust the key of its signature: `thunder keys trust FILE`",
        )
    if not found and trusted:
        warnings.warn(printable(untrusted_message(artifact.folder, signers)), UnsignedWarning, stacklevel=3)
    return found


def untrusted_message(folder: Path, signers: tuple[PublicKey, ...]) -> str:
    """The message on an artifact that nobody who is trusted has signed."""
    told = ", ".join(one.claimed for one in signers)
    by = f"is signed by {told}, which is not a trusted key" if signers else "is not signed"
    return f"{folder} {by}"


def bad_signature(folder: Path, what: str) -> BadSignature:
    """The error for a signature that is none."""
    return BadSignature(
        f"a signature of {folder} is not valid: {what}",
        fix="get the artifact again from its signer; if you made the artifact, sign it again with `thunder sign`",
    )
