"""Each stage of each trace is written to a file during compilation, and nothing else changes."""

from __future__ import annotations

import copy
import errno
import os
import pickle
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import BadOption, OutOfDisk, OutputNotWritable, UnknownName
from thunder_core.tracing.ir import dump


class Tower(torch.nn.Module):
    """A module that returns a view, so that there is an epilogue, and counts its calls, so that there is an effect."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(self.linear(x)).T


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def double(x):
    return x + x


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))


def step(model):
    model.zero_grad()
    model(X).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.fixture
def logs(monkeypatch):
    def set_to(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_to


def test_every_stage_is_a_file_with_the_printed_trace(tmp_path):
    compiled = thunder.jit(Tower(), dump=tmp_path)
    loss = compiled(X).square().sum()
    forward = files(tmp_path)
    loss.backward()
    program = thunder.last_program(compiled)
    traces = [(stage.trace.name, str(stage.trace)) for stage in program.stages]
    traces += [(stage.trace.name, str(stage.trace)) for stage in program.derivative.stages]
    written = [(name.split("-")[2], (tmp_path / name).read_text()) for name in files(tmp_path)]
    assert sorted(written) == sorted(traces)
    assert {name for name, _ in written} == set(dump.TRACES)
    assert not [name for name in forward if "-backward-" in name]  # the backward is compiled when it first runs
    assert [name[:10] for name in files(tmp_path)] == [f"Tower-0/{number:02}" for number in range(len(written))]
    last = [name for name in files(tmp_path) if "-computation-" in name][-1]
    assert (tmp_path / last).read_text() == str(thunder.last_traces(compiled)[-1])


def test_each_program_has_a_separate_folder(tmp_path):
    compiled = thunder.jit(double, dump=str(tmp_path))
    for size in (1, 2, 1):
        compiled(torch.ones(size))
    thunder.jit(lambda x: x, dump=tmp_path)(X)
    thunder.jit(double, dump=tmp_path)(X)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["double-0", "double-1", "double-2", "lambda-0"]


def test_stage_is_written_although_the_next_stage_fails(tmp_path):
    class Breaks(thunder.Transform):
        def __call__(self, trace):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        thunder.jit(double, transforms=[Breaks()], dump=tmp_path)(X)
    assert "double-0/00-computation-trace.py" in files(tmp_path)


@pytest.mark.parametrize(
    ("names", "written"),
    [
        ("all", {"prologue", "computation", "epilogue"}),
        (" computation, epilogue", {"computation", "epilogue"}),
        ("", set()),
    ],
)
def test_environment_variable_dumps_all_compiled_functions(tmp_path, monkeypatch, logs, names, written):
    compiled = thunder.jit(double)
    monkeypatch.chdir(tmp_path)
    logs(THUNDER_LOGS=names)
    compiled(X)
    assert {name.split("-")[3] for name in files(tmp_path)} == written
    assert (tmp_path / "thunder-logs").exists() == bool(written)


def test_folder_in_the_environment_enables_dumps(tmp_path, logs):
    logs(THUNDER_LOGS_TO=str(tmp_path / "a" / "b"))
    thunder.jit(double)(X)
    assert "double-0/00-computation-trace.py" in files(tmp_path / "a" / "b")


def test_dump_changes_no_result_and_no_trace(tmp_path):
    plain, watched = thunder.jit(Tower()), thunder.jit(Tower(), dump=tmp_path)
    for found, expected in zip(step(watched), step(plain), strict=True):
        assert torch.equal(found, expected)
    for traces in (thunder.last_traces, thunder.last_prologue_traces, thunder.last_epilogue_traces):
        assert list(map(str, traces(watched))) == list(map(str, traces(plain)))
    assert thunder.cache_misses(watched) == thunder.cache_misses(plain) == 1


def test_dumped_function_inlines_a_compiled_function(tmp_path):
    """The dump folder is no option by which compiled functions differ."""
    inner = thunder.jit(double)
    outer = thunder.jit(lambda x: inner(x) * 2, dump=tmp_path)
    assert torch.equal(outer(X), X * 4)
    assert [bsym.symbol.short_name for bsym in thunder.last_traces(outer)[0].bound_symbols] == ["add", "mul"]
    assert len(list(tmp_path.iterdir())) == 1


def test_copy_keeps_the_dump_and_pickle_does_not(tmp_path):
    compiled = thunder.jit(Tower(), dump=tmp_path)
    copy.deepcopy(compiled)(X)
    assert [path.name for path in tmp_path.iterdir()] == ["Tower-0"]
    pickle.loads(pickle.dumps(compiled))(X)
    assert [path.name for path in tmp_path.iterdir()] == ["Tower-0"]


@pytest.mark.parametrize("wrong", [3, "", True])
def test_invalid_folder_is_refused_by_jit(wrong):
    with pytest.raises(BadOption, match="dump="):
        thunder.jit(double, dump=wrong)


def test_a_name_that_does_not_exist_is_refused_when_jit_is_called(logs):
    logs(THUNDER_LOGS="computation,bakward")
    with pytest.raises(UnknownName, match=r"THUNDER_LOGS.*'bakward'") as caught:
        thunder.jit(double)
    assert "did you mean backward?" in caught.value.fix


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable, match="file"):
        thunder.jit(double, dump=tmp_path / "file" / "inner")(X)


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, OutOfDisk), (errno.EACCES, OutputNotWritable)])
def test_error_of_the_disk_is_reported(tmp_path, monkeypatch, number, error):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    compiled = thunder.jit(double, dump=tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(error, match=str(tmp_path)):
        compiled(X)


@pytest.mark.parametrize(
    ("text", "name"), [("claim by a, b", "claim-by-a-b"), ("../x", "..-x"), ("…", "unnamed"), ("n" * 99, "n" * 60)]
)
def test_names_of_files_contain_no_path_separators(text, name):
    assert dump.file_name_part(text) == name
