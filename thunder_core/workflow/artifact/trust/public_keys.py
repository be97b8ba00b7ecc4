"""Public keys of signers of artifacts, in OpenSSH's one-line format, and the user's list of trusted keys.

This module neither signs nor verifies, so the list can be read without the library `cryptography`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from thunder_core.foundation.errors import BadKey
from thunder_core.foundation.printable import printable
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.full_disk import report_full_disk
from thunder_core.foundation.storage.ownership import fault_of
from thunder_core.foundation.storage.plain_file import reason_of

KEY_TYPE = "ssh-ed25519"
KEY_BYTES = 32  # bytes of an Ed25519 public key: RFC 8032, section 5.1.5
# RFC 8709, section 4: the length of the key type in four bytes, the type, the length of the key, and the key.
KEY_PREFIX = len(KEY_TYPE).to_bytes(4, "big") + KEY_TYPE.encode() + KEY_BYTES.to_bytes(4, "big")
FOLDER_VARIABLE = "THUNDER_CONFIG_DIR"
TRUSTED_FILE = "trusted_keys"
MAX_BYTES = 1 << 20  # bytes of a file of keys
MAX_COMMENT = 120  # letters


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key. The comment names the owner and is not part of the key."""

    raw: bytes
    comment: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The key in base64, in OpenSSH's format."""
        return base64.b64encode(KEY_PREFIX + self.raw).decode()

    @property
    def line(self) -> str:
        """The key as a line of a `.pub` file or of the list."""
        return f"{KEY_TYPE} {self.text} {self.comment}".rstrip()

    @property
    def fingerprint(self) -> str:
        """The fingerprint for comparison by people, as `ssh-keygen -lf` prints it."""
        return f"SHA256:{base64.b64encode(hashlib.sha256(KEY_PREFIX + self.raw).digest()).decode().rstrip('=')}"

    def __str__(self) -> str:
        return f"{self.fingerprint} ({self.comment})" if self.comment else self.fingerprint


def parse_line(line: str) -> PublicKey:
    """Parse a key as a line in OpenSSH's format; raise ValueError."""
    kind, _, rest = line.strip().partition(" ")
    text, _, comment = rest.strip().partition(" ")
    if kind != KEY_TYPE:
        raise ValueError(f"a line of {KEY_TYPE} was expected")
    try:
        content = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("it is not base64") from error
    if not content.startswith(KEY_PREFIX) or len(content) != len(KEY_PREFIX) + KEY_BYTES:
        raise ValueError(f"it is not a {KEY_TYPE} key")
    return PublicKey(content[len(KEY_PREFIX) :], " ".join(printable(comment).split())[:MAX_COMMENT])


def parse_lines(text: str, file: object) -> Iterator[PublicKey]:
    """Parse a text with one key on each line, empty lines and comments; raise `BadKey` with the line's number."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            yield parse_line(line)
        except ValueError as error:
            raise BadKey(
                f"line {number} of {file} is not a public key: {error}",
                fix=f"write one key on each line as `{KEY_TYPE} AAAA... comment`, or remove the line",
            ) from error


def trusted_file() -> Path:
    """Return the path of the user's list: `trusted_keys` in `THUNDER_CONFIG_DIR` or in the settings folder."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return (absolute(folder) if folder else platformdirs.user_config_path("thunder")) / TRUSTED_FILE


def trusted_list() -> tuple[PublicKey, ...]:
    """Return the keys that the user trusts; empty without a list. Raise `BadKey` if other users can write the list."""
    file = trusted_file()
    try:
        require_own(file)
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else reason_of(error)
        raise BadKey(
            f"{file} cannot be read: {reason}",
            fix=f"check the owner and the permissions of the file, remove the file, or set {FOLDER_VARIABLE} to "
            "another folder",
        ) from error
    return tuple(parse_lines(text, file))


def require_own(file: Path) -> None:
    """Raise `BadKey` if other users can write the list or its folder, because they could add their own keys."""
    for path in (file, file.parent):
        if fault := fault_of(path.stat()):
            fix = f"run `chmod go-w {path}` if the file is yours"
            raise BadKey(f"{path} {fault}, so the keys in it cannot be trusted", fix=fix)


def write_trusted(keys: Iterable[PublicKey]) -> Path:
    """Write the user's list of trusted keys, writable only by the user; return its path."""
    file = trusted_file()
    lines = "".join(f"{key.line}\n" for key in dict.fromkeys(keys))
    new = file.with_name(f".{TRUSTED_FILE}.{os.getpid()}")
    try:
        with report_full_disk(f"{file} was not written"):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            head = "# Trusted keys: artifacts signed with them are trusted; `thunder keys` edits this list.\n"
            new.write_text(f"{head}{lines}", encoding="utf-8")
            new.chmod(0o600)
            new.replace(file)
    except OSError as error:
        fix = f"name another folder by {FOLDER_VARIABLE}"
        raise BadKey(f"{file} cannot be written: {error.strerror}", fix=fix) from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    return file
