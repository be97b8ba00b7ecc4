"""Errors of exit status 8: Thunder cannot compile the model or one of its operations."""

from __future__ import annotations

from thunder_core.foundation.errors.tree import UnsupportedError


class UnknownArchitecture(UnsupportedError):
    """The config names an architecture that the installed transformers library does not have.

    Check the names in `config.json` (`architectures`, `model_type`), or install a newer version of transformers. If the
    model's folder contains the model's code, read the code, and repeat the command with `--trust-remote-code`.
    """

    code = "TH0801"


class DataDependent(UnsupportedError):
    """The program reads the value of a tensor while it is being traced (`if x.sum() > 0`, `x.item()`, ...).

    A trace contains one path through the program. `jit` traces the program again for each new value, up to eight values
    for one source line. The programs of recipes also have to accept inputs that were not traced, so recipes raise this
    error for the first value, like `data_dependent="error"`. Some values cannot be known before the call.

    Alternatives:

    - `torch.where` instead of the branch;
    - a comparison instead of the value (`if x.sum() > 0`, not `int(x.sum())`), because then only the outcome of the
      comparison is guarded;
    - a decision that is made outside of the compiled function, and passed to it as a Python value;
    - compiling a smaller part of the program, without the function that has the branch;
    - `jit(..., data_dependent="retrace")`, which traces for every value.
    """

    code = "TH0802"
    runs_in_eager = True


class OperationFailed(UnsupportedError):
    """An operation cannot be recorded without data, or fails on its inputs.

    The message quotes PyTorch's message and names the source line that called the operation.
    """

    code = "TH0803"
    runs_in_eager = True


class CannotReplay(UnsupportedError):
    """The program has an effect that Thunder cannot replay, or returns an object that Thunder cannot rebuild.

    `jit` leaves such calls to eager PyTorch, with a warning. Recipes, artifacts and `data_dependent="error"` raise this
    error. The message names the object or the effect. Return tensors, numbers, strings and containers of these, or keep
    the line that makes the object out of the compiled function. For `save`, define the object at the top level of a
    module, or make it an attribute of the model.
    """

    code = "TH0804"
    runs_in_eager = True


class CannotInterpret(UnsupportedError):
    """The program uses a feature of Python that the interpreter does not support.

    The message names the feature and the source line. Rewrite the line, or compile a smaller part of the program
    without this line.
    """

    code = "TH0805"


class NoExampleInputs(UnsupportedError):
    """Thunder does not know the inputs of this type of model, so it cannot trace or validate the model by itself.

    `thunder_core.jit(model)` compiles the model for the inputs of its first call.
    """

    code = "TH0806"


class KernelRefuses(UnsupportedError):
    """One of Thunder's own kernels was called with shapes or dtypes that it does not support.

    The kernels compute in float32 on float32, bfloat16 and float16 tensors. An executor claims only operations that its
    kernels support, so this error comes from calling a kernel directly.
    """

    code = "TH0807"


class NotDifferentiable(UnsupportedError, NotImplementedError):
    """A compiled program cannot compute this derivative.

    These derivatives are not supported:

    - a second derivative, or a derivative of only some of the results, of a program that writes to its inputs and
      cannot run again on copies of them: because these inputs overlap with other inputs, autograd tracks the writes, or
      the copies would take more than 64 MiB in each call;
    - a derivative of an artifact that was loaded with `strict=True` and has no backward;
    - `grad`, `value_and_grad`, `vjp` or `jvp` of a function that returns something other than they require (for
      example, `grad` requires one real number);
    - a derivative through an operation that PyTorch cannot differentiate (the message names the line);
    - a hook on the `grad_fn` of a program's result, because this `grad_fn` represents the whole program;
    - a hook on a result of an artifact, if the hook would miss a part of the gradient.
    """

    code = "TH0808"


class NotTraceable(UnsupportedError):
    """A compiled function was called inside a tracer or transform of PyTorch that cannot trace it.

    `torch.func.functionalize`, `torch.jit.trace`, `torch.export`, `make_fx` and `torch.fx` run a function on tensors
    without data, or on stand-ins. With recipes and `data_dependent="error"`, a call within a level of
    `torch.autograd.forward_ad` is an error, too; otherwise, eager PyTorch makes such a call. A derivative of
    `torch.func` runs a function more than once, so a function that draws random numbers or writes to its arguments
    raises this error. Pass the original function instead of the compiled function, or compile the function that
    contains the call of the transform. `torch.compile` does not raise this error: it calls a compiled function between
    two of its own graphs.
    """

    code = "TH0809"


class RangeNotServed(UnsupportedError):
    """The range of `--dynamic` would need too many programs. Nothing was written.

    The model branches on the exact value of the size. The message names the size, the source line that branches, and
    the values that the programs cover. A narrower range may need fewer programs. A model that compares the size with a
    bound, instead of using its exact value, also needs fewer programs.
    """

    code = "TH0810"


class CannotGenerate(UnsupportedError):
    """The model or the artifact cannot generate text.

    A model can generate text if its task is `causal-lm`, `seq2seq-lm` or `image-text-to-text`, and it has the
    `generate` method of the transformers library. An artifact needs programs for generation, which
    `thunder optimize --task generate` makes.
    """

    code = "TH0811"


class CollectivesDiffer(UnsupportedError):
    """The ranks of a process group have compiled programs that call different collectives.

    Such programs would wait for each other forever, or compute wrong results. Ranks have to call the same collectives
    in the same order, with tensors of the same sizes and dtypes. Before the first run of a program, the ranks compare
    its collectives. A rank that finds a difference raises this error; the message names the first collective that
    differs. If a rank starts the program more than ten seconds after the other ranks, only this rank may raise the
    error, and the other ranks wait in their collective. `THUNDER_COMPARE_COLLECTIVES=0` disables the comparison.

    This error also ends a deadlock, in which a rank waits in a collective for another rank, but the other rank has
    ended or waits in another collective. For example, one rank has run one more step than the others.
    """

    code = "TH0813"


class DynamoRefuses(UnsupportedError):
    """Dynamo cannot trace the program as requested, so a part of it would run in eager PyTorch.

    With `fullgraph=True`, this error is raised if Dynamo would split the program into several graphs. Without it,
    splits are no error, and `thunder_core.splits(compiled)` lists them. In both cases, this error is raised if Dynamo
    would have to capture a function for more types of inputs than `max_programs` allows.
    """

    code = "TH0812"
