"""Errors of exit status 4: the optimized model differs from eager PyTorch."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import ValidationError


class OutOfTolerance(ValidationError):
    """An output differs from eager PyTorch by more than the recipe's tolerance. Nothing was written.

    `thunder optimize` makes no artifact, and `thunder validate` leaves the artifact unchanged. The message names the
    output, its error, the error of eager PyTorch for comparison, and the smallest tolerance at which the output would
    pass. Errors are differences from a reference, the same computation in higher precision.
    """

    code = "TH0401"
    report: object = None  # the ValidationReport, for code that catches the error


class NotComparable(ValidationError):
    """The optimized model's outputs differ from eager's in structure, shape or dtype. Nothing was written.

    The message names the first output that differs. If you use a transform, a lookaside or an executor of your own,
    check what it returns, or repeat the command without it (`--without NAME`). Otherwise, this is a bug in Thunder:
    `thunder debug MODEL` finds the first wrong line of the traces, and its `--out FOLDER` writes a script for the bug
    report.
    """

    code = "TH0402"


class NotFinite(ValidationError):
    """An output, the loss or a gradient is infinite or NaN in eager PyTorch. Nothing was written.

    The reference, the same computation in higher precision, is checked, too. Comparing NaN with NaN does not validate
    anything. The most frequent cause is a narrow range: float16 ends at 65,504, while bfloat16 has the range of
    float32. Other causes are diverged weights and inputs that are not finite.

    Some models return such values on purpose, such as a mask of minus infinities. `--allow-non-finite` accepts them.
    The values that are not finite must then have the same positions and signs in both models. All other values are
    compared as usual. The report lists these outputs and the share of their values that is not finite.
    """

    code = "TH0403"
    report: object = None  # the ValidationReport, for code that catches the error


class OtherRandomNumbers(ValidationError):
    """The optimized model draws other random numbers than eager PyTorch from the same seed. Nothing was written.

    The optimized model uses the random number generator differently from eager, so results with dropout cannot be
    compared.
    """

    code = "TH0404"


class AllZero(ValidationError):
    """Every output of eager PyTorch (in training, every gradient) is zero on every input. Nothing was written.

    A program that computes nothing would pass such a comparison. Possible causes are weights that were never loaded,
    and initializations that put zeros at the end of each block. `--allow-non-finite` accepts zeros, and the report
    records this. Outputs of zeros are no error if another output is not zero; the report names them.
    """

    code = "TH0405"
    report: object = None  # the ValidationReport, for code that catches the error


class WrongResult(ValidationError):
    """An executor or a transform computes a different result from eager PyTorch.

    Two checks find such results. The `debug` executor compares every operation: results must agree within rounding and
    have the same dtype, shape and strides, and the operation may write only to inputs that eager PyTorch writes to.
    Validation checks every operation that an executor runs (forward and backward), every transform and the derivatives,
    on one input and in float64 where possible. A wrong operation is an error even if the outputs of the model are
    right, because random weights can hide its effect on the outputs.

    The message names the first wrong operation, its executor, the result that differs, and the difference. If the
    executor comes from another package and returns a wrong result, or none, the message also has the file and the line
    of the executor's function. Disable the executor (`--without NAME`), or only its claim to the operation, and report
    the error to the author of the executor. `thunder debug` shows the operation in the trace.
    """

    code = "TH0406"
    report: object = None  # the ValidationReport, for code that catches the error


class QualityLost(ValidationError):
    """The quantized model differs from the float model by more than the recipe's bound. Nothing was written.

    Thunder compares the two models in eager PyTorch before it compiles, so the loss of quality comes from the
    quantization, not from the compiled program. The message names the metric, and the layers whose outputs differ most.

    To lose less quality:

    - `--skip-layers auto` leaves the layers that differ most in float, until the bound holds;
    - `--set skip=PATTERN` leaves the matching layers in float;
    - `--set group_size=32` quantizes in smaller groups;
    - `--calibrate` calibrates the weights with data;
    - a recipe with more bits keeps more precision.
    """

    code = "TH0407"
    report: object = None  # the QuantizationReport, for code that catches the error


class BoundMissed(ValidationError):
    """No candidate of a search meets the bounds that were given. Nothing was written.

    `thunder optimize --search` compares each candidate with the bounds of `--max-kl`, `--min-top1`, `--max-error` and
    `--max-memory`. Eager PyTorch is a candidate, and meets the first three bounds. So usually `--max-memory` is too
    small. The message names the candidate that comes nearest to the bounds, the bound that this candidate misses, and
    the difference. With `--json`, the error has the whole search as its `report`.
    """

    code = "TH0408"
    report: object = None  # the SearchReport, for code that catches the error
