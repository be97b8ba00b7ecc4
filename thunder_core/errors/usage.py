"""Errors of exit status 2: the command, the options or the configuration are wrong."""

from __future__ import annotations

from thunder_core.errors.tree import UsageError


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

    The weights have to be those of the model: what the checkpoint lacks would be random, and what the model leaves out
    was trained for something. `--allow-random-weights NAME` and `--allow-unused-weights NAME` name weights, or modules,
    where that is meant, and every verdict says so. With `--task` another head than the checkpoint's may be left out.
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

    It is also the error for whatever the code of a recipe, a transform or an executor raises, for what it returns where
    something else is wanted, and for `sys.exit` in it. The message names the part, and the file and the line.
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


class BadSymbolicArgument(UsageError):
    """A name or a range in `symbolic=` or `--dynamic` cannot be, or the call has nothing of that name.

    A name is that of a parameter for a number (`scale`), and ends in a dimension for a size of a tensor
    (`input_ids.size(1)`); items of lists, tuples and dicts may stand in between (`batch['input_ids'].size(1)`). A range
    is the least and the greatest value, both included: two different integers, of a size from 1 on, and None for no
    bound. Only `int` and `float` can be symbolic, and only integers have a range.
    """

    code = "TH0222"


class AmbiguousName(UsageError):
    """Two installed packages have an executor, a recipe or a transform of one name.

    Neither is chosen in silence, not even where one of them is Thunder's own. The message has the full names of both,
    each of which can be given in place of the short one.
    """

    code = "TH0223"


class BadQuantization(UsageError):
    """A model cannot be quantized as it was asked: the layers, the groups or the calibration data do not fit it.

    The message names what does not: a pattern that no layer's name matches, a group size that does not divide the
    columns of a layer's weight, or calibration data of other names or shapes than the model's inputs.
    """

    code = "TH0224"
