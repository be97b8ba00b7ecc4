"""What the user of an artifact allows when it is loaded, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike


@dataclass(frozen=True)
class Consent:
    """The arguments of `thunder_core.load` that say what is trusted; it tells what each of them means."""

    trust_remote_code: bool = False
    trusted_modules: Iterable[str] = ()
    trusted_keys: Iterable[str | PathLike[str]] | None = None
    require_signature: bool = False


NO_CONSENT = Consent()
