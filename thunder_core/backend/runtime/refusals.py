"""Refusals: the reasons why programs refused a call, the values that differ, the limit of retraces, and errors."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch

from thunder_core.backend.runtime.dispatch import Refusal
from thunder_core.backend.runtime.observed_values import Number, expected_values, same, values_error
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import Bug, DataDependent, SourceLine, WrongInputs
from thunder_core.tracing.ir.constants import is_literal
from thunder_core.tracing.ir.proxy import tensor_proxy
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.tracing.ir.source_lines import execute_source
from thunder_core.tracing.library.objects import DATA_DIGEST_PREFIX, GuardFailed, UnexpectedValue, UntracedError

MAX_KEYS = 12  # maximum keys of a dict that a message names
PLAIN_CONTAINERS: dict[type, str] = {list: "a list", tuple: "a tuple", dict: "a dict", set: "a set"}
CLASSES_OF_NAMED_KEYS = frozenset({str, int, float, bool, type, type(None), torch.dtype, torch.device})
# Limits of the number of programs that differ only by values of tensors: by a value that a line reads, by all data of a
# tensor that a line reads (which rarely repeats), and by values that any lines read.
MAX_VALUES_OF_A_LINE = 8
MAX_DATA_OF_A_LINE = 3
MAX_VALUES = 32


def paths_of_refused_numbers(program: Program, error: Exception) -> Iterator[str]:
    """Yield the paths of the numbers because of which a guard on a number or on a container refused a call."""
    guard = program.guard_of(error)
    if guard is None or not guard.guards_number or not isinstance(error, GuardFailed):
        return
    if type(error.actual) in (tuple, list, dict) and guard.path not in program.observed:
        for path, number in numbers_of_container(guard.path, error.actual):
            if path in program.observed and not same(program.observed[path], number):
                yield path
    else:
        yield guard.path


def numbers_of_container(path: str, container: Any) -> Iterator[tuple[str, Number]]:
    """Yield the path and the value of each number in a list, a dict or a tuple, and in a tuple's inner tuples."""
    items = container.items() if type(container) is dict else enumerate(container)
    for label, value in items:
        if type(value) is tuple:
            yield from numbers_of_container(f"{path}[{label!r}]", value)
        elif type(value) in (int, float):
            yield f"{path}[{label!r}]", value


def refused_sizes_of_one(program: Program, error: Exception) -> Iterator[str]:
    """Yield the path of a size with value 1 that a constraint refused, and the paths of sizes that must be equal.

    Constraints are checked last, so all other guards of the call held.
    """
    if type(error) is not GuardFailed or type(error.actual) is not int or error.actual != 1:
        return
    constraint = program.guard_of(error)
    if isinstance(constraint, StatedConstraint):
        refused = constraint.number
        yield refused
        pairs = ((constraint.number, constraint.equals) for constraint in program.constraints if constraint.equals)
        yield from (path for pair in pairs if refused in pair for path in pair)


def too_many_values(refusals: Iterable[Refusal]) -> DataDependent | None:
    """Return the error if programs refused too many different values of tensors; None otherwise."""
    errors_by_line: dict[SourceLine | None, list[UnexpectedValue]] = {}
    for program, error in refusals:
        if isinstance(error, UnexpectedValue):
            errors_by_line.setdefault(program.line_of(error), []).append(error)
    many = sum(map(len, errors_by_line.values())) >= MAX_VALUES
    for line, errors in sorted(errors_by_line.items(), key=lambda item: -len(item[1])):
        values = dict.fromkeys(f"{error.expected!s:.40}" for error in errors)
        most = (
            MAX_DATA_OF_A_LINE
            if all(value.startswith(DATA_DIGEST_PREFIX) for value in values)
            else MAX_VALUES_OF_A_LINE
        )
        if many or len(values) >= most:
            seen = ", ".join((*values, f"{errors[0].actual!s:.40}"))
            what = (
                f"the program was traced for {len(errors)} values of a tensor at this line, and this call has another "
                f"value: {seen}"
            )
            return values_error(what, line)
    return None


def programs_of_line(
    line: SourceLine | None, programs: Iterable[Program], refusals: Iterable[Refusal]
) -> tuple[Program, ...]:
    """Return the programs that expect tensor values at a line or refused a call because of this line.

    If the line is left to eager PyTorch, these programs would refuse later calls, too, and count as further values.
    """
    expecting = [program for program in programs if line in expected_values(program)]
    refusing = [
        program for program, error in refusals if isinstance(error, UnexpectedValue) and program.line_of(error) == line
    ]
    return tuple(dict.fromkeys((*expecting, *refusing)))


def refusal_reason(program: Program, error: Exception) -> str:
    """Return the reason why a program refused a call: the path, the value while tracing, and the value now.

    Metadata of tensors is read without calls of their `__torch_function__`.
    """
    with torch._C.DisableTorchFunction():
        return _refusal_reason(program, error)


def _refusal_reason(program: Program, error: Exception) -> str:
    if isinstance(error, UnexpectedValue):
        line = program.line_of(error)
        where = "" if line is None else f" ({line})"
        if isinstance(error, UntracedError):
            return f"an operation raises an error that the program catches{where}: {error.actual}"
        return f"a value that the program reads from a tensor{where}: was {error.expected}, is {error.actual}"
    if not isinstance(error, GuardFailed):
        return f"a value that the program read no longer exists: {type(error).__name__}: {error}"
    guard = program.guard_of(error)
    if guard is not None and issubclass(type(error.actual), torch.Tensor):
        for constraint, size in refused_sizes(program, guard.path, error.actual):
            return f"{constraint}, is {size}"
    shows_tuple = guard is not None and guard.guards_tuple and is_literal(error.actual)
    actual = f"{error.actual!r:.80}" if shows_tuple else describe_value(error.actual)
    return f"{guard or f'guard {error.number}'}, is {actual}"


def refused_sizes(program: Program, path: str, tensor: torch.Tensor) -> Iterator[tuple[StatedConstraint, int]]:
    """Yield each constraint that does not hold and reads only one size of the tensor at a path, with the size.

    The prologue checks constraints after the layouts of tensors, which follow from the sizes.
    """
    sizes = {f"{path}.size({dimension})": size for dimension, size in enumerate(tensor.shape)}
    for constraint in program.constraints:
        if constraint.number in sizes and constraint.symbol and not constraint.names:
            size = sizes[constraint.number]
            if not is_met(constraint, size):
                yield constraint, size


def is_met(constraint: StatedConstraint, size: int) -> bool:
    """Whether a constraint on one symbol holds for a size."""
    source = f"def holds({constraint.symbol}):\n    return {constraint.condition}\n"
    return bool(execute_source("constraint", source, {"math": math}, "holds")(size))


def describe_value(value: Any) -> str:
    """Describe a value for a message: constants as they are, tensors by their metadata, the rest by their class."""
    kind = type(value)  # not isinstance, which reads the value's own `__class__`
    instance = object_of_class(kind)
    if issubclass(kind, torch.Tensor):
        grad = ", requires grad" if value.requires_grad else ""
        return f"{tensor_proxy('', value).described}{grad} of class {kind.__name__}"
    if issubclass(kind, type):
        return str(vars(type)["__name__"].__get__(value))
    if value is None or issubclass(kind, str | int | float | complex | torch.dtype | torch.device):
        has_own_text = isinstance(kind.__repr__, FunctionType) and kind.__repr__.__module__ != enum.__name__
        return instance if has_own_text else f"{value!r:.80}"
    base = next((base for base in (list, tuple, dict, set) if issubclass(kind, base)), None)
    if base is None:
        return instance
    length = base.__len__(value)  # a `__len__` of the user does not run
    if kind is dict and length <= MAX_KEYS and all(type(key) in CLASSES_OF_NAMED_KEYS for key in value):
        return f"a dict with the keys {list(value)!r}"
    plain_kind = PLAIN_CONTAINERS.get(type(value))
    return f"{plain_kind} of {length} items" if plain_kind else f"{instance} with {length} items"


def other_branch_error(program: Program, error: UnexpectedValue) -> DataDependent:
    """Return the error for a new program that reads another value from a tensor than eager PyTorch."""
    return DataDependent(
        f"the program branches on the value of a tensor, which is {error.expected!s:.40} in eager PyTorch but "
        f"{error.actual!s:.40} in the compiled program",
        fix="branch on a value that rounding does not change, keep the line out of the compiled program, or "
        "leave out the executors and transforms that round differently",
        where=program.line_of(error),
    )


def other_input_error(reasons: Sequence[str]) -> WrongInputs:
    """Return the error for an input that differs from the first one, with `cache="same input"`."""
    return WrongInputs(
        f'cache="same input" was given, but the input differs: {"; ".join(reasons)}',
        fix='pass inputs like the first ones, or use cache="constant values"',
    )


def refused_own_inputs(program: Program, refused: GuardFailed) -> Bug:
    """Return the error for a new program whose guards refuse the inputs that it was traced with."""
    return Bug(
        f"the guards of a new program refuse its own inputs: {refusal_reason(program, refused)}",
        fix="this is a bug in Thunder: please report it with the program that was compiled",
    )
