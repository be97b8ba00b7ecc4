"""The comparison of executors with eager PyTorch, for recipes with an executor that only compares.

What an artifact keeps is the same program without it: a comparison finds out once whether the executors are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from thunder_core.compiler.check_listing import CheckedOperation, checks
from thunder_core.errors import BadOption
from thunder_core.pipeline.prepare import Prepared
from thunder_core.pipeline.request import Request
from thunder_core.report import ComparisonFacts, ExecutorComparison


def comparing_executors(prepared: Prepared) -> tuple[str, ...]:
    """The names of the executors of a preparation that only compare what the others compute."""
    return tuple(one.name for one in prepared.executors if one.executor is not None and one.executor.only_compares)


def without_comparison(prepared: Prepared) -> Prepared:
    """The preparation without the executors that only compare."""
    names = comparing_executors(prepared)
    return replace(prepared, executors=tuple(one for one in prepared.executors if one.name not in names))


def refuse_comparison(request: Request, prepared: Prepared) -> None:
    """Raise `BadOption` where executors are to be compared as they run, and nothing runs on this machine."""
    if request.target and (names := comparing_executors(prepared)):
        raise BadOption(
            f"--target {request.target} and the executor {names[0]} of the recipe {prepared.recipe.name} exclude each "
            "other: it compares the other executors while they run, but nothing runs on this machine",
            fix=f"leave out --target, or the recipe that adds {names[0]}",
        )


def comparison_facts(compiled: Any, by: str) -> ComparisonFacts:
    """The comparisons that an executor has made until now, in all programs of a compiled model."""
    return ComparisonFacts(by=by, operations=tuple(comparison_rows(checks(compiled))))


def comparison_rows(checked: list[CheckedOperation]) -> Iterator[ExecutorComparison]:
    """Yield a row for all claims of an executor to the same operations, and for those left out for one reason."""
    groups: dict[tuple[str, tuple[str, ...], str], list[CheckedOperation]] = {}
    for one in checked:
        groups.setdefault((one.executor, one.operations, one.left_out), []).append(one)
    for (executor, operations, left_out), members in groups.items():
        yield ExecutorComparison(
            executor=executor,
            operations=operations,
            claims=len(members),
            compared=sum(one.compared for one in members),
            largest=max(one.largest for one in members),
            left_out=left_out,
        )
