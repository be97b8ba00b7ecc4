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
    check its results, or repeat the command without it (`--without NAME`). Otherwise, this is a bug in Thunder.
    `thunder debug MODEL` finds the first wrong line of the traces; with `--out FOLDER`, it also writes a script for the
    bug report.
    """

    code = "TH0402"


class NotFinite(ValidationError):
    """An output, the loss or a gradient is infinite or NaN in eager PyTorch. Nothing was written.

    The reference, the same computation in higher precision, is checked, too. Such values are an error, because a
    comparison of NaN with NaN shows nothing. The most frequent cause is the range of the dtype: the largest float16
    number is 65,504, while bfloat16 has the range of float32. Other causes are weights that diverged in training, and
    inputs that are not finite.

    Some models return such values on purpose, such as a mask of minus infinities. `--allow-non-finite` accepts them.
    The values that are not finite must then have the same positions and signs in both models. All other values are
    compared as usual. The report lists these outputs and the share of their values that is not finite.
    """

    code = "TH0403"
    report: object = None  # the ValidationReport, for code that catches the error


class OtherRandomNumbers(ValidationError):
    """From the same seed, the optimized model draws other random numbers than eager PyTorch. Nothing was written.

    Results that depend on random numbers, such as those of dropout, can then not be compared.
    """

    code = "TH0404"


class AllZero(ValidationError):
    """Every output of eager PyTorch (in training, every gradient) is zero on every input. Nothing was written.

    A program that computes nothing would pass a comparison with zeros. Possible causes are weights that were never
    loaded, and an initialization that sets the last layer of each block to zero. `--allow-non-finite` accepts zeros,
    and the report says so. If only some of the outputs are zero, this is no error; the report names these outputs.
    """

    code = "TH0405"
    report: object = None  # the ValidationReport, for code that catches the error


class WrongResult(ValidationError):
    """An executor or a transform computes a different result from eager PyTorch.

    Two checks find such results. First, the `debug` executor compares every operation: results must agree within
    rounding and have the same dtype, shape and strides, and the operation may write only to inputs that eager PyTorch
    writes to. Second, validation checks every operation that an executor runs (forward and backward), every transform
    and the derivatives, on one input and in float64 where possible. A wrong operation is an error even if the outputs
    of the model are right, because with random weights, a wrong operation may hardly change the outputs.

    The message names the first wrong operation, its executor, the result that differs, and the difference. If the
    executor comes from another package, the message also has the file and the line of the executor's function. Leave
    the executor out (`--without NAME`), or change it so that it does not claim the operation, and report the error to
    the author of the executor. `thunder debug` shows the operation in the trace.
    """

    code = "TH0406"
    report: object = None  # the ValidationReport, for code that catches the error


class QualityLost(ValidationError):
    """The quantized model differs from the float model by more than the recipe's bound. Nothing was written.

    Thunder compares the two models in eager PyTorch before it compiles. The loss of quality therefore comes from the
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
    `--max-memory`. Eager PyTorch is one of the candidates, and meets the first three bounds, so the usual cause is that
    `--max-memory` is too small. The message names the candidate that comes nearest to the bounds, the bound that this
    candidate misses, and the difference. With `--json`, the field `report` of the error has the whole search.
    """

    code = "TH0408"
    report: object = None  # the SearchReport, for code that catches the error
