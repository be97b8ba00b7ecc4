"""Results of a program that are computed from other results: autograd's graph leads from these to those.

A program is one node of autograd's graph, so that its results stand side by side. Behind each result that is computed
from others there is one more node, which leads to these as well. What looks at the gradient of a result that others are
computed from (`torch.autograd.grad(loss, scores)`, a hook, `retain_grad`) has the backward run in parts: such a node
computes the gradients of the results that its own is computed from, and the program's node goes on from there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.autograd.graph import Node

from thunder_core.autodiff.autograd_node import GONE, Compiled, refuse_hooks
from thunder_core.autodiff.reverse_mode import ReverseSweep, computed_from
from thunder_core.capture.symbols import symbol_of
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.runtime.library.graph_cuts import replaced

RUNS_ENGINE = torch.autograd.graph._engine_run_backward.__code__
INPUTS = 3  # the place, behind the outputs, of what gradients are taken for


@dataclass(frozen=True)
class Dependence:
    """A result of the body at a `place`, and the outputs of the computation that it is computed from, by their places.

    `made` are the outputs that the tail makes of it, and the output that it is itself.
    """

    place: int
    sources: tuple[int, ...]
    made: tuple[int, ...]


@dataclass(frozen=True)
class Dependences:
    """The dependences of a computation, each behind those of its sources, and the names of all sources, by places."""

    entries: tuple[Dependence, ...]
    names: Mapping[int, str]

    @property
    def cuts(self) -> tuple[str, ...]:
        """The names of the tensors at which a backward is parted."""
        return tuple(self.names.values())


def dependences(body: Trace, tail: Trace | None, results: Sequence[int], sweep: ReverseSweep) -> Dependences:
    """The dependences among the outputs of a computation, which a body and a tail that makes views are."""
    outputs = (body if tail is None else tail).output
    made = {place: descendants(body.output[place].name, tail) for place in results}
    candidates = {
        place: proxy.name
        for place, proxy in enumerate(outputs)
        if isinstance(proxy, TensorProxy) and proxy.name in sweep.requires_grad_names
    }
    reached = {name: followed_from(name, sweep) for name in set(candidates.values())}
    sources = {
        place: tuple(
            other
            for other, name in candidates.items()
            if name not in made[place] and body.output[place].name in reached[name]
        )
        for place in results
    }
    entries = tuple(
        Dependence(place, sources[place], made=_places(outputs, made[place]))
        for place in sorted(results, key=lambda place: len(sources[place]))
        if sources[place]
    )
    used = {place for entry in entries for place in entry.sources}
    return Dependences(entries, {place: name for place, name in candidates.items() if place in used})


def _places(outputs: Sequence[Any], names: set[str]) -> tuple[int, ...]:
    return tuple(place for place, proxy in enumerate(outputs) if isinstance(proxy, Proxy) and proxy.name in names)


def descendants(name: str, tail: Trace | None) -> set[str]:
    """A name, and those of all that the tail makes of it."""
    return {name} if tail is None else computed_from([name], tail)


def followed_from(name: str, sweep: ReverseSweep) -> set[str]:
    """The names of the tensors that lead to a name in autograd's graph."""
    reached = {name}
    for step in sweep.steps:
        if any(proxy.name in reached for proxy in step.differentiated_inputs):
            reached |= {proxy.name for proxy in step.results}
    return reached


def with_replacements(body: Trace, names: Sequence[str]) -> Trace:
    """The body with one more input for each of these names, which takes its place for what is computed from it.

    It returns its results as it computed them, and then the tensors of these names.
    """
    own: dict[str, TensorProxy] = {}
    bsyms: list[BoundSymbol] = []
    given = {name: Proxy(f"{name}_given") for name in names}
    for bsym in body.bound_symbols:
        made = [one for one in bsym.outputs if isinstance(one, TensorProxy) and one.name in given.keys() - own.keys()]
        own |= {proxy.name: proxy.named(f"{proxy.name}_computed") for proxy in made}
        bsyms.append(bsym.renamed({proxy.name: own[proxy.name] for proxy in made}))
        bsyms += [BoundSymbol(symbol_of(replaced), (own[one.name], given[one.name]), {}, one) for one in made]
    proxies = {proxy.name: proxy for bsym in body.bound_symbols for proxy in bsym.outputs}
    outputs = (*(own.get(proxy.name, proxy) for proxy in body.output), *(proxies[name] for name in names))
    inputs = (*body.inputs, *given.values())
    return replace(body.having(bsyms, made_by="replace results"), inputs=inputs, output=outputs)


@dataclass(eq=False)
class Parting:
    """The parts in which the backward of a bridge runs.

    `backward` is the function that runs the part of a node: of a result with its place among those that gradients come
    in for, or of the program with the results that they came for. `make_recorded` makes the computation that takes,
    behind the inputs, tensors in place of the sources.
    """

    dependences: Dependences
    backward: Callable[[int | tuple[bool, ...]], Any]
    make_recorded: Callable[[], Callable[..., tuple[torch.Tensor, ...]]]

    @cached_property
    def recorded(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The computation that takes tensors in place of the sources."""
        return self.make_recorded()


@dataclass(eq=False)
class Sources:
    """The sources of one result in one call, until a backward pass that keeps no graph has met them."""

    tensors: tuple[torch.Tensor, ...]
    is_spent: bool = False


class Joint:
    """One call of a program with such results: what its nodes know of each other in a backward pass.

    It holds no result itself, for a result's node that holds that result would never be collected.
    """

    def __init__(self, bridge: Any, parting: Parting, node: Any) -> None:
        self.bridge, self.parting, self.node = bridge, parting, node
        self.results: list[ReferenceType[torch.Tensor]] = []
        self._met: list[tuple[tuple[int, ...], ReferenceType[Sources]]] = []
        self._task = -1
        self._is_parted = False

    def is_parted(self, anchor: Node | None = None) -> bool:
        """Whether the present backward pass runs in parts, which the first node of it decides."""
        task = torch._C._current_graph_task_id()
        if anchor is not None and task != self._task:
            self._met.clear()
            self._task, self._is_parted = task, (may_take(anchor, self.results) or any(map(is_watched, self.results)))
        return task == self._task and self._is_parted

    def meet(self, places: tuple[int, ...], sources: Sources) -> None:
        """Note the sources that the pass has met."""
        self._met.append((places, ref(sources)))

    def given(self) -> list[torch.Tensor | None]:
        """A tensor in place of each source, as far as the pass has met it, through which gradients find their way."""
        tensors: dict[int, torch.Tensor] = {}
        for places, reference in self._met:
            tensors |= zip(places, sources.tensors if (sources := reference()) else (), strict=False)
        with torch.enable_grad():
            wanted = map(tensors.get, self.parting.dependences.names)
            return [None if tensor is None else tensor.view_as(tensor) for tensor in wanted]

    def let_go(self) -> None:
        """Forget the sources that the pass has met."""
        for _, reference in self._met:
            if (sources := reference()) is not None:
                sources.tensors = ()


def may_take(anchor: Node, results: Iterable[ReferenceType[torch.Tensor]]) -> bool:
    """Whether the present backward pass is for the gradients of some tensors alone, one of these results among them.

    Such a pass goes past a leaf that nobody has. PyTorch's own frame tells which tensors it is for; where a pass runs
    in a thread of autograd's, that is not known.
    """
    try:
        if torch._C._will_engine_execute_node(anchor):
            return False
    except RuntimeError:  # torch.autograd.grad may not be asked for leaves
        pass
    wanted = tensors_of_pass()
    if wanted is None:
        return True
    edges = [(result.grad_fn, result.output_nr) for one in results if (result := one()) is not None]
    return any(node is other and place == number for node, place in map(edge_of, wanted) for other, number in edges)


def edge_of(wanted: Any) -> tuple[Any, int]:
    """The node that a gradient is taken at, and the number of the node's result."""
    is_tensor = isinstance(wanted, torch.Tensor)
    return (wanted.grad_fn if is_tensor else wanted.node), wanted.output_nr


def tensors_of_pass() -> Sequence[Any] | None:
    """The tensors whose gradients the present backward pass is for; None where no frame of this thread tells."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not RUNS_ENGINE:
        frame = frame.f_back
    args = () if frame is None else frame.f_locals.get("args", ())
    wanted = args[INPUTS] if len(args) > INPUTS else None
    return wanted if isinstance(wanted, tuple | list) else None


def is_watched(reference: ReferenceType[torch.Tensor]) -> bool:
    """Whether a hook or `retain_grad` looks at the gradient of a tensor."""
    tensor = reference()
    return tensor is not None and bool(tensor.retains_grad or tensor._backward_hooks)


class Dependent(torch.autograd.Function):
    """A result that is computed from others, which its node leads to."""

    @staticmethod
    def forward(
        ctx: Any,
        joint: Joint,
        entry: Dependence,
        anchor: torch.Tensor,  # noqa: ARG004
        result: torch.Tensor,
        *sources: torch.Tensor,
    ) -> torch.Tensor:
        """The result, in its memory."""
        ctx.joint, ctx.entry, ctx.sources = joint, entry, Sources(sources)
        ctx.set_materialize_grads(False)
        return result.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the result as the program's node has it, and in parts those of the sources."""
        joint, entry, sources = ctx.joint, ctx.entry, ctx.sources
        incoming: Sequence[torch.Tensor | None] = [None] * len(entry.sources)
        if gradient is None:
            return (None, None, None, None, *incoming)
        if sources.is_spent:
            raise RuntimeError(GONE)
        sources.is_spent = not torch._C._autograd._get_current_graph_task_keep_graph()
        if joint.is_parted(ctx.next_functions[0][0]):
            joint.meet(entry.sources, sources)
            incoming = joint.bridge.source_gradients(joint, entry, gradient)
        elif sources.is_spent:
            sources.tensors = ()
        return (None, None, None, gradient, *incoming)


refuse_hooks(Dependent)
ANCHOR = torch.empty(0, requires_grad=True)  # a leaf that every complete backward pass reaches


@dataclass(frozen=True, eq=False)
class Joining:
    """The function that computes all results of a program, with nodes behind those that are computed from others."""

    bridge: Any
    parting: Parting
    tail: Callable[..., Any] | None
    tail_inputs: tuple[int, ...]
    _anchor: torch.Tensor = field(default=ANCHOR)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The results, each in autograd's graph where it is in eager PyTorch."""
        bases = list(self.bridge(*inputs))
        outputs = self._outputs(inputs, bases)
        node: Any = next((base.grad_fn for base in bases if isinstance(base, torch.Tensor) and base.grad_fn), None)
        is_program = isinstance(node, Compiled._backward_cls)
        if not is_program:  # autograd follows nothing, or the operations themselves
            return tuple(outputs)
        joint = Joint(self.bridge, self.parting, node)
        node.joint = ref(joint)
        for entry in self.parting.dependences.entries:
            sources = [outputs[place] for place in entry.sources]
            base = Dependent.apply(joint, entry, self._anchor, bases[entry.place], *sources)  # type: ignore[no-untyped-call]
            bases[entry.place] = base
            remade = self._outputs(inputs, bases)
            outputs = [remade[place] if place in entry.made else output for place, output in enumerate(outputs)]
        joint.results = [ref(outputs[place]) for place in self.parting.dependences.names]
        return tuple(outputs)

    def _outputs(self, inputs: Sequence[torch.Tensor], bases: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The outputs of the computation: what its body returns, or what the tail makes of that."""
        if self.tail is None:
            return bases
        outputs: Sequence[Any] = self.tail(*(inputs[place] for place in self.tail_inputs), *bases)
        return outputs
