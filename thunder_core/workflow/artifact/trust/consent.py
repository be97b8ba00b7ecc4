"""The permissions that a user gives to the loading of an artifact, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike


@dataclass(frozen=True)
class Consent:
    """The arguments of `thunder_core.load` that say which code and keys are trusted; see the docstring of `load`.

    Iterables are copied to tuples, because they may be read more than once.
    """

    trust_remote_code: bool = False
    trusted_modules: Iterable[str] = ()
    trusted_keys: Iterable[str | PathLike[str]] | None = None
    require_signature: bool = False

    def __post_init__(self) -> None:
        for name in ("trusted_modules", "trusted_keys"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | PathLike):
                object.__setattr__(self, name, tuple(value))


NO_CONSENT = Consent()
