"""Each kind of guard is needed: if guards of one kind always hold, some change of the outside world is not detected."""

from __future__ import annotations

import pytest

import thunder_core as thunder
from tests.acquire.outside.test_guards import CASES, KINDS, SCENES, Case
from thunder_core.frontend.acquire.outside.guards.guard import Guard


def unnoticed(case: Case) -> bool:
    """Whether the program differs from eager after the change."""
    arguments = case.make()
    compiled = thunder.jit(case.program)
    compiled(*arguments)
    case.change(*arguments)
    try:
        return repr(compiled(*arguments)) != repr(case.program(*arguments))
    except Exception:  # a stale program that fails has not noticed the change either
        return True


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SCENES])
def test_without_one_kind_of_guard_a_change_is_not_detected(kind: type[Guard], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "condition", lambda guard, subject, scope: "True")
    assert any(unnoticed(case) for case in CASES.values() if case.reason)


def test_with_all_kinds_of_guards_every_change_is_noticed() -> None:
    assert not [name for name, case in CASES.items() if case.reason and unnoticed(case)]
