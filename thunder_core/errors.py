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
its meaning; its docstring is what `thunder explain CODE` prints.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from thunder_core.printable import printable


@dataclass(frozen=True)
class SourceLine:
    """A line of somebody's source: file, 1-based line number and the function that holds it."""

    filename: str
    lineno: int
    function: str = ""

    def __str__(self) -> str:
        inside = f", in {self.function}" if self.function else ""
        return printable(f"{self.filename}:{self.lineno}{inside}")


class RecompileWarning(UserWarning):
    """A compiled function is traced again and again, or has more programs than are kept.

    The message says for what it is traced and what can be done. Python's `warnings` say it once for each place.
    """


class SharpEdgeWarning(UserWarning):
    """A program was traced that reads or does something which later calls will not do again."""


class DegradedWarning(UserWarning):
    """A model was compiled by a recipe of which the machine, or the model's device, lacks a part: which, and why."""


class UnsignedWarning(UserWarning):
    """An artifact was loaded that nobody has signed whose key is trusted, though there is a list of trusted keys."""


class ThunderError(Exception):
    """An error that says what is wrong, what to do about it and, where there is one, the user's line."""

    code: ClassVar[str] = "TH0000"
    status: ClassVar[int] = 70

    def __init__(self, what: str, *, fix: str, where: SourceLine | None = None) -> None:
        self.what, self.fix = printable(what), printable(fix)  # they name what others have written
        super().__init__(self.what)
        self.where = where

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.where is not None:
            lines.append(f"  at: {self.where}")
        return "\n".join([*lines, f"  fix: {self.fix}"])

    def as_dict(self) -> dict[str, object]:
        """The error as plain data, for `--json`."""
        where = None if self.where is None else str(self.where)
        return {"code": self.code, "status": self.status, "what": self.what, "fix": self.fix, "where": where}


class Finding(ThunderError):
    """A gate that was asked for did not hold."""

    status = 1


class UsageError(ThunderError):
    """The command, the options or the configuration are wrong."""

    status = 2


class MissingRequirement(ThunderError):
    """The environment lacks something that was required."""

    status = 3


class ValidationError(ThunderError):
    """The optimized model differs from eager PyTorch by more than the recipe's tolerance."""

    status = 4


class BaselineError(ThunderError):
    """A measurement is worse than the baseline, or the speed-up that was required, allows."""

    status = 5


class ArtifactError(ThunderError):
    """An artifact was rejected: nothing of it was used."""

    status = 6


class ResourceError(ThunderError):
    """The machine ran out of memory, disk or time."""

    status = 7


class UnsupportedError(ThunderError):
    """The model or one of its operations cannot be compiled."""

    status = 8


class InternalError(ThunderError):
    """A bug of ours."""

    status = 70


# ---- 01: findings ---------------------------------------------------------------------------------------------


class CacheDamaged(Finding):
    """`thunder cache verify` found entries that are not as they were written.

    They have been dropped: nothing of them was used, and they are built again when they are next needed. A flipped bit
    once in a while is the hardware's; many of them are a reason to look at the disk or the memory.
    """

    code = "TH0101"
    rows: tuple[object, ...] = ()  # the records of the damaged entries, for whoever catches the error


# ---- 02: usage ------------------------------------------------------------------------------------------------


class BadOption(UsageError):
    """An option has a value that it cannot take, or two options contradict each other.

    The message names the option, the value and what would be accepted.
    """

    code = "TH0201"


class UnknownName(UsageError):
    """A recipe, executor, transform, stage, dtype, device, task or error code of that name does not exist.

    The message suggests the nearest names that do; `thunder recipes` and `thunder executors` list them all.
    """

    code = "TH0202"


class BadConfigFile(UsageError):
    """The file given with `--config` cannot be read as TOML, or holds a key that is not known.

    Keys are the long options without their dashes (`recipe`, `batch`, `seq`, ...) and a table `set` for the
    recipe's own options.
    """

    code = "TH0203"


class ModelNotFound(UsageError):
    """MODEL is neither a folder in Hugging Face layout nor a hub name that is in the local cache.

    While `HF_HUB_OFFLINE=1` is set nothing is downloaded. `hf download NAME` on a machine with a
    network puts the model into the cache that `HF_HOME` names.
    """

    code = "TH0204"


class BadModelFolder(UsageError):
    """The model's folder lacks a file, or holds one that is damaged.

    A truncated safetensors file, a shard that its index names and that is not there, a config that is not JSON.
    Weights are read from safetensors only: pickled ones (`pytorch_model.bin`) can run code when they are read.
    With `--random-weights` a config alone is enough.
    """

    code = "TH0205"


class OutputExists(UsageError):
    """The output folder exists. It is kept unless `--force` is given, which replaces it as a whole at the end.

    Only an empty folder is replaced, and an artifact in which there is nothing else: its manifest has to be one that
    Thunder wrote, with its digest, and every file has to be one that the manifest lists. The message names others.
    """

    code = "TH0206"


class OutputNotWritable(UsageError):
    """The output folder, or the folder that it would be created in, cannot be written."""

    code = "TH0207"


class RecipeMismatch(UsageError):
    """The recipe is for another family of models than the one that was given.

    Each recipe's `validate(model)` says which models it takes. `hf-transformers` takes every model of the
    transformers library, `default` every `torch.nn.Module`.
    """

    code = "TH0208"


class SequenceTooLong(UsageError):
    """The sequence length is greater than the number of positions that the model was built for."""

    code = "TH0209"


class RemoteCodeRefused(UsageError):
    """The model's folder asks to run Python code of its own, which is refused unless `--trust-remote-code` is given."""

    code = "TH0210"


class RecipeConflict(UsageError):
    """Two transforms of the composed recipe exclude each other, or must each come before the other; or two of its
    executors have one name.
    """

    code = "TH0211"


class NoSuchTrace(UsageError):
    """The trace or the stage that was asked for does not exist; `thunder inspect-trace --list` names those that do."""

    code = "TH0212"


class WrongInputs(UsageError):
    """A compiled program was called with inputs that it cannot take."""

    code = "TH0213"


class SharpEdgeError(UsageError):
    """The program does something that can be neither guarded nor replayed, and `sharp_edges="error"` was asked for."""

    code = "TH0214"


class CacheNotUsable(UsageError):
    """The cache folder cannot be read or written, or others than its user can write to it.

    What is in the cache is machine code, so that whoever can write there can run code as the user. The folder has to be
    the user's own, and no one else's to write (`chmod 700`). `THUNDER_CACHE_DIR` names another folder.
    """

    code = "TH0216"


class BadPattern(UsageError):
    """A function that was given as a pattern cannot be one, or its replacement cannot stand for it.

    A pattern is an ordinary function of tensors and numbers that computes new tensors with PyTorch. It writes to no
    tensor, draws no random numbers, does not look at the values of tensors, and reads each of its parameters. Its
    replacement takes the same arguments and returns tensors of the same shape, stride, dtype and device.
    """

    code = "TH0215"


class NoLoss(UsageError):
    """`--train` was given for a model that gives no loss: its task has no labels, or its forward makes none of them.

    A step of training is a forward, its loss and the backward of that. `--task` names what the model is to be trained
    for, where its config does not say it. In Python, a loss of one's own can be compiled with the model:
    `thunder_core.jit` of a function that computes it.
    """

    code = "TH0217"


class NothingToTrain(UsageError):
    """`--train` was given for a model whose parameters are all frozen: none has `requires_grad`."""

    code = "TH0218"


class BadRecipe(UsageError):
    """A recipe, a plug-in or a transform declares what Thunder does not read, or gives what it cannot use.

    A method `setup_...` that is never called, a misspelled attribute, a text in the place of a tuple, a class in the
    place of an instance, a sum with something else: each would do nothing, or something else than was meant.
    """

    code = "TH0219"


class BadKey(UsageError):
    """A file of a key, or the list of trusted keys, cannot be read or used.

    Artifacts are signed with Ed25519 keys, as `thunder keys new FILE` makes them; those of `ssh-keygen -t ed25519` do
    as well. Nobody but its user may read a private key, and nobody else may write the list of trusted keys. A private
    key may be protected by a passphrase, which is taken from `THUNDER_KEY_PASSPHRASE`.
    """

    code = "TH0220"


class BadData(UsageError):
    """A file of real inputs, of `--input` or `--eval`, cannot be read, or is not for this model.

    `.safetensors` and `.npz` hold arrays that begin with the batch, named as the model's forward names them; `.jsonl`
    holds an object for each sample: `input_ids` and whatever else the forward takes, or `text` where a tokenizer lies
    beside the model. The message names the line or the sample, what is wrong with it, and what the model takes.
    """

    code = "TH0221"


# ---- 03: environment ------------------------------------------------------------------------------------------


class EnvironmentLacks(MissingRequirement):
    """The recipe needs hardware or a package that this machine lacks, and `--strict` was given.

    Without `--strict` the recipe does everything that does not need it, and the report is marked as degraded.
    """

    code = "TH0301"


class DeviceNotAvailable(MissingRequirement):
    """The device that was asked for is not there, or this build of PyTorch cannot use it."""

    code = "TH0302"


class PackageMissing(MissingRequirement):
    """The model that was given cannot be loaded without a package that is not installed; the message names it."""

    code = "TH0303"


class CompilerFailed(MissingRequirement):
    """The C++ compiler that Inductor's kernels need is missing, or fails; the message holds its first error."""

    code = "TH0304"


class PythonNotSupported(MissingRequirement):
    """The version of Python is not one whose bytecode is known, or its build lays out objects in another way.

    Programs are read from the bytecode of CPython, which is another one in each minor version. So a version that is
    newer than those that the message names is refused, not guessed at; and so are PyPy, 32-bit builds and the builds
    without the global interpreter lock.
    """

    code = "TH0305"


# ---- 04: validation -------------------------------------------------------------------------------------------


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


# ---- 05: baselines --------------------------------------------------------------------------------------------


class SlowerThanBaseline(BaselineError):
    """`thunder bench --baseline FILE --fail-above P%` found a configuration that is slower than allowed."""

    code = "TH0501"
    rows: tuple[object, ...] = ()  # every comparison that was made, for whoever catches the error


class SpeedupMissed(BaselineError):
    """`--require-speedup X` was given, and the measurement does not show that speed-up over the first contender.

    It is shown where the whole 95% interval of the speed-up lies at or above X, after six rounds or more, and the
    measurement is not unstable. `thunder optimize` writes no artifact then; `thunder bench` writes what `--out` and
    `--plot` ask for.
    """

    code = "TH0502"
    report: object = None  # the BenchmarkSuite or BenchmarkReport, for whoever catches the error


# ---- 06: artifacts --------------------------------------------------------------------------------------------


class NotAnArtifact(ArtifactError):
    """The folder holds no readable `manifest.json` of Thunder."""

    code = "TH0601"


class ArtifactDamaged(ArtifactError):
    """A file of the artifact is missing, has another digest than the manifest says, or lies outside the folder."""

    code = "TH0602"


class ArtifactTooNew(ArtifactError):
    """The artifact's schema is newer than this version of Thunder can read."""

    code = "TH0603"


class ArtifactForeign(ArtifactError):
    """The artifact was made for another model, other code, another version of PyTorch, or another machine.

    Of machines it tells the device, the system, the family of processors and the version of Python that compiled
    regions need, and the CPU's instruction sets that they use; the message names what is lacking.
    """

    code = "TH0604"


class ImportRefused(ArtifactError):
    """The artifact refers to an object of a module that nobody trusts, so that the module was not imported.

    Importing runs a module's code. For an artifact that is done only with PyTorch, transformers and what they import,
    Thunder and its plug-ins, where these were installed (or where `PYTHONPATH` leads), with the packages of the classes
    of the model (or of the function) that is loaded, and with what the user names:
    `load(..., trusted_modules=("package",))`, or `--trust-module package`.
    """

    code = "TH0605"


class BadSignature(ArtifactError):
    """The artifact has a signature that does not hold: it is of something else, or is damaged.

    A signature is of the manifest's last line, the digest that covers all files. What changes an artifact, as
    `thunder validate` does for one whose validation was pending, takes its signatures away; it has to be signed anew.
    """

    code = "TH0606"


class NotSigned(ArtifactError):
    """A signature was required, and the artifact has none by a key that is trusted.

    Trusted are the keys that were named, by `trusted_keys` or `--key`, or else those of the user's own list, which
    `thunder keys trust FILE` adds to and `thunder keys list` shows.
    """

    code = "TH0607"


# ---- 07: resources --------------------------------------------------------------------------------------------


class OutOfDisk(ResourceError):
    """The disk filled up while an artifact was being written, or a file would have been larger than `ulimit -f` allows.

    The unfinished copy was removed. A full disk under the cache of compiled kernels is no error: they are not kept.

    Weights that are to be included are weighed against the room on the disk before anything is written.

    `thunder cache prune` makes room where the cache is what fills it.
    """

    code = "TH0701"


class OutOfMemory(ResourceError):
    """The model, its optimized twin or a call of one of them does not fit into the device's memory.

    What a call takes is estimated on tensors without data before any of it is allocated, and so is what the layers of a
    config take; what cannot be estimated is refused by the allocator.
    """

    code = "TH0702"


# ---- 08: unsupported ------------------------------------------------------------------------------------------


class UnknownArchitecture(UnsupportedError):
    """The config names an architecture that the installed transformers library does not have."""

    code = "TH0801"


class DataDependent(UnsupportedError):
    """The program asks for the value of a tensor while it is being traced (`if x.sum() > 0`, `x.item()`, ...).

    A trace holds one path through the program. `jit` traces a program for the value that decides, and again for
    another one, but not for ever: the ninth value of one line is refused. `data_dependent="error"`, and the recipes,
    which have to serve inputs that were not traced, refuse the first. Some values cannot be known ahead of the call.
    Alternatives: `torch.where` in place of the branch; a comparison in place of the value, since only its outcome is
    guarded (`if x.sum() > 0`, not `int(x.sum())`); the decision made outside and passed in as a Python value; the
    function that branches left out of the compiled part; or `jit(..., data_dependent="retrace")`, which traces for
    every value.
    """

    code = "TH0802"


class OperationFailed(UnsupportedError):
    """An operation cannot be recorded without data, or fails on the inputs that it was given.

    The message holds PyTorch's own and the line of the program that called it.
    """

    code = "TH0803"


class CannotReplay(UnsupportedError):
    """The program returns, or stores outside, an object that cannot be rebuilt on the next call."""

    code = "TH0804"


class CannotInterpret(UnsupportedError):
    """The program uses a feature of Python that the interpreter cannot run."""

    code = "TH0805"


class NoExampleInputs(UnsupportedError):
    """Thunder does not know what inputs a model of this kind takes, so it cannot trace or validate it by itself.

    `thunder_core.jit(model)` compiles it for the inputs that it is called with.
    """

    code = "TH0806"


class KernelRefuses(UnsupportedError):
    """One of Thunder's own kernels was called with shapes or dtypes that it was not written for.

    The kernels compute in float32 on float32, bfloat16 and float16 tensors. An executor claims only what they can
    take, so this comes from calling one by hand.
    """

    code = "TH0807"


class NotDifferentiable(UnsupportedError, NotImplementedError):
    """A derivative was asked for that a compiled program cannot give.

    The second one, or the one for some results alone, of a program that writes to its inputs: it cannot be run once
    more on what they were. Of an artifact that was loaded with `strict=True`, one for which no backward was saved. Or
    `grad`, `value_and_grad`, `vjp` or `jvp` of a function that returns something else than they take, or does something
    that PyTorch has no derivative of; the message names the line.
    """

    code = "TH0808"


class NotTraceable(UnsupportedError):
    """A compiled function was called within a tracer or transform of PyTorch's that cannot look into it.

    `torch.vmap`, `torch.func`, `torch.jit.trace`, `torch.export`, `make_fx`, `torch.fx` and forward-mode derivatives
    run a function on tensors that have no data, or stand for many. Give them the function as it was before it was
    compiled, or use `thunder_core.grad`, `vjp` and `jvp`. `torch.compile` leaves a compiled function alone, and calls
    it between two graphs of its own.
    """

    code = "TH0809"


# ---- 70 and 130 -----------------------------------------------------------------------------------------------


class Bug(InternalError):
    """Something that cannot happen has happened. Please report it with the output of `thunder doctor --json`."""

    code = "TH7001"


class Interrupted(ThunderError):
    """The user pressed Ctrl-C. Nothing was left half-written."""

    code = "TH1301"
    status = 130


def all_errors() -> Iterator[type[ThunderError]]:
    """Every leaf of the tree, in the order of its code."""
    members = [c for c in globals().values() if inspect.isclass(c) and issubclass(c, ThunderError)]
    yield from sorted((c for c in members if c.code != ThunderError.code), key=lambda c: c.code)
