"""The rules of a benchmark: against whom, and at which sizes; checked before PyTorch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.errors import BadOption
from thunder_core.pipeline.foresight import require_least
from thunder_core.plugins import unknown_name

# Whom Thunder may be measured against, and who that is; `contest.py` says how each is made.
AGAINST: dict[str, str] = {"eager": "eager PyTorch", "inductor": "torch.compile"}


@dataclass(frozen=True)
class Contest:
    """What to measure: contenders by name, batches and sequence lengths, and how often."""

    against: tuple[str, ...] = ("eager",)
    batches: tuple[int, ...] = (1,)
    seqs: tuple[int | None, ...] = (None,)
    runs: int = 30
    warmup: int = 5


def check_contest(contest: Contest) -> None:
    """Raise UnknownName for a contender that does not exist, and BadOption for sizes that cannot be."""
    for name in contest.against:
        if name not in AGAINST:
            raise unknown_name("contender", name, AGAINST)
    if not contest.against:
        raise BadOption("--against names nobody", fix=f"name one of: {', '.join(AGAINST)}")
    for option, values, least in (
        ("--batch", contest.batches, 1),
        ("--seq", contest.seqs, 1),
        ("--runs", (contest.runs,), 2),
        ("--warmup", (contest.warmup,), 0),
    ):
        for value in values:
            require_least(option, value, least)
