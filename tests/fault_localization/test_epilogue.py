"""Epilogues that return or write other values than the computation's results."""

from __future__ import annotations

import re

import pytest
import torch

import thunder_core as thunder
from tests.fault_localization.examined import numbers
from tests.fault_localization.models import Layers
from tests.planted.programs import with_trace
from tests.planted.unpacking import text_of, with_text
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.workflow.fault_localization.examination import examine


def model_and_program():
    """A model that has a cache among its arguments, and its program."""
    model = Layers().eval()
    compiled = thunder.jit(model, executors=["torch"])
    compiled(x=numbers(), cache=[torch.zeros(0, 8)])
    return model, last_program(compiled)


def line_with(program, text: str) -> str:
    """The line of the epilogue that contains a text."""
    return next(line for line in map(text_of, program.last("epilogue").bound_symbols) if text in line)


def fault_with(text: str, change):
    """The fault that is found after the epilogue's line with a text is changed, and the changed line."""
    model, program = model_and_program()
    line = line_with(program, text)
    returned = line_with(program, "result = ")
    names = dict(re.findall(r"'(\w+)': (\w+)", returned))
    changed_line = change(line, names)
    wrong = with_trace(program, "epilogue", lambda epilogue: with_text(epilogue, line, changed_line))
    before = model.mean.clone()
    (fault,) = examine(wrong, model, (), {"x": numbers(), "cache": [torch.zeros(0, 8)]}).faults
    assert torch.equal(model.mean, before)
    return fault, changed_line


def test_a_right_epilogue():
    model, program = model_and_program()
    cache = [torch.zeros(0, 8)]
    latest = model.latest
    assert not examine(program, model, (), {"x": numbers(), "cache": cache}).faults
    assert model.latest is latest
    assert cache[0].shape == (0, 8)


WRITES = {
    "module.mean = ": "mean",
    "module.latest = ": "latest",
    "cache.__setitem__(0, ": "input cache.0",
}


@pytest.mark.parametrize("text", WRITES)
def test_a_write_that_is_left_out(text):
    fault, _ = fault_with(text, lambda line, names: "")
    assert (fault.kind, fault.result) == ("epilogue", f"{WRITES[text]} after the call")


@pytest.mark.parametrize("text", WRITES)
def test_a_write_of_another_result(text):
    fault, other = fault_with(text, lambda line, names: re.sub(r"t\d+", names["second"], line))
    assert (fault.kind, fault.line, fault.result) == ("epilogue", other, f"{WRITES[text]} after the call")


def test_two_results_that_are_swapped():
    swapped = lambda line, names: f"result = {{'first': {names['second']}, 'second': {names['first']}}}"  # noqa: E731
    fault, other = fault_with("result = ", swapped)
    assert (fault.kind, fault.line, fault.result) == ("epilogue", other, "first")
    assert fault.difference.startswith("`first` is `t")
