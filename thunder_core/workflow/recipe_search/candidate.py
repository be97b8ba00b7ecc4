"""A candidate of a search: a sum of recipes with the settings that go with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thunder_core.foundation.options.quality import Quality
from thunder_core.workflow.pipeline.request.request import Request

EAGER = "eager"


@dataclass(frozen=True)
class Candidate:
    """One way to run a model; `rank` counts the steps from eager PyTorch, which is 0.

    `bound` is what the candidate may lose, where its recipes name none of their own. The `skipped` layers of one that
    `quantizes` are known once it was tried.
    """

    name: str
    rank: int
    recipes: tuple[str, ...] = ()
    dtype: str | None = None
    threads: int | None = None
    without: tuple[str, ...] = ()
    executors: tuple[str, ...] = ()
    quantizes: bool = False
    options: tuple[tuple[str, str], ...] = ()
    bound: Quality | None = None

    @property
    def is_eager(self) -> bool:
        """Whether it is the model itself, as eager PyTorch runs it."""
        return self.rank == 0

    @property
    def settings(self) -> dict[str, str]:
        """The settings beside the recipe, by the names of their options."""
        given = {
            "dtype": self.dtype,
            "threads": self.threads,
            "without": ",".join(self.without),
            "add-executor": ",".join(self.executors),
            "skip-layers": "auto" if self.quantizes else None,
            "set": ",".join(f"{name}={value}" for name, value in self.options),
        }
        return {name: str(value) for name, value in given.items() if value}

    def request(self, base: Request) -> Request:
        """The request that makes the candidate of the model, sizes and destination of another one."""
        model = base.model if self.dtype is None else replace(base.model, dtype=self.dtype)
        return replace(
            base,
            model=model,
            recipe=self.recipes or base.recipe,
            options={**base.options, **dict(self.options)},
            threads=self.threads or base.threads,
            without=(*base.without, *self.without),
            add_executor=(*base.add_executor, *self.executors),
            skip_layers="auto" if self.quantizes else "",
        )


@dataclass(frozen=True)
class Excluded:
    """A candidate that does not apply, and why; of one that takes too much, the least bytes that it takes."""

    candidate: Candidate
    reason: str
    least_memory: int | None = None
