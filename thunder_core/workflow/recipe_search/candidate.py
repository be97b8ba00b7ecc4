"""A candidate of a search: a combination of recipes and settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_core.foundation.options.quality import Quality
from thunder_core.workflow.pipeline.request.request import Request

EAGER = "eager"


@dataclass(frozen=True)
class Candidate:
    """A configuration that a search tries. `rank` is the number of steps from eager PyTorch, whose rank is 0.

    `bound` is the largest loss that the candidate may have (`loss.py`), if its recipes do not define a bound. If the
    candidate `quantizes`, its first trial determines which layers stay in float.
    """

    name: str
    rank: int
    recipes: tuple[str, ...] = ()
    dtype: str | None = None
    threads: int | None = None
    without: tuple[str, ...] = ()
    quantizes: bool = False
    options: tuple[tuple[str, str], ...] = ()
    bound: Quality | None = None

    @property
    def is_eager(self) -> bool:
        """Whether the candidate is the model itself in eager PyTorch."""
        return self.rank == 0

    @property
    def settings(self) -> dict[str, str]:
        """The settings other than the recipe, by the names of their options."""
        settings = {
            "dtype": self.dtype,
            "threads": self.threads,
            "without": ",".join(self.without),
            "skip-layers": "auto" if self.quantizes else None,
            "set": ",".join(f"{name}={value}" for name, value in self.options),
        }
        return {name: str(value) for name, value in settings.items() if value}

    def request(self, base: Request) -> Request:
        """Return the base request with the recipes and settings of the candidate."""
        model = base.model if self.dtype is None else replace(base.model, dtype=self.dtype)
        return replace(
            base,
            model=model,
            recipe=self.recipes or base.recipe,
            options={**base.options, **dict(self.options)},
            threads=self.threads or base.threads,
            without=(*base.without, *self.without),
            skip_layers="auto" if self.quantizes else "",
        )


@dataclass(frozen=True)
class ExcludedCandidate:
    """A candidate that does not apply, and the reason; `least_memory` is set if its weights exceed the memory bound."""

    candidate: Candidate
    reason: str
    least_memory: int | None = None
