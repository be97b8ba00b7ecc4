"""Errors of exit status 2: the command, its options or the configuration are wrong."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import UsageError


class BadOption(UsageError):
    """An option has an invalid value, or two options contradict each other.

    The message names the option, its value and the accepted values.
    """

    code = "TH0201"


class UnknownName(UsageError):
    """No recipe, executor, transform, stage, dtype, device, task or error code has this name.

    The message suggests the nearest names. `thunder recipes` and `thunder executors` list all names.
    """

    code = "TH0202"


class BadConfigFile(UsageError):
    """The file of `--config` is not valid TOML, or has an unknown key.

    The keys are the long options without their dashes (`recipe`, `batch`, `seq`, ...), and `set`, a table with the
    recipe's own options.
    """

    code = "TH0203"


class ModelNotFound(UsageError):
    """MODEL is neither a folder in Hugging Face layout nor the name of a model on the Hub, or its download failed.

    Thunder downloads a Hub model that the local cache lacks, unless `HF_HUB_OFFLINE=1` is set. On a machine with
    network access, `hf download NAME` copies the model into the cache, the folder that `HF_HOME` sets.
    """

    code = "TH0204"


class BadModelFolder(UsageError):
    """The model's folder lacks a file, or a file in it is damaged.

    Examples: a truncated safetensors file, a missing shard, a config that is not JSON. Thunder reads weights from
    safetensors files only, because pickled weights (`pytorch_model.bin`) can run code when they are read. With
    `--random-weights`, a config alone is enough.

    The checkpoint must have exactly the weights of the model. Missing weights are an error, because they would be
    random; `--allow-random-weights NAME` allows them. Weights that the model does not use are an error, too;
    `--allow-unused-weights NAME` allows them. NAME is a weight or a module. Each report lists the allowed weights. With
    `--task`, the head of the checkpoint may be unused.
    """

    code = "TH0205"


class OutputExists(UsageError):
    """The output folder or file exists. Only `--force` replaces an artifact, after the new artifact is complete.

    `--force` replaces an empty folder, or a folder that contains an artifact and nothing else. Thunder must have
    written the manifest, its digest must match, and the manifest must list every file. The message names files that are
    not listed.
    """

    code = "TH0206"


class OutputNotWritable(UsageError):
    """The output folder, or its parent folder, is not writable, or the path is inside an artifact.

    Name another path, or change the permissions of the folder. An artifact may contain only the files that its
    manifest lists, so write results next to the artifact, not into it.
    """

    code = "TH0207"


class RecipeMismatch(UsageError):
    """The recipe is for another family of models.

    The method `validate(model)` of a recipe decides which models the recipe accepts. `hf-transformers` accepts every
    model of the transformers library, and `default` accepts every `torch.nn.Module`.
    """

    code = "TH0208"


class SequenceTooLong(UsageError):
    """The sequence length exceeds the number of positions that the model supports.

    Use a shorter length: the message names the longest one. `max_position_embeddings` in the model's config sets
    the number of positions.
    """

    code = "TH0209"


class RemoteCodeRefused(UsageError):
    """The model's folder contains Python code that the model needs.

    Thunder does not run it without `--trust-remote-code`. Read the Python files in the folder. If you trust this code,
    repeat the command with `--trust-remote-code`.
    """

    code = "TH0210"


class RecipeConflict(UsageError):
    """The parts of the combined recipe contradict each other.

    Two transforms exclude each other, or each must run before the other, or two executors have the same name.
    """

    code = "TH0211"


class NoSuchTrace(UsageError):
    """The requested trace or stage does not exist; `thunder inspect-trace --list` lists the traces and stages.

    The message names the traces, stages or modules that exist. A stage has a number and a name, and both are
    accepted.
    """

    code = "TH0212"


class WrongInputs(UsageError):
    """A compiled program was called with inputs that it does not accept.

    The message names the guard that failed, with the accepted and the given value. Pass inputs with the types and sizes
    for which the program was traced (pad shorter texts), or optimize the model for a range of sizes with `--dynamic`. A
    module that was loaded without `strict=True` does not raise this error, but traces the call.
    """

    code = "TH0213"


class SharpEdgeError(UsageError):
    """The program has an operation that Thunder can neither guard nor replay, and `sharp_edges="error"` was given.

    An example is a line that calls `input()`. Change the line that the message names, or allow such lines with
    `sharp_edges="warn"` or `"allow"`. Then the compiled program uses the value from the traced call, which may be
    outdated.
    """

    code = "TH0214"


class CacheNotUsable(UsageError):
    """The cache folder cannot be read or written, or other users can write to it.

    The cache contains machine code that Thunder runs, so any user with write access to the folder can run code as you.
    The folder must belong to you, and other users must not be able to write to it (`chmod 700`). `THUNDER_CACHE_DIR`
    sets another folder.
    """

    code = "TH0216"


class BadPattern(UsageError):
    """A function cannot be used as a pattern, or as the replacement of a pattern.

    A pattern is an ordinary function of tensors and numbers that computes new tensors with PyTorch. It reads each of
    its parameters, writes to no tensor, uses no random numbers, and does not read tensor values. Its replacement takes
    the same arguments and returns tensors of the same shape, strides, dtype and device.
    """

    code = "TH0215"


class NoLoss(UsageError):
    """`--train` was given for a model that computes no loss: its task has no labels, or its forward ignores them.

    A training step is a forward, its loss and the backward of this loss. `--task` names the task to train for, if the
    config does not name it. In Python, `thunder_core.jit` can compile a function that calls the model and computes a
    loss.
    """

    code = "TH0217"


class NothingToTrain(UsageError):
    """A model is to be trained, but its parameters are all frozen: none has `requires_grad`.

    `--train` raises this error for such a model, and so do the recipes `ddp` and `fsdp` if the model is quantized and
    in training mode. Set `requires_grad` of the parameters to train, or leave out `--train`. A recipe for adapters,
    such as `nf4-lora`, adds trainable parameters to a frozen model. Recipes that quantize freeze weights, except
    `bf16`.
    """

    code = "TH0218"


class BadRecipe(UsageError):
    """A recipe, plug-in or transform has an unknown attribute, or a value of the wrong type.

    Without this error, each of these mistakes would silently have no effect, or an unintended effect:

    - a method `setup_...` that is never called, or a misspelled attribute;
    - a string instead of a tuple, or a class instead of an instance;
    - the sum (`+`) of a recipe and another object.

    This error also reports an exception, a return value of the wrong type, and a call of `sys.exit` in the code of a
    recipe, a transform or an executor. The message names the recipe, transform or executor, the file and the line.
    """

    code = "TH0219"


class BadKey(UsageError):
    """A key file, or the list of trusted keys, cannot be read or used.

    Artifacts are signed with Ed25519 keys. `thunder keys new FILE` makes such a key; keys of `ssh-keygen -t ed25519`
    work, too. The permissions must be strict: other users must not be able to read your private key, or to write your
    list of trusted keys. A private key may have a passphrase, which Thunder reads from `THUNDER_KEY_PASSPHRASE`.
    """

    code = "TH0220"


class BadData(UsageError):
    """A data file of `--input` or `--eval` cannot be read, or does not fit the model.

    A `.safetensors` or `.npz` file has one array for each parameter of the model's forward, with the parameter's name.
    The first dimension of each array is the batch. A `.jsonl` file has one object for each sample, with `input_ids` and
    other parameters of the forward, or with `text` if the model's folder has a tokenizer. The message names the line or
    the sample, the problem, and the inputs that the model takes.
    """

    code = "TH0221"


class BadSymbolicArgument(UsageError):
    """A name or a range of `symbolic=` or `--dynamic` is invalid, or the call has no such argument.

    The name of a number is its parameter (`scale`). The name of a size is a dimension of a tensor
    (`input_ids.size(1)`). Items of lists, tuples and dicts are allowed (`batch['input_ids'].size(1)`). A range is a
    minimum and a maximum, both included: two different integers, or None for no bound. The minimum of a size is at
    least 1. Only `int` and `float` values can be symbolic, and only integers have a range.
    """

    code = "TH0222"


class AmbiguousName(UsageError):
    """Two installed packages have an executor, a recipe or a transform of the same name.

    Thunder does not choose one of them, even if one is Thunder's own. Use one of the full names in the message instead
    of the short name. If a file in the user's folder hides Thunder's package `thunder_recipes` or `thunder_executors`,
    rename the file.
    """

    code = "TH0223"


class BadQuantization(UsageError):
    """The model cannot be quantized as requested: the layers, the groups or the calibration data do not fit.

    The message names the problem. Examples: a pattern that matches no layer, a group size that does not divide the
    columns of a layer's weight, calibration data whose names or shapes differ from the model's inputs.
    """

    code = "TH0224"


class ModelRaises(UsageError):
    """The model raises an error for its inputs in eager PyTorch too, so there is no result to optimize.

    Examples: a model whose library has not implemented its loss (`NotImplementedError`) with `--train`, or sizes of
    inputs that the model does not take. The message quotes the error and names the line that raised it.
    """

    code = "TH0225"
