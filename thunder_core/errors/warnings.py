"""The warnings that Thunder gives, for `warnings.filterwarnings`."""

from __future__ import annotations


class RecompileWarning(UserWarning):
    """A compiled function is traced again and again, has more programs than are kept, or is called out of a range.

    The message says for what it is traced and what can be done. Python's `warnings` say it once for each place.
    """


class SharpEdgeWarning(UserWarning):
    """A program was traced that reads or does something which later calls will not do again."""


class DegradedWarning(UserWarning):
    """A model was compiled by a recipe of which the machine, or the model's device, lacks a part: which, and why."""


class UnsignedWarning(UserWarning):
    """An artifact was loaded that nobody has signed whose key is trusted, though there is a list of trusted keys."""


class SpecializationWarning(UserWarning):
    """A size or number that was named as symbolic is a constant in a program, or not all of its range is served by it.

    The message names the line that decided by it and what to write. Other values are traced as further programs.
    """


class EagerMethodWarning(UserWarning):
    """A method of a compiled module ran in eager PyTorch from beginning to end, though its work is the model's.

    The message says which, and what to compile instead.
    """


class SymbolicAttemptWarning(UserWarning):
    """A program is compiled for constant sizes, since Thunder failed with symbolic ones by an error of its own.

    What is computed is right. The message has the error, which is a bug: please report it with the program.
    """
