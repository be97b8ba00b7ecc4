"""The classes of Thunder's warnings, for `warnings.filterwarnings`."""

from __future__ import annotations


class RecompileWarning(UserWarning):
    """A compiled function is traced too often, has too many programs, or is called with a size outside its range.

    The message names the cause and what to do. Python's `warnings` module shows the warning once for each source line.
    """


class InternalErrorWarning(UserWarning):
    """A call runs in eager PyTorch, because Thunder failed to trace the program with an internal error (`TH7001`).

    The results are right. The failure is a bug in Thunder: please report the error in the message, with the program.
    """


class SharpEdgeWarning(UserWarning):
    """The traced program reads or does something that later calls will not repeat."""


class DegradedWarning(UserWarning):
    """A recipe skipped a part, because the machine or the model's device lacks what it needs. The message says why."""


class UnsignedWarning(UserWarning):
    """The user has a list of trusted keys, but none of these keys has signed the artifact that was loaded."""


class SpecializationWarning(UserWarning):
    """A symbolic size or number became a constant in a program, or the program does not cover its whole range.

    The message names the source line that fixed the value, and how to change it. Thunder traces other values as
    additional programs.
    """


class EagerMethodWarning(UserWarning):
    """A method of a compiled module ran entirely in eager PyTorch, although the method calls the model's layers.

    The message names the method, and the function or module to compile instead.
    """


class ModelChangedWarning(UserWarning):
    """A model was changed by another thread, a signal handler or a finalizer while it generated text.

    The tokens after the change may have been computed as before the change.
    """


class SymbolicAttemptWarning(UserWarning):
    """A program was compiled for constant sizes, because Thunder failed to compile it with symbolic sizes.

    The results are right. The failure is a bug in Thunder: please report the error in the message, with the program.
    """
