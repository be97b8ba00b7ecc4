"""A loaded artifact catches the errors that the program catches, and traces the call again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.errors import SourceLine, WrongInputs
from thunder_core.workflow.artifact.format.read import open_artifact

SINGULAR = -torch.eye(3)
Program = Callable[..., Any]


def rest(x: Tensor) -> Tensor:
    """Add 1 to a matrix if it has no Cholesky factor."""
    try:
        return torch.linalg.cholesky(x) * 2
    except torch.linalg.LinAlgError:
        return x + 1


def writes_first(x: Tensor) -> Tensor:
    """Write to the argument before the error that is caught."""
    x.mul_(2)
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        return x + 1


def draws_first(x: Tensor) -> Tensor:
    """Draw random numbers before and after the error that is caught."""
    noise = torch.rand_like(x)
    try:
        return torch.linalg.cholesky(x) + noise
    except RuntimeError:
        return x + noise + torch.rand_like(x)


def uncaught_after_write(x: Tensor) -> Tensor:
    """Catch errors of one operation, and write to the argument before another operation raises."""
    try:
        factor = torch.linalg.cholesky(x.abs())
    except RuntimeError:
        factor = x
    x.add_(1)
    return torch.linalg.cholesky(x - 1) + factor


def saved(program: Program, folder: Path, x: Tensor, **options: Any) -> Any:
    compiled: Any = thunder.jit(program, **options)
    with torch.no_grad():
        compiled(x)
    return thunder.save(compiled, folder)


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")])
@pytest.mark.parametrize("program", [rest, writes_first, draws_first])
def test_a_caught_error_is_traced_again(program: Program, executors: tuple[str, ...], tmp_path: Path) -> None:
    folder = saved(program, tmp_path / "artifact", torch.eye(3), executors=executors)
    loaded: Any = thunder.load(folder, program)
    for x in (torch.eye(3), SINGULAR, torch.eye(3) * 3, SINGULAR * 2):
        mine, theirs = x.clone(), x.clone()
        with torch.no_grad():
            torch.manual_seed(0)
            found = loaded(mine)
            torch.manual_seed(0)
            torch.testing.assert_close(found, program(theirs))
        assert torch.equal(mine, theirs)
        torch.rand(1)


def test_the_manifest_has_the_lines_of_the_errors(tmp_path: Path) -> None:
    folder = saved(rest, tmp_path / "artifact", torch.eye(3))
    (facts,) = open_artifact(Path(folder)).manifest.programs
    assert facts.caught is not None
    assert [line.function for line in facts.caught.lines] == ["rest"]
    assert facts.caught.lines_of_statements
    assert all(lines == facts.caught.lines for _, lines in facts.caught.lines_of_statements)


def test_an_error_at_another_line_is_raised_as_in_eager(tmp_path: Path) -> None:
    folder = saved(uncaught_after_write, tmp_path / "artifact", torch.eye(3))
    loaded: Any = thunder.load(folder, uncaught_after_write)
    for function in (uncaught_after_write, loaded):
        x = SINGULAR.clone()
        with torch.no_grad(), pytest.raises(torch.linalg.LinAlgError):
            function(x)
        assert torch.equal(x, SINGULAR + 1)


def test_a_strict_artifact_refuses_the_call(tmp_path: Path) -> None:
    folder = saved(rest, tmp_path / "artifact", torch.eye(3))
    loaded: Any = thunder.load(folder, rest, strict=True)
    with torch.no_grad(), pytest.raises(WrongInputs, match="catches an error"):
        loaded(SINGULAR)


def test_lines_of_another_machine_are_traced_again(tmp_path: Path) -> None:
    folder = saved(rest, tmp_path / "artifact", torch.eye(3))
    loaded: Any = thunder.load(folder, rest)
    program: Any = next(iter(specializations_of(loaded).programs))
    moved = SourceLine("elsewhere.py", 1)
    program.caught = program._caught = replace(
        program._caught,
        lines=(moved,),
        lines_of_statements=tuple((index, (moved,)) for index, _ in program._caught.lines_of_statements),
    )
    with torch.no_grad():
        assert torch.equal(loaded(SINGULAR), rest(SINGULAR))
        assert torch.equal(loaded(torch.eye(3)), rest(torch.eye(3)))


class Factors(nn.Module):
    """A linear layer, and the Cholesky factor of its result if it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the factor, or the matrix itself."""
        y = self.layer(x)
        try:
            return torch.linalg.cholesky(y)
        except RuntimeError:
            return y.sin()


def test_a_module_catches_them_with_gradients(tmp_path: Path) -> None:
    model = Factors()
    compiled: Any = thunder.jit(model)
    compiled(torch.eye(3)).sum().backward()
    loaded: Any = thunder.load(thunder.save(compiled, tmp_path / "artifact"), model)
    for x in (torch.eye(3), SINGULAR):
        found, wanted = loaded(x), model(x)
        torch.testing.assert_close(found, wanted)
        for result in (found, wanted):
            model.zero_grad()
            result.sum().backward()
            gradient = model.layer.weight.grad
            assert gradient is not None
            torch.testing.assert_close(gradient, torch.autograd.grad(model(x).sum(), model.layer.weight)[0])


CALLS: list[object] = []


def notes_calls(x: Tensor) -> Tensor:
    """Note the call before and after an operation that may raise an error."""
    CALLS.append(len(CALLS))
    y = torch.linalg.cholesky(x)
    CALLS.append("after")
    return y


def test_effects_before_an_error_happen(tmp_path: Path) -> None:
    loaded: Any = thunder.load(saved(notes_calls, tmp_path / "artifact", torch.eye(3)), notes_calls)
    effects = []
    for function in (notes_calls, loaded):
        CALLS.clear()
        with torch.no_grad():
            function(torch.eye(3))
            for _ in range(2):
                with pytest.raises(torch.linalg.LinAlgError):
                    function(SINGULAR)
        effects.append(list(CALLS))
    assert effects == [[0, "after", 2, 3]] * 2
