"""Errors of exit status 4: the optimized model is not the eager model."""

from __future__ import annotations

from thunder_core.errors.tree import ValidationError


class OutOfTolerance(ValidationError):
    """An output differs from eager PyTorch by more than the recipe's tolerance. Nothing was written.

    `thunder optimize` makes no artifact then, and `thunder validate` leaves the one that it was given as it is.

    The message names the output, its error beside eager's own, and the smallest tolerance that would have passed.
    """

    code = "TH0401"
    report: object = None  # the ValidationReport, for whoever catches the error


class NotComparable(ValidationError):
    """The optimized model's outputs have another structure, shape or dtype than eager's. Nothing was written."""

    code = "TH0402"


class NotFinite(ValidationError):
    """An output, the loss or a gradient is infinite or not a number in eager PyTorch itself, or in the reference.

    A NaN beside a NaN says nothing of the numbers that should stand there, so nothing was written. A narrow range is
    the most frequent cause: float16 ends at 65,504, and bfloat16 has the range of float32. Weights that have diverged,
    or inputs that are not finite, are others.

    Some models mean it: a mask of minus infinities among the outputs. `--allow-non-finite` accepts it: what is not
    finite has to be so at the same places then, with the same sign, all else is compared as ever, and the report and
    the table name the outputs and how much of them is not finite.
    """

    code = "TH0403"
    report: object = None  # the ValidationReport, for whoever catches the error


class OtherRandomNumbers(ValidationError):
    """The optimized model draws other random numbers than eager PyTorch from the same seed. Nothing was written.

    With other numbers in its dropout a model gives other results, and how far they are from eager's says nothing.
    """

    code = "TH0404"


class AllZero(ValidationError):
    """Every output of eager PyTorch is zero on every input or, of a step of training, every gradient.

    Agreement with that says nothing: a program that computes nothing would pass, so nothing was written. Weights that
    were never loaded are a cause, and initializations that put zeros at the end of each block. `--allow-non-finite`
    accepts it, and the report says so. Where only some outputs are zero they are named, and that is no error.
    """

    code = "TH0405"
    report: object = None  # the ValidationReport, for whoever catches the error


class WrongResult(ValidationError):
    """An executor computed something else than eager PyTorch does, as the `debug` executor has found by comparing.

    The message names the first bound symbol that is wrong, with its executor, the result that differs, and by
    how much. Results have to be as near as rounding allows, of the same dtype, shape and strides, and no input may be
    written to that eager PyTorch leaves alone. Leave the executor out, or its claim to that operation, and report it to
    its author. Where an executor that is not Thunder's returns a wrong result, or none, `thunder optimize` raises this
    error, too, with the file and the line of its function.

    A validation looks inside the program, too, on one input: at each line that an executor runs, forward and backward,
    at each transform and at the derivatives, in float64 where they go. A line that is wrong there is refused, although
    the outputs agree: random weights hide much. `thunder debug` finds more out about it.
    """

    code = "TH0406"
    report: object = None  # the report of the validation, for whoever catches the error


class QualityLost(ValidationError):
    """A quantized model is further from the float one than the recipe's bound. Nothing was written.

    The quantized model was compared with the float one in eager PyTorch, before it was compiled: it is the quantization
    itself that loses too much. The message names the measure, and the layers whose outputs are furthest from the float
    ones. `--skip-layers auto` leaves out such layers until the bound holds; `--set skip=PATTERN` leaves out those that
    it names; smaller groups (`--set group_size=32`), calibration (`--calibrate`) and more bits lose less.
    """

    code = "TH0407"
    report: object = None  # the QuantizationReport, for whoever catches the error
