"""Every error that Thunder raises for a cause that a user can mend, as one tree.

ThunderError
├── Finding              exit 1    a gate that was asked for did not hold
├── UsageError           exit 2    the command, the options or the configuration are wrong
├── MissingRequirement   exit 3    the environment lacks something that was required (--strict)
├── ValidationError      exit 4    the optimized model is not the eager model; nothing was published
├── BaselineError        exit 5    slower than the baseline, or the speed-up that is required, allows
├── ArtifactError        exit 6    an artifact was rejected
├── ResourceError        exit 7    out of memory, disk or time
├── UnsupportedError     exit 8    the model or an operation is not supported
├── InternalError        exit 70   a bug of ours
└── Interrupted          exit 130  the user pressed Ctrl-C

A leaf is one cause. Its code is `TH`, two digits of its exit status and two of its own, and never changes
its meaning; its docstring is what `thunder explain CODE` prints. Each exit status has a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from thunder_core.errors.artifacts import (
    ArtifactDamaged,
    ArtifactForeign,
    ArtifactTooNew,
    BadSignature,
    ImportRefused,
    NotAnArtifact,
    NotSigned,
)
from thunder_core.errors.environment import (
    CompilerFailed,
    DeviceNotAvailable,
    EnvironmentLacks,
    PackageMissing,
    PythonNotSupported,
    TorchNotTested,
)
from thunder_core.errors.gates import CacheDamaged, SlowerThanBaseline, SpeedupMissed
from thunder_core.errors.internal import Bug, Interrupted
from thunder_core.errors.resources import OutOfDisk, OutOfMemory
from thunder_core.errors.tree import (
    ArtifactError,
    BaselineError,
    Finding,
    InternalError,
    MissingRequirement,
    ResourceError,
    SourceLine,
    ThunderError,
    UnsupportedError,
    UsageError,
    ValidationError,
)
from thunder_core.errors.unsupported import (
    CannotGenerate,
    CannotInterpret,
    CannotReplay,
    DataDependent,
    DynamoRefuses,
    KernelRefuses,
    NoExampleInputs,
    NotDifferentiable,
    NotTraceable,
    OperationFailed,
    RangeNotServed,
    UnknownArchitecture,
)
from thunder_core.errors.usage import (
    AmbiguousName,
    BadConfigFile,
    BadData,
    BadKey,
    BadModelFolder,
    BadOption,
    BadPattern,
    BadQuantization,
    BadRecipe,
    BadSymbolicArgument,
    CacheNotUsable,
    ModelNotFound,
    NoLoss,
    NoSuchTrace,
    NothingToTrain,
    OutputExists,
    OutputNotWritable,
    RecipeConflict,
    RecipeMismatch,
    RemoteCodeRefused,
    SequenceTooLong,
    SharpEdgeError,
    UnknownName,
    WrongInputs,
)
from thunder_core.errors.validation import (
    AllZero,
    NotComparable,
    NotFinite,
    OtherRandomNumbers,
    OutOfTolerance,
    QualityLost,
    WrongResult,
)
from thunder_core.errors.warnings import (
    DegradedWarning,
    EagerMethodWarning,
    RecompileWarning,
    SharpEdgeWarning,
    SpecializationWarning,
    SymbolicAttemptWarning,
    UnsignedWarning,
)

__all__ = [
    "AllZero",
    "AmbiguousName",
    "ArtifactDamaged",
    "ArtifactError",
    "ArtifactForeign",
    "ArtifactTooNew",
    "BadConfigFile",
    "BadData",
    "BadKey",
    "BadModelFolder",
    "BadOption",
    "BadPattern",
    "BadQuantization",
    "BadRecipe",
    "BadSignature",
    "BadSymbolicArgument",
    "BaselineError",
    "Bug",
    "CacheDamaged",
    "CacheNotUsable",
    "CannotGenerate",
    "CannotInterpret",
    "CannotReplay",
    "CompilerFailed",
    "DataDependent",
    "DegradedWarning",
    "DeviceNotAvailable",
    "DynamoRefuses",
    "EagerMethodWarning",
    "EnvironmentLacks",
    "Finding",
    "ImportRefused",
    "InternalError",
    "Interrupted",
    "KernelRefuses",
    "MissingRequirement",
    "ModelNotFound",
    "NoExampleInputs",
    "NoLoss",
    "NoSuchTrace",
    "NotAnArtifact",
    "NotComparable",
    "NotDifferentiable",
    "NotFinite",
    "NotSigned",
    "NotTraceable",
    "NothingToTrain",
    "OperationFailed",
    "OtherRandomNumbers",
    "OutOfDisk",
    "OutOfMemory",
    "OutOfTolerance",
    "OutputExists",
    "OutputNotWritable",
    "PackageMissing",
    "PythonNotSupported",
    "QualityLost",
    "RangeNotServed",
    "RecipeConflict",
    "RecipeMismatch",
    "RecompileWarning",
    "RemoteCodeRefused",
    "ResourceError",
    "SequenceTooLong",
    "SharpEdgeError",
    "SharpEdgeWarning",
    "SlowerThanBaseline",
    "SourceLine",
    "SpecializationWarning",
    "SpeedupMissed",
    "SymbolicAttemptWarning",
    "ThunderError",
    "TorchNotTested",
    "UnknownArchitecture",
    "UnknownName",
    "UnsignedWarning",
    "UnsupportedError",
    "UsageError",
    "ValidationError",
    "WrongInputs",
    "WrongResult",
    "all_errors",
]


def all_errors() -> Iterator[type[ThunderError]]:
    """Every leaf of the tree, in the order of its code."""
    members = [c for c in globals().values() if inspect.isclass(c) and issubclass(c, ThunderError)]
    yield from sorted((c for c in members if c.code != ThunderError.code), key=lambda c: c.code)


for _member in list(globals().values()):
    if inspect.isclass(_member) and _member.__module__.startswith(f"{__name__}."):
        _member.__module__ = __name__  # tracebacks and pickles name each as it is imported
