"""Write docs/coverage_vmap.md, the table of operators under `torch.vmap`, from the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.coverage.symbolic_page import Verdicts, differing, is_equal, page, shares

PAGE = Path(__file__).parents[2] / "docs" / "coverage_vmap.md"
LEVELS = ("one level", "two levels")

HEAD = """\
# Coverage under vmap

<!-- Written by `make coverage-vmap`. -->

Every operator of PyTorch's own operator database in a compiled program that calls it within `torch.vmap`, and within
`torch.vmap` of `torch.vmap`, with batches in random dimensions (`in_dims`) of some of its tensors. Results, their
metadata and the state of the random number generator are compared with eager `torch.vmap`. Operators and samples that
eager `torch.vmap` refuses are omitted. A cell shows the number of equal samples and the number of all samples. A star
marks operators that read the value of a tensor for some samples.
"""


def render(found: Mapping[str, Verdicts]) -> str:
    """Return the whole page."""
    present = {name: verdicts for name, verdicts in found.items() if verdicts}
    return page(HEAD, shares(present, LEVELS, {"equal": is_equal}), differing(present), _table(present))


def _table(found: Mapping[str, Verdicts]) -> Iterator[str]:
    yield f"| name | {' | '.join(LEVELS)} |"
    yield "|---|" + "---|" * len(LEVELS)
    for name, verdicts in found.items():
        yield f"| `{name}` | {' | '.join(_cell(verdicts.get(level)) for level in LEVELS)} |"


def _cell(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return ""
    equal = verdict["tried"] - verdict["failed"]
    text = str(equal) if not verdict["failed"] else f"{equal} of {verdict['tried']}"
    return f"{text} *" if verdict["guarded"] else text
