"""Signatures in OpenSSH's format SSHSIG (`PROTOCOL.sshsig` in its sources), which `ssh-keygen -Y` makes and verifies.

This module prints and parses signatures. It needs no library for cryptography.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import textwrap
from dataclasses import dataclass

from thunder_core.workflow.artifact.trust.public_keys import KEY_BYTES, KEY_PREFIX, KEY_TYPE, PublicKey

NAMESPACE = "thunder-artifact"  # a signature for another purpose is not valid for an artifact
HASHES = ("sha512", "sha256")  # the first is the default of ssh-keygen
HEAD = b"SSHSIG" + (1).to_bytes(4, "big") + (len(KEY_PREFIX) + KEY_BYTES).to_bytes(4, "big") + KEY_PREFIX
SIGNATURE_BYTES = 64
BLOCK = re.compile(r"-----BEGIN SSH SIGNATURE-----\n([A-Za-z0-9+/=\n]*)-----END SSH SIGNATURE-----\n")


def join_fields(*fields: bytes) -> bytes:
    """Return fields in OpenSSH's binary format: each after its length in four bytes (RFC 4251, section 5)."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


@dataclass(frozen=True)
class SshSignature:
    """An Ed25519 signature of the hash of a message, with the public key. `hash_name` names the hash."""

    key: PublicKey
    signature: bytes
    hash_name: str = HASHES[0]

    @property
    def blob(self) -> bytes:
        """The signature in OpenSSH's binary format."""
        signature = join_fields(KEY_TYPE.encode(), self.signature)
        return HEAD + self.key.raw + join_fields(NAMESPACE.encode(), b"", self.hash_name.encode(), signature)

    def __str__(self) -> str:
        lines = textwrap.fill(base64.b64encode(self.blob).decode(), 70)
        return f"-----BEGIN SSH SIGNATURE-----\n{lines}\n-----END SSH SIGNATURE-----\n"


def signed_bytes(message: bytes, hash_name: str = HASHES[0]) -> bytes:
    """Return the bytes that the key signs for a message."""
    digest = hashlib.new(hash_name, message).digest()
    return b"SSHSIG" + join_fields(NAMESPACE.encode(), b"", hash_name.encode(), digest)


def parse_signatures(text: str) -> tuple[SshSignature, ...]:
    """Parse one or more signatures; raise ValueError for any other text, and for signatures that are not supported."""
    if not BLOCK.search(text) or BLOCK.sub("", text).strip():
        raise ValueError("is not in the form that `ssh-keygen -Y sign` writes")
    try:
        blobs = [base64.b64decode(block) for block in BLOCK.findall(text)]
    except binascii.Error as error:
        raise ValueError("is damaged: it is not base64") from error
    return tuple(map(parse_signature, blobs))


def parse_signature(blob: bytes) -> SshSignature:
    """Parse a signature in OpenSSH's binary format; raise ValueError."""
    key, signature = PublicKey(blob[len(HEAD) : len(HEAD) + KEY_BYTES]), blob[-SIGNATURE_BYTES:]
    for hash_name in HASHES:
        parsed = SshSignature(key, signature, hash_name)
        if parsed.blob == blob:
            return parsed
    raise ValueError(f"has a signature that is not by a {KEY_TYPE} key, or not for the namespace {NAMESPACE}")
