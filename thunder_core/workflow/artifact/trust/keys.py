"""Make key pairs, read key files, sign and verify, with the library `cryptography`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from thunder_core.foundation.errors import BadKey, OutputExists, OutputNotWritable
from thunder_core.foundation.storage.full_disk import report_unwritable
from thunder_core.foundation.storage.manifest import require_outside_artifacts
from thunder_core.foundation.storage.plain_file import read_plain, reason_of
from thunder_core.workflow.artifact.trust.public_keys import KEY_TYPE, MAX_BYTES, PublicKey, parse_lines
from thunder_core.workflow.artifact.trust.ssh_signature import SshSignature, signed_bytes

PASSPHRASE_VARIABLE = "THUNDER_KEY_PASSPHRASE"  # noqa: S105 (the name of the variable)
OTHERS_PERMISSIONS = stat.S_IRWXG | stat.S_IRWXO
RAW_FORMAT = (serialization.Encoding.Raw, serialization.PublicFormat.Raw)
PEM_PUBLIC = b"-----BEGIN PUBLIC KEY-----"


def new_key_pair(path: Path, comment: str = "") -> PublicKey:
    """Make a key pair: the private key at `path`, which only its owner can read, and the public key at `PATH.pub`.

    The private key is protected by the passphrase in `THUNDER_KEY_PASSPHRASE`, if it is set. Raises `OutputExists` if a
    file exists, and `OutputNotWritable`.
    """
    require_outside_artifacts(path)
    private = Ed25519PrivateKey.generate()
    public = PublicKey(private.public_key().public_bytes(*RAW_FORMAT), comment)
    write_new(path, private.private_bytes(serialization.Encoding.PEM, *protection_of(passphrase())), 0o600)
    try:
        write_new(public_path(path), f"{public.line}\n".encode(), 0o644)
    except BaseException:
        path.unlink()
        raise
    return public


def protection_of(
    secret: bytes | None,
) -> tuple[serialization.PrivateFormat, serialization.KeySerializationEncryption]:
    """Return the format of a new private key: OpenSSH's, or PKCS #8 with a passphrase, which needs no other library."""
    if secret is None:
        return serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    return serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(secret)


def public_path(private: Path) -> Path:
    """Return the path of the public key that belongs to a private key."""
    return private.with_name(f"{private.name}.pub")


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, never with more permissions than `mode`; remove the file if writing fails."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise OutputExists(f"{path} exists and was kept", fix="name another file for the key") from error
    except OSError as error:
        raise OutputNotWritable(f"{path} cannot be written: {error.strerror}", fix="name another file") from error
    try:
        with report_unwritable(path, fix="name another file"), os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        path.unlink()
        raise


def passphrase() -> bytes | None:
    """Return the passphrase of private keys from the environment; None if it is not set."""
    return os.environ.get(PASSPHRASE_VARIABLE, "").encode() or None


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key in PEM or OpenSSH's format. Raises `BadKey`, for example if other users can read the file."""
    content = content_of(path)
    if content.startswith((PEM_PUBLIC, f"{KEY_TYPE} ".encode())):
        private = path.with_suffix("") if path.suffix == ".pub" else "made by `thunder keys new`"
        raise BadKey(f"{path} is a public key", fix=f"name the private key, such as {private}")
    if path.stat().st_mode & OTHERS_PERMISSIONS:
        raise BadKey(f"other users can read {path}, so they could sign as you", fix=f"run chmod 600 {path}")
    load = (
        serialization.load_ssh_private_key if b"OPENSSH PRIVATE KEY" in content else serialization.load_pem_private_key
    )
    try:
        key = load(content, passphrase())
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(
            f"{path} cannot be read as a private key: {error}",
            fix=f"name a key file made by `thunder keys new`; "
            f"set {PASSPHRASE_VARIABLE} to its passphrase, if it has one",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(f"the key in {path} is not an Ed25519 key", fix="make a key with `thunder keys new FILE`")
    return key


def read_public_keys(path: Path) -> tuple[PublicKey, ...]:
    """Read the public keys of a file: one key in PEM, or lines in OpenSSH's format; raise `BadKey`."""
    content = content_of(path)
    if b"PRIVATE KEY" in content:
        raise BadKey(f"{path} is a private key", fix=f"name the public key, such as {public_path(path)}")
    if content.startswith(PEM_PUBLIC):
        return (read_pem(path, content),)
    keys = tuple(parse_lines(content.decode(errors="replace"), path))
    if not keys:
        raise BadKey(f"{path} has no public key", fix=f"name a file with a line `{KEY_TYPE} AAAA... comment`")
    return keys


def read_pem(path: Path, content: bytes) -> PublicKey:
    """Return the public key of a file in PEM format; raise `BadKey`."""
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(f"{path} cannot be read as a public key: {error}", fix="name another file") from error
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey(f"the key in {path} is not an Ed25519 key", fix="make a key with `thunder keys new FILE`")
    return PublicKey(key.public_bytes(*RAW_FORMAT))


def content_of(path: Path) -> bytes:
    """Return the bytes of a key file; raise `BadKey` if the file cannot be read or is too large."""
    try:
        return read_plain(path, MAX_BYTES)
    except OSError as error:
        raise BadKey(f"the key {path} {reason_of(error)}", fix="name a key file made by `thunder keys new`") from error


def sign_message(private: Ed25519PrivateKey, message: bytes) -> SshSignature:
    """Return the signature of a message by a private key."""
    public = PublicKey(private.public_key().public_bytes(*RAW_FORMAT))
    return SshSignature(public, private.sign(signed_bytes(message)))


def verifies(signature: SshSignature, message: bytes) -> bool:
    """Whether a signature is valid for a message."""
    try:
        public = Ed25519PublicKey.from_public_bytes(signature.key.raw)
        public.verify(signature.signature, signed_bytes(message, signature.hash_name))
    except (InvalidSignature, ValueError):
        return False
    return True
