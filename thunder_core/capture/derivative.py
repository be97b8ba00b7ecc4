"""Derivatives of bound symbols, from PyTorch's own autograd: what a line's backward does, and what it reads."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_core.capture.fake import empty, new_mode
from thunder_core.capture.rules import target_of
from thunder_core.capture.symbols import LIFTS, is_random, is_reshaping, out_of_place, symbol_of, written_values
from thunder_core.capture.tensors import tensors_in
from thunder_core.capture.versions import without_writes
from thunder_core.errors import SourceLine
from thunder_core.ir.proxy import Proxy, TensorProxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

ALIASES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})
SKIPPED = frozenset({torch.ops.prim.device.default})
MODED = frozenset({torch.ops.aten.mkldnn_rnn_layer.default})

# PyTorch's metadata does not know all strides (softplus_backward's): what is a view of them may be a copy of others.
RELAXED: Mapping[object, Any] = {torch.ops.aten.view.default: torch.ops.aten.reshape.default}
MOST_NUMBERS = 64  # of a constant that is printed with its line

LACKING = ("derivative for", "no autograd formula")  # what PyTorch says of an operation that it cannot differentiate


class Underivable(Exception):
    """A line whose derivative cannot be had as a list of operations; the message says why, `where` has the line's."""

    where: SourceLine | None = None
    lacking: BoundSymbol | None = None  # the line, if it is one that PyTorch has no derivative of


@dataclass(frozen=True)
class Pull:
    """What a line's backward does with the gradients of its results.

    `lines` read `given` (those gradients), tensors of the forward, and each other; `gradients` has, for each input
    that a gradient is wanted of, the proxy that holds it, or None where there is none.
    """

    given: tuple[TensorProxy | None, ...]
    lines: tuple[BoundSymbol, ...]
    gradients: tuple[TensorProxy | None, ...]

    @property
    def reads(self) -> dict[str, TensorProxy]:
        """The tensors of the forward that the lines read, by name."""
        made = {proxy.name for line in self.lines for proxy in line.defines}
        made |= {proxy.name for proxy in self.given if proxy is not None}
        read = (proxy for line in self.lines for proxy in line.inputs if isinstance(proxy, TensorProxy))
        return {proxy.name: proxy for proxy in read if proxy.name not in made}


@dataclass(eq=False)
class Derivation:
    """One line, run once on tensors without data under PyTorch's autograd, and ready to be run backward.

    `lines` are the aten operations of the forward, `wanted` the inputs that gradients are for, and `results` the
    outputs of the line that autograd follows. All names are those of the line that it was derived from; `inputs` and
    `outputs` are the tensors of `mode` that stand for those that are wanted and for the results.
    """

    line: BoundSymbol
    wanted: tuple[TensorProxy, ...]
    results: tuple[TensorProxy, ...]
    lines: tuple[BoundSymbol, ...]
    mode: FakeTensorMode = field(repr=False)
    tape: Tape = field(repr=False)
    inputs: tuple[torch.Tensor, ...] = field(repr=False)
    outputs: tuple[torch.Tensor, ...] = field(repr=False)
    _pulls: dict[Hashable, Pull] = field(default_factory=dict, repr=False)

    def pull(self, given: Sequence[TensorProxy | None]) -> Pull:
        """The backward for gradients of this metadata, one for each of `results`; None where there is no gradient."""
        key = tuple(proxy and (proxy.shape, proxy.stride, proxy.dtype, proxy.device) for proxy in given)
        if key not in self._pulls:
            self._pulls[key] = self._differentiated(given)
        return self._pulls[key]

    def _differentiated(self, given: Sequence[TensorProxy | None]) -> Pull:
        tape = self.tape.continued()
        with self.mode:
            fakes = [None if proxy is None else empty(proxy) for proxy in given]
        names = tuple(None if fake is None else tape.name(fake) for fake in fakes)
        pairs = [(output, fake) for output, fake in zip(self.outputs, fakes, strict=True) if fake is not None]
        try:
            with torch._C._DisableAutocast(), self.mode, tape:
                found = torch.autograd.grad(
                    [output for output, _ in pairs],
                    self.inputs,
                    [fake for _, fake in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
        except Underivable:
            raise
        except Exception as error:  # PyTorch's formulas raise what they raise
            failed = Underivable(f"its backward fails: {type(error).__name__}: {first_line(error)}")
            failed.lacking = self.line if any(words in str(error) for words in LACKING) else None
            raise failed from error
        gradients = tuple(None if one is None else tape.proxy(one) for one in found)
        return Pull(names, tuple(_needed(tape.unwritten(), gradients)), gradients)


def derive(line: BoundSymbol, followed: frozenset[str]) -> Derivation | None:
    """What autograd makes of a line whose inputs of the names `followed` require gradients; None if it follows nothing.

    An operation without a derivative, such as the backwards of some others, is decomposed where PyTorch knows how.
    Raises `Underivable` for a line that writes to what is followed, or that does not run on tensors without data.
    """
    if any(name in followed for name in line.mutates):
        raise Underivable("it writes to a tensor that needs a gradient")
    if not line.mutates and not any(map(is_differentiable_proxy, line.outputs)):
        return None  # numbers that a program asks a tensor for, places, comparisons
    found = _derived(line, followed)
    if found is not None and any(_lacks_formula(output) for output in found.outputs):
        target = line.symbol.target
        apart = decomposition_table.get(target) if isinstance(target, torch._ops.OpOverload) else None
        if apart is not None:
            return _derived(replace(line, symbol=replace(line.symbol, target=apart)), followed)
        error = Underivable("PyTorch has no derivative of it")
        error.lacking = line
        raise error
    return found


def is_differentiable_proxy(proxy: Proxy) -> bool:
    """Whether autograd would follow such a result: a tensor of real or complex numbers."""
    return isinstance(proxy, TensorProxy) and (proxy.dtype.is_floating_point or proxy.dtype.is_complex)


def _lacks_formula(output: torch.Tensor) -> bool:
    """Whether PyTorch has no derivative of the operation that made a tensor."""
    return output.grad_fn is not None and output.grad_fn.name().endswith("NotImplemented")


def _derived(line: BoundSymbol, followed: frozenset[str]) -> Derivation | None:
    mode, tape = new_mode(), Tape("%s")
    fakes: dict[str, torch.Tensor] = {}
    with mode:
        for proxy in line.inputs:
            if isinstance(proxy, TensorProxy):
                if len(proxy.stride) != len(proxy.shape):
                    raise Underivable("it takes a sparse tensor")
                fake = empty(proxy)
                fakes[proxy.name] = fake.requires_grad_(True) if proxy.name in followed else fake
                tape.bind(fakes[proxy.name], proxy)
    output = run_line(line, fakes, mode, tape)
    if any(fake.requires_grad and name not in followed for name, fake in fakes.items()):
        raise Underivable("it writes what needs a gradient to a tensor that needs none")
    results: list[tuple[TensorProxy, torch.Tensor]] = []
    for proxy, tensor in paired(line.output, output):
        tape.settle(tensor, proxy)
        if tensor.requires_grad and all(proxy.name != known.name for known, _ in results):
            results.append((proxy, tensor))
    if not results:
        return None
    wanted = [proxy for proxy in line.inputs if isinstance(proxy, TensorProxy) and proxy.name in followed]
    return Derivation(
        line=line,
        wanted=tuple(wanted),
        results=tuple(proxy for proxy, _ in results),
        lines=tuple(tape.lines),
        mode=mode,
        tape=tape,
        inputs=tuple(fakes[proxy.name] for proxy in wanted),
        outputs=tuple(tensor for _, tensor in results),
    )


def called(line: BoundSymbol, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What a line returns, called by its rule if it has one, on tensors by the names of its inputs."""

    def value(leaf: Any) -> Any:
        return tensors[leaf.name] if isinstance(leaf, TensorProxy) else leaf

    args, kwargs = replace_leaves(line.args, value), replace_leaves(dict(line.kwargs), value)
    if any(isinstance(leaf, Proxy) for leaf in leaves((args, kwargs))):
        raise Underivable("it takes something that is not a tensor")
    return target_of(line)(*args, **kwargs)


def run_line(line: BoundSymbol, fakes: Mapping[str, torch.Tensor], mode: FakeTensorMode, tape: Tape) -> Any:
    """What a line returns for these tensors by the names of its inputs, its aten operations written on the tape."""
    try:
        with torch.enable_grad(), torch._C._DisableAutocast(), mode, tape:
            return called(line, fakes)
    except Underivable:
        raise
    except Exception as error:  # the user's operators raise what they raise
        raise Underivable(f"it does not run without data: {type(error).__name__}: {first_line(error)}") from error


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the aten operations beneath autograd, in the names that it gives to their tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo takes no part here."""
        return False

    def __init__(self, prefix: str, known: Mapping[int, tuple[torch.Tensor, TensorProxy]] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[BoundSymbol] = []
        self._prefix = prefix
        self._known = dict(known or {})
        self._last = -1

    def continued(self) -> Tape:
        """A tape for the backward of what is on this one."""
        return Tape("%g", self._known)

    def bind(self, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        """Let the proxy stand for the tensor."""
        self._known[id(tensor)] = (tensor, proxy)

    def name(self, tensor: torch.Tensor) -> TensorProxy:
        """A new proxy for a tensor that came into being."""
        self._last = max(self._last + 1, len(self._known))
        proxy = replace(tensor_proxy(f"{self._prefix}{self._last}", tensor), requires_grad=False)
        self.bind(tensor, proxy)
        return proxy

    def proxy(self, tensor: torch.Tensor) -> TensorProxy:
        """The proxy of a tensor that is known; `Underivable` for one that was made out of sight."""
        known = self._known.get(id(tensor))
        if known is None:
            raise Underivable("it uses a tensor that was made out of sight")
        return known[1]

    def settle(self, tensor: torch.Tensor, proxy: TensorProxy) -> None:
        """Give a result the name that it has in the line; one that is another name's tensor gets a line of its own."""
        before = self.proxy(tensor)
        made = {found.name for line in self.lines for found in line.defines}
        if before.name == proxy.name:
            return
        if before.name not in made:
            alias = symbol_of(torch.ops.aten.alias.default)
            self.lines.append(BoundSymbol(alias, (before,), {}, replace(proxy, requires_grad=False)))
            self.bind(tensor, proxy)
            return
        self.lines = [line.renamed({before.name: proxy}) for line in self.lines]
        for number, (other, known) in list(self._known.items()):
            if known.name == before.name:
                self._known[number] = (other, proxy)

    def unwritten(self) -> list[BoundSymbol]:
        """The lines, without writes to what they make as far as that can be."""
        if not any(line.mutates for line in self.lines):
            return self.lines
        return without_writes(self.lines, (f"{self._prefix}w{number}" for number in itertools.count()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_reshaping(func):
            return self._reshape(func, args, kwargs)
        output = func(*args, **kwargs)
        if func in SKIPPED:
            return output
        if func in LIFTS:
            self._constant(args[0], output)
            return output
        if func in ALIASES and id(args[0]) in self._known:
            self.bind(output, self._known[id(args[0])][1])
            return output
        self._note(func, args, kwargs, output)
        return output

    def _constant(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """A tensor that PyTorch made of numbers of the program, as the line that makes it."""
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.numel() > MOST_NUMBERS:
            raise Underivable("it holds a constant tensor")
        with torch.utils._python_dispatch._disable_current_modes():
            numbers = tensor.tolist()
        made = BoundSymbol(symbol_of(torch.tensor), (numbers,), {"dtype": tensor.dtype}, self.name(output))
        self.lines.append(made)

    def _note(self, func: torch._ops.OpOverload, args: Any, kwargs: Any, output: Any) -> None:
        if func in MODED:
            raise Underivable(f"`{func}` returns what its backward reads only while autograd is on")
        read = replace_leaves((tuple(args), dict(kwargs)), self._named)
        for tensor in tensors_in(output):
            if id(tensor) not in self._known:
                self.name(tensor)
        written = list(written_values(func, args, kwargs))
        self.lines.append(
            BoundSymbol(
                symbol=symbol_of(RELAXED.get(func, func)),
                args=read[0],
                kwargs=read[1],
                output=replace_leaves(output, self._named),
                mutates=tuple(self.proxy(tensor).name for tensor in tensors_in(written)),
                ordered=is_random(func, args, kwargs),
            )
        )

    def _reshape(self, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        """A tensor that gets other metadata in place is another name's from then on; it must be made here."""
        read = replace_leaves((tuple(args), dict(kwargs)), self._named)
        plain, made = out_of_place(func), {found.name for line in self.lines for found in line.defines}
        if plain is None or read[0][0].name not in made:
            raise Underivable(f"`{func}` changes the shape or the strides of a tensor in place")
        output = func(*args, **kwargs)
        self.lines.append(BoundSymbol(symbol_of(plain), read[0], read[1], self.name(args[0])))
        return output

    def _named(self, leaf: Any) -> Any:
        return self.proxy(leaf) if isinstance(leaf, torch.Tensor) else leaf


def paired(names: Any, values: Any) -> Iterator[tuple[TensorProxy, torch.Tensor]]:
    """The tensors of a result with their proxies."""
    if isinstance(names, TensorProxy) and isinstance(values, torch.Tensor):
        yield names, values
    elif isinstance(names, tuple | list):
        if not isinstance(values, tuple | list) or len(values) != len(names):
            raise Underivable("it returns something else when it is run again")
        for name, value in zip(names, values, strict=True):
            yield from paired(name, value)


def _needed(lines: Sequence[BoundSymbol], gradients: Sequence[TensorProxy | None]) -> list[BoundSymbol]:
    """The lines that the gradients come from; one that writes may do so to a view of what another reads."""
    read = {proxy.name for proxy in gradients if proxy is not None}
    kept: list[BoundSymbol] = []
    for line in reversed(lines):
        if line.mutates or any(proxy.name in read for proxy in line.outputs):
            kept.append(line)
            read |= {proxy.name for proxy in line.inputs}
    return kept[::-1]


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0]


def added(one: TensorProxy, other: TensorProxy, name: str) -> BoundSymbol:
    """The line that adds a gradient to another."""
    total = _total(one.named(""), other.named("")).named(name)
    return BoundSymbol(symbol_of(torch.ops.aten.add.Tensor), (one, other), {}, total)


@lru_cache(maxsize=1024)
def _total(one: TensorProxy, other: TensorProxy) -> TensorProxy:
    with new_mode():
        return tensor_proxy("", torch.ops.aten.add.Tensor(empty(one), empty(other)))
