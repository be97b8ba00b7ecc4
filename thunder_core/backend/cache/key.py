"""The key of an entry: the named parts of everything that a compiled kernel depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from blake3 import blake3

SCHEMA_VERSION = 2  # the version of the key's canonical form and of the manifest
MAX_BYTES = 1 << 20  # bytes of a key; every listing of the entries reads all keys
REGION = "region"  # the field by which `why` finds the entries of the same piece of program


@dataclass(frozen=True)
class Key:
    """An executor, and the fields that its kernel depends on: `region`, `compiler`, `hardware`, `torch`, ...

    Two keys are equal if and only if executor and fields are equal; a change of any field makes another entry.
    """

    executor: str
    fields: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.executor, *self.fields, *self.fields.values())):
            raise TypeError(f"the parts of a key must be strings: {self.executor!r} {self.fields}")
        object.__setattr__(self, "fields", dict(sorted(self.fields.items())))
        if len(self.canonical().encode()) > MAX_BYTES:  # this also refuses strings that cannot be encoded
            raise ValueError(f"the key of {self.executor} has more than {MAX_BYTES} bytes: use digests of long strings")

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """The BLAKE3 digest of the canonical form, in hexadecimal: the name of the entry's folder."""
        return blake3(self.canonical().encode()).hexdigest()

    def canonical(self) -> str:
        """Return the canonical text of the key: JSON, whose quotes separate the parts, with the fields in order."""
        content = ["thunder.kernel", SCHEMA_VERSION, self.executor, dict(self.fields)]
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
