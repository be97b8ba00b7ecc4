"""The tree of all errors that Thunder raises for a cause that a user can fix.

ThunderError
├── Finding              exit 1    a requested check failed
├── UsageError           exit 2    the command, its options or the configuration are wrong
├── MissingRequirement   exit 3    the machine or the environment lacks a requirement (--strict)
├── ValidationError      exit 4    the optimized model differs from eager PyTorch; nothing was published
├── BaselineError        exit 5    the benchmark is worse than the baseline allows, or misses the required speed-up
├── ArtifactError        exit 6    an artifact was rejected
├── ResourceError        exit 7    the machine ran out of memory, disk or time
├── UnsupportedError     exit 8    Thunder cannot compile the model or one of its operations
├── InternalError        exit 70   an internal error of Thunder (a bug)
└── Interrupted          exit 130  the user pressed Ctrl-C

Each leaf of the tree is one cause. The code of a leaf is `TH`, followed by two digits for its exit status and two
digits for the cause. The meaning of a code never changes. `thunder explain CODE` prints the docstring of a leaf. The
errors of each exit status are in one file.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from thunder_core.foundation.errors.artifacts import (
    ArtifactDamaged,
    ArtifactForeign,
    ArtifactTooNew,
    ArtifactTooOld,
    BadSignature,
    ImportRefused,
    NotAnArtifact,
    NotSigned,
)
from thunder_core.foundation.errors.environment import (
    CompilerFailed,
    DeviceNotAvailable,
    EnvironmentLacks,
    OutsideProcessGroup,
    PackageMissing,
    PythonNotSupported,
    TorchNotTested,
)
from thunder_core.foundation.errors.gates import CacheDamaged, SlowerThanBaseline, SpeedupMissed
from thunder_core.foundation.errors.internal import Bug, Interrupted
from thunder_core.foundation.errors.resources import OutOfDisk, OutOfMemory, RankFailed, SearchOutOfTime
from thunder_core.foundation.errors.tree import (
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
from thunder_core.foundation.errors.unsupported import (
    CannotGenerate,
    CannotInterpret,
    CannotReplay,
    CollectivesDiffer,
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
from thunder_core.foundation.errors.usage import (
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
    ModelRaises,
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
from thunder_core.foundation.errors.validation import (
    AllZero,
    BoundMissed,
    NotComparable,
    NotFinite,
    OtherRandomNumbers,
    OutOfTolerance,
    QualityLost,
    WrongResult,
)
from thunder_core.foundation.errors.warnings import (
    DegradedWarning,
    EagerMethodWarning,
    InternalErrorWarning,
    ModelChangedWarning,
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
    "ArtifactTooOld",
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
    "BoundMissed",
    "Bug",
    "CacheDamaged",
    "CacheNotUsable",
    "CannotGenerate",
    "CannotInterpret",
    "CannotReplay",
    "CollectivesDiffer",
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
    "InternalErrorWarning",
    "Interrupted",
    "KernelRefuses",
    "MissingRequirement",
    "ModelChangedWarning",
    "ModelNotFound",
    "ModelRaises",
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
    "OutsideProcessGroup",
    "PackageMissing",
    "PythonNotSupported",
    "QualityLost",
    "RangeNotServed",
    "RankFailed",
    "RecipeConflict",
    "RecipeMismatch",
    "RecompileWarning",
    "RemoteCodeRefused",
    "ResourceError",
    "SearchOutOfTime",
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
    """Yield every leaf of the tree, in the order of the codes."""
    members = [c for c in globals().values() if inspect.isclass(c) and issubclass(c, ThunderError)]
    yield from sorted((c for c in members if c.code != ThunderError.code), key=lambda c: c.code)


for _member in list(globals().values()):
    if inspect.isclass(_member) and _member.__module__.startswith(f"{__name__}."):
        _member.__module__ = "thunder_core.errors"  # tracebacks and pickles name each as programs import it
