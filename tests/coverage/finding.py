"""The finding on one sample of an operator or a module, and the verdict on all of its samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

DIRECTIONS = ("forward", "backward", "second", "errors")


@dataclass(frozen=True)
class Finding:
    """The finding on one sample of one direction; `failure` is None if the compiled result equals eager's.

    `guarded`: the program asks for the values of tensors, and is refused with `data_dependent="error"`. `specialized`
    is why a program with symbolic sizes does not serve the sample in other sizes; empty where it does.
    """

    direction: str
    dtype: str
    variant: str
    sample: int
    failure: str | None
    guarded: bool = False
    specialized: str = ""


@dataclass
class Verdict:
    """The verdict on all samples of a direction: numbers run, failed, guarded and specialized, with first reasons."""

    tried: int = 0
    failed: int = 0
    guarded: int = 0
    specialized: int = 0
    failure: str | None = None
    specialized_by: str = ""
    dtypes: list[str] = field(default_factory=list)

    def note(self, finding: Finding) -> None:
        """Count one more sample."""
        self.tried += 1
        self.guarded += finding.guarded
        self.specialized += bool(finding.specialized)
        self.specialized_by = self.specialized_by or finding.specialized
        dtype = finding.dtype.removeprefix("torch.")
        if dtype and dtype not in self.dtypes:
            self.dtypes.append(dtype)
        if finding.failure is not None:
            self.failed += 1
            place = f"{dtype} {finding.variant} {finding.sample}".strip()
            self.failure = self.failure or f"{place}: {finding.failure.splitlines()[0]}"


def verdicts(findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """Return the verdict on each direction that has samples, as plain data."""
    found: dict[str, Verdict] = {}
    for finding in findings:
        found.setdefault(finding.direction, Verdict()).note(finding)
    return {direction: asdict(verdict) for direction, verdict in found.items()}
