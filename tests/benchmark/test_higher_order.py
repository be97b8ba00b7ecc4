"""The benchmark of higher-order operators measures each compiler that accepts a program and names each that refuses."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import higher_order


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs that Inductor would compile in eager PyTorch."""

    def compiled(program: Any, who: str) -> Any:
        import thunder_core

        return thunder_core.jit(program) if who == "thunder" else program

    monkeypatch.setattr(higher_order, "compile_program", compiled)


def test_the_steady_state_is_measured_for_all_compilers_that_accept_the_program() -> None:
    found = higher_order.steady("vmap(grad)", 2)
    assert found["milliseconds"].keys() == set(higher_order.CONTENDERS) and not found["refused"]
    assert all(value > 0 for value in found["milliseconds"].values())


def test_compiler_that_refuses_a_program_is_named_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(program: Any, who: str) -> Any:
        def run(*args: Any) -> Any:
            if who == "thunder":
                raise NotImplementedError("not this one\nnor the next")
            return program(*args)

        return run

    monkeypatch.setattr(higher_order, "compile_program", refusing)
    found = higher_order.steady("vmap(grad)", 2)
    assert found["refused"] == {"thunder": "NotImplementedError: not this one"}
    assert "thunder" not in found["milliseconds"]
    assert higher_order.compilation("vmap(grad)", "thunder") == {"refused": "NotImplementedError: not this one"}
    row = {"program": "vmap(grad)", "seconds": {"eager": 1.0, "torch.compile": 2.0}, **found}
    assert "thunder        refused: NotImplementedError" in higher_order.summary(row)


def test_ratios_are_to_compilers_that_accept_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(module: str, what: str, *rest: str, **places: str) -> dict[str, Any]:
        if what == "steady":
            return {"milliseconds": {"eager": 4.0, "thunder": 1.0}, "refused": {"torch.compile": "no"}}
        return {"seconds": 2.0} if rest[1] != "torch.compile" else {"refused": "no"}

    monkeypatch.setattr(higher_order, "run_module", answer)
    row = higher_order.measure_operator("scan", 3)
    assert row["ratios"] == {"thunder / eager": 0.25} and row["refused"] == {"torch.compile": "no"}
