"""A run that cannot be built keeps no object of the user alive, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch

from thunder_core.frontend.acquire.acquire import build_run, trace_program
from thunder_core.frontend.acquire.outside.symbolic import Symbolic
from thunder_core.frontend.acquire.run import run as module
from thunder_core.frontend.acquire.run.options import RunOptions
from thunder_core.tracing.ir.retrace import Retrace

PARTS = (
    *("WholeReads", "OutsideWrites", "NativeCalls", "Classes", "Settings", "NativeReads", "CodeOrigins", "RunInputs"),
    *("OutsideNumbers", "OutsideGradients", "Recorder", "CountSources", "Texts", "ProgramDraws", "ContextVariables"),
    *("AppliedFunctions", "BackwardHooks", "SavedTensorsHooks", "Replacements"),
)
PROBE = RunOptions(symbolic=Symbolic(arguments=True, probing=True))


@pytest.fixture(autouse=True)
def first_run(without_collector: None) -> None:
    build_run(torch.sin, (), {}).release()  # PyTorch makes cycles of its own when it is first used
    gc.collect()


def outlives_its_run(*others: Any, options: RunOptions, expected: type[BaseException]) -> bool:
    """Whether a tensor stays alive after the run that gets the tensor could not be built."""
    x = torch.randn(2)
    reference = weakref.ref(x)
    was_built = False
    with suppress(expected):
        build_run(lambda *args: args[0] * 2, (x, *others), {}, options)
        was_built = True
    assert not was_built
    del x
    return reference() is not None


@pytest.mark.parametrize("part", PARTS)
def test_run_releases_its_arguments_if_a_part_cannot_be_built(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError(part)

    monkeypatch.setattr(module, part, fails)
    assert not outlives_its_run(options=RunOptions(), expected=ValueError)


@pytest.mark.parametrize("number", [3, (1, 3), (1, (2, 3))], ids=["number", "tuple", "nested tuple"])
def test_probe_that_meets_a_symbolic_argument_releases_its_arguments(number: Any) -> None:
    assert not outlives_its_run(number, options=PROBE, expected=Retrace)


def test_run_releases_its_arguments_if_they_cannot_be_examined() -> None:
    class Unreadable(dict[str, Any]):
        def values(self) -> Any:
            raise LookupError("no values")

    options = RunOptions(device=torch.device("meta"))
    assert not outlives_its_run(Unreadable(a=1), options=options, expected=LookupError)


def test_run_has_only_its_declared_parts() -> None:
    run = build_run(lambda x: x * 2, (torch.randn(2),), {})
    built = set(vars(run))
    trace_program(run)
    assert built == set(module.PARTS) - {"machine", "retrace_request"}
    assert set(vars(run)) - built == {"machine"}
    run.release()
    assert not vars(run)


def test_released_run_leaves_no_recorder_to_the_garbage_collector() -> None:
    run = build_run(lambda x: torch.nn.functional.dropout(x * 2).sum(), (torch.randn(2),), {})
    trace_program(run)
    parts = [weakref.ref(part) for part in (run.recorder, run.recorder.tensors, run.outside, run.numbers, run.texts)]
    run.release()
    assert [part() for part in parts] == [None] * len(parts)
