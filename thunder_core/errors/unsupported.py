"""Errors of exit status 8: the model or one of its operations cannot be compiled."""

from __future__ import annotations

from thunder_core.errors.tree import UnsupportedError


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
    that PyTorch has no derivative of; the message names the line. A hook at the `grad_fn` of a program's result, which
    stands for the whole program. Of an artifact, a hook of a result that would miss a part of its gradient.
    """

    code = "TH0808"


class NotTraceable(UnsupportedError):
    """A compiled function was called within a tracer or transform of PyTorch's that cannot look into it.

    `torch.func.functionalize`, `torch.jit.trace`, `torch.export`, `make_fx`, `torch.fx` and `torch.autograd.forward_ad`
    run a function on tensors that have no data, or stand for others; a derivative of `torch.func` runs it more than
    once, which one that draws random numbers or writes to its arguments must not be. Give them the function as it was
    before it was compiled, or compile what calls them. `torch.compile` leaves a compiled function alone, and calls it
    between two graphs of its own.
    """

    code = "TH0809"


class RangeNotServed(UnsupportedError):
    """A few programs do not serve all of a range that `--dynamic` names. Nothing was written.

    The model decides by the size itself, again and again: the message names the size, the line that needed it to be
    what it was, and what the programs serve. A narrower range may need fewer programs; so does a model that decides by
    a comparison rather than by the size itself.
    """

    code = "TH0810"


class CannotGenerate(UnsupportedError):
    """The model, or the artifact, does not go on with a text token by token.

    A model does where it is for `causal-lm`, `seq2seq-lm` or `image-text-to-text`, and has `generate` of the
    transformers library. An artifact needs programs for it, which `thunder optimize --task generate` makes.
    """

    code = "TH0811"


class DynamoRefuses(UnsupportedError):
    """Dynamo cannot acquire a program as it was asked to, so that a part of it would run in eager PyTorch unseen.

    With `fullgraph=True`, a program that it splits; and a function that it would have to capture for more kinds of
    inputs than `max_programs` allows. `thunder_core.splits(compiled)` tells of splits that are allowed.
    """

    code = "TH0812"
