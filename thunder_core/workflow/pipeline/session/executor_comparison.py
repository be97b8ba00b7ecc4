"""Compare executors with eager PyTorch, for recipes with an executor that only checks the results of others.

The comparison runs once. The artifact contains the same program without the checking executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from thunder_core.backend.claiming.executor import Executor
from thunder_core.compilation.compiler.check_listing import CheckedOperation, checks
from thunder_core.foundation.errors import BadOption, SourceLine, ThunderError, ValidationError, WrongResult
from thunder_core.tracing.extension.authorship import is_ours, line_in_class, line_of
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.executors import candidates
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.report import ComparisonFacts, ExecutorComparison

COMPARING = "debug"  # the executor that compares the results of other executors


def comparing_executors(prepared: PreparedModel) -> tuple[str, ...]:
    """Return the names of the executors that only compare the results of others."""
    return tuple(
        candidate.name
        for candidate in prepared.executors
        if candidate.executor is not None and candidate.executor.only_compares
    )


def with_comparing_executor(prepared: PreparedModel) -> PreparedModel | None:
    """Return the preparation with the executor that compares; None if all executors are Thunder's own."""
    if not any(
        is_third_party(candidate.executor) for candidate in prepared.executors if candidate.executor is not None
    ):
        return None
    return replace(prepared, executors=(*candidates((COMPARING,)), *prepared.executors))


def is_third_party(executor: Executor) -> bool:
    """Whether an executor, or one of its functions for operations, is from a third party."""
    functions = [claim.symbol.target for claim in getattr(executor, "table", {}).values()]
    return not is_ours(executor) or not all(map(is_ours, functions))


@contextmanager
def name_wrong_executor(prepared: PreparedModel, call: Callable[[PreparedModel], object]) -> Iterator[None]:
    """Raise `WrongResult` if the block fails because of a third-party executor.

    `call` repeats the failed call with the executor that compares, which finds the wrong executor.
    """
    try:
        yield
    except ThunderError:
        raise
    except Exception:
        comparing = with_comparing_executor(prepared)
        if comparing is None:
            raise
        with suppress_all_but(WrongResult):
            call(comparing)
        raise


@contextmanager
def blame_executor(prepared: PreparedModel) -> Iterator[None]:
    """Raise `WrongResult` if a validation fails because of a line that a third-party executor runs."""
    try:
        yield
    except ValidationError as error:
        fault: Any = error.faults[0] if error.faults else None
        executors = [
            candidate.executor for candidate in prepared.executors if fault is not None and candidate.name == fault.by
        ]
        if not executors or executors[0] is None or not is_third_party(executors[0]):
            raise
        wrong = WrongResult(
            f"the executor {fault.by} computes a line wrongly; {error.what}",
            fix=error.fix,
            where=line_of_claim(executors[0], fault),
        )
        wrong.report = getattr(error, "report", None)
        raise wrong from error


def line_of_claim(executor: Executor, fault: Any) -> SourceLine | None:
    """Return the source line of the executor's function that the wrong line calls, or of the executor's `claim`."""
    targets = [claim.symbol.target for claim in getattr(executor, "table", {}).values()]
    named = [target for target in targets if getattr(target, "__name__", "\0") in fault.line and not is_ours(target)]
    return line_of(named[0]) if named else line_in_class(type(executor), "claim")


@contextmanager
def suppress_all_but(kind: type[Exception]) -> Iterator[None]:
    """Suppress all errors of the block except errors of a class."""
    try:
        yield
    except kind:
        raise
    except Exception:
        return


def without_comparison(prepared: PreparedModel) -> PreparedModel:
    """Return the preparation without the executors that only compare."""
    names = comparing_executors(prepared)
    return replace(
        prepared, executors=tuple(candidate for candidate in prepared.executors if candidate.name not in names)
    )


def refuse_comparison(request: Request, prepared: PreparedModel) -> None:
    """Raise `BadOption` for a comparison of executors with a target, because nothing runs on this machine."""
    if request.target and (names := comparing_executors(prepared)):
        raise BadOption(
            f"--target {request.target} and the executor {names[0]} of the recipe {prepared.recipe.name} exclude each "
            "other: it compares the other executors while they run, but nothing runs on this machine",
            fix=f"leave out --target, or the recipe that adds {names[0]}",
        )


def comparison_facts(compiled: object, by: str) -> ComparisonFacts:
    """Return the comparisons that an executor has made so far, in all programs of a compiled model."""
    return ComparisonFacts(by=by, operations=tuple(comparison_rows(checks(compiled))))


def comparison_rows(checked: list[CheckedOperation]) -> Iterator[ExecutorComparison]:
    """Yield a row for each executor and operation; claims that were not compared have a row for each reason."""
    groups: dict[tuple[str, tuple[str, ...], str], list[CheckedOperation]] = {}
    for operation in checked:
        groups.setdefault((operation.executor, operation.operations, operation.left_out), []).append(operation)
    for (executor, operations, left_out), members in groups.items():
        yield ExecutorComparison(
            executor=executor,
            operations=operations,
            claims=len(members),
            compared=sum(member.compared for member in members),
            largest=max(member.largest for member in members),
            left_out=left_out,
        )
