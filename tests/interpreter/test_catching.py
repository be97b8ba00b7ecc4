"""The errors that handlers around a line may catch, as far as the classes of the errors are known."""

from __future__ import annotations

import contextlib

import pytest
import torch

import thunder_core as thunder
from thunder_core.tracing.analysis.data_errors import ERRORS_BY_VALUES

OWN = type("OwnError", (Exception,), {})


def not_implemented(x, i):
    try:
        return x.index_select(0, i)
    except NotImplementedError:
        return x * 0


def several_that_do_not_match(x, i):
    try:
        return x.index_select(0, i)
    except NotImplementedError:
        return x * 0
    except (KeyError, TypeError) as error:
        return x * len(str(error))
    except OWN:
        return x * 2


def a_finally(x, i):
    try:
        return x.index_select(0, i)
    except NotImplementedError:
        return x * 0
    finally:
        x = x + 1


def index_error(x, i):
    try:
        return x.index_select(0, i)
    except IndexError:
        return x * 0


def last_of_several(x, i):
    try:
        return x.index_select(0, i)
    except KeyError:
        return x * 2
    except (TypeError, IndexError):
        return x * 0


def base_class(x, i):
    try:
        return x.index_select(0, i)
    except LookupError:
        return x * 0


def everything(x, i):
    try:
        return x.index_select(0, i)
    except:  # noqa: E722
        return x * 0


def class_in_a_variable(x, i, kind=IndexError):
    try:
        return x.index_select(0, i)
    except kind:
        return x * 0


def suppressed(x, i):
    with contextlib.suppress(IndexError):
        return x.index_select(0, i)
    return x * 0


def in_a_caller(x, i):
    try:
        return not_implemented(x, i)
    except IndexError:
        return x * 0


def written_before(program):
    compiled = thunder.jit(lambda x, i: (x.add_(1), program(x, i))[1])
    compiled(torch.ones(4), torch.tensor([0]))
    return thunder.last_program(compiled).caught_lines


@pytest.mark.parametrize("program", [not_implemented, several_that_do_not_match])
def test_handlers_of_other_classes_catch_nothing(program):
    assert not written_before(program)
    with pytest.raises(IndexError):
        thunder.jit(program)(torch.ones(4), torch.tensor([7]))


CATCHING = [index_error, last_of_several, base_class, everything, class_in_a_variable, suppressed, in_a_caller]
ENDING = [several_that_do_not_match, a_finally]  # programs that raise PyTorch's error


@pytest.mark.parametrize("program", CATCHING)
def test_handlers_that_may_catch_are_entered(program):
    assert written_before(program)
    compiled = thunder.jit(program)
    for index in (0, 7, 1, 7):
        x, i = torch.ones(4), torch.tensor([index])
        assert torch.equal(compiled(x, i), program(x, i))


def test_a_finally_is_entered_by_each_error():
    assert written_before(a_finally)


@pytest.mark.parametrize("program", ENDING)
def test_errors_pass_handlers_of_other_classes(program):
    with pytest.raises(IndexError):
        thunder.jit(program)(torch.ones(4), torch.tensor([7]))


def test_listed_classes_are_raised_by_pytorch():
    assert issubclass(torch.linalg.LinAlgError, ERRORS_BY_VALUES)
    assert not issubclass(NotImplementedError, (IndexError, ValueError))
