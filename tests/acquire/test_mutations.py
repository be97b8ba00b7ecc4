"""Each kind of guard is needed: with one kind made to hold always, some change of the outside world goes unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

import thunder_core as thunder
from tests.acquire.test_guards import CASES, SCENES, Case
from thunder_core.frontend.acquire.outside.guards import CONDITIONS


def unnoticed(case: Case) -> bool:
    """Whether the program gives after the change what it gave before, where eager gives something else."""
    arguments = case.make()
    compiled = thunder.jit(case.program)
    compiled(*arguments)
    case.change(*arguments)
    try:
        return repr(compiled(*arguments)) != repr(case.program(*arguments))
    except Exception:  # a stale program that fails has not noticed either
        return True


@pytest.mark.parametrize("kind", [kind for kind in CONDITIONS if kind not in SCENES])
def test_without_this_kind_a_change_goes_unnoticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holds: Any = lambda subject, expected, scope: "True"  # noqa: E731
    monkeypatch.setitem(CONDITIONS, kind, holds)
    assert any(unnoticed(case) for case in CASES.values() if case.reason)


def test_with_all_kinds_none_does() -> None:
    assert not [name for name, case in CASES.items() if case.reason and unnoticed(case)]
