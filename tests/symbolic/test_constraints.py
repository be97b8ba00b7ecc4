"""Each kind of constraint is needed: without its check, a program gives a wrong result for some call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.symbolic.constraint_examples import EXAMPLES, UNBACKED, Example, without_check, without_expectations

pytestmark = pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.RecompileWarning")


def refuses_by_its_check(example: Example) -> bool:
    """Whether only the check of an example refuses the other call."""
    program = example.program()
    texts = [str(guard).partition(", needed")[0] for guard in program.guards]
    if example.text not in texts or example.is_served_wrongly(program) is not None:
        return False
    return bool(example.is_served_wrongly(without_check(program, texts.index(example.text))))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_without_its_check_the_result_of_another_call_is_wrong(kind: str) -> None:
    assert refuses_by_its_check(EXAMPLES[kind])


def refuses_by_values(example: Example) -> bool:
    """Whether only a check of tensor values refuses the other call of an example."""
    program = example.program()
    return example.is_served_wrongly(program) is None and bool(example.is_served_wrongly(without_expectations(program)))


@pytest.mark.parametrize("kind", UNBACKED)
def test_without_a_check_of_values_the_result_of_another_call_is_wrong(kind: str) -> None:
    assert refuses_by_values(UNBACKED[kind])


def nothing(*args: Any) -> None:
    """Do nothing, in place of a function that adds a constraint."""


# By name in the source: the replacement, and the kinds of constraints that are lost with it.
MUTATIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "thunder_core.tracing.capture.symbolic.sizes.SymbolicSizes.guards": (
        lambda sizes: iter(()),
        ("a lower bound", "divisible", "a derivative"),
    ),
    "thunder_core.frontend.acquire.codegen.constraints.IntegerRange.restrict": (
        lambda interval, constraint: True,
        ("an upper bound", "an excluded value", "a value that is asked for"),
    ),
    "thunder_core.frontend.acquire.codegen.constraints.is_implied": (
        lambda condition, ranges: True,
        ("equal sizes of two tensors", "divisible by another size", "a smaller size", "what PyTorch decides"),
    ),
    "thunder_core.frontend.acquire.codegen.prologue.Prologue._check_symbolic_strides": (
        nothing,
        ("the strides of a layout", "a stride"),
    ),
    "thunder_core.frontend.acquire.numbers.OutsideNumbers.guard": (
        nothing,
        ("a float that decides", "floats in their order", "floats that are equal", "a float as a key, with gradients"),
    ),
    "thunder_core.passes.autodiff.vjp.restrict": (nothing, ("a float below a landmark of a derivative",)),
    "thunder_core.backend.fusion.fuse.apply_conditions": (lambda conditions, symbols: "", ("a compiled region",)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_code_that_loses_constraints_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed, kinds = MUTATIONS[name]
    monkeypatch.setattr(name, changed)
    for kind in kinds:
        assert not refuses_by_its_check(EXAMPLES[kind]), kind


def test_code_that_loses_value_checks_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thunder_core.tracing.capture.recorded_lines.with_result_checks", lambda *args: iter(()))
    assert not refuses_by_values(UNBACKED["a size by values"])
