"""The tensors of one recording: real tensors or handles, their fakes, and their proxies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.tracing.capture.fakes.buffers import contents_of, is_buffer
from thunder_core.tracing.capture.fakes.fake import FakeStorages, Layout, fake_like, fake_of, handle_of, new_mode
from thunder_core.tracing.capture.fakes.memo import Described, Metadata, metadata
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv, number_of
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, tensor_proxy
from thunder_core.tracing.ir.sizes import size_for_trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves, replace_leaves_in_plain

ATOMS = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, FakeTensor})


PLAIN_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
# Attributes of classes that no line of a trace calls.
CLASS_MACHINERY = frozenset(
    f"__{name}__"
    for name in (
        *("doc", "dict", "module", "weakref", "annotations", "slots", "firstlineno", "static_attributes", "hash"),
        *("new", "init", "init_subclass", "repr", "reduce_ex", "torch_function", "torch_dispatch"),
    )
)
TENSOR_NAMES = frozenset(dir(torch.Tensor)) - CLASS_MACHINERY


class Tensors:
    """The tensors of a recording. Each real tensor has one fake, and each fake one proxy, as long as this object lives.

    `name_input(tensor)` returns the name of a real tensor at its first use. `device_of(tensor)` returns the device that
    the trace assumes for a real tensor.
    """

    def __init__(
        self,
        name_input: Callable[[Any], str],
        device_of: Callable[[torch.Tensor], torch.device] = lambda tensor: tensor.device,
        sizes: SymbolicSizes | None = None,
        environment: TraceShapeEnv | None = None,
    ) -> None:
        self.sizes = sizes
        self.mode = new_mode(environment)
        self._storages = FakeStorages()
        self.objects: dict[int, tuple[Any, Proxy]] = {}
        self._made: dict[int, tuple[Any, Proxy]] = {}
        self.inputs: dict[int, tuple[torch.Tensor, TensorProxy]] = {}
        self._handles: dict[int, torch.Tensor] = {}  # by the identities of the handles
        self._shown: dict[int, torch.Tensor] = {}  # by the identities of the fakes
        # buffers that operations read, with their contents at the first read
        self.buffers: dict[int, tuple[object, bytes]] = {}
        self._name_input = name_input
        self._device_of = device_of
        self._fakes: dict[int, torch.Tensor] = {}
        self.reals: dict[int, torch.Tensor] = {}
        self._proxies: dict[int, tuple[torch.Tensor, TensorProxy, Metadata, int]] = {}
        self._memories: dict[str, int] = {}  # by the names of all proxies, including replaced ones
        self._detached: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the identity of the result
        self._count = 0

    def release(self) -> None:
        """Release the tensors and objects, some of which refer to each other."""
        by_identity: tuple[dict[int, Any], ...] = (
            *(self.objects, self._made, self.inputs, self._handles, self._shown, self.buffers),
            *(self._fakes, self.reals, self._proxies, self._detached),
        )
        for objects in by_identity:
            objects.clear()
        del self.mode, self._storages, self._name_input, self._device_of

    def next_name(self) -> str:
        """Return a new name for a result."""
        self._count += 1
        return f"t{self._count - 1}"

    def is_used(self, tensor: torch.Tensor) -> bool:
        """Whether an operation has read or made the tensor."""
        return id(tensor) in self._fakes or id(tensor) in self._proxies

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a real tensor, made at its first use; return a fake unchanged."""
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self._fakes.get(id(tensor))
        if fake is None:
            fake = self._fakes[id(tensor)] = fake_of(
                tensor, self.mode, self._storages, self._device_of(tensor), self._layout_of(tensor)
            )
            proxy = tensor_proxy(self._name_input(tensor), fake)
            overrides = overrides_methods(type(tensor)) or not TENSOR_NAMES.isdisjoint(vars(tensor))
            proxy = self.adopt(fake, replace(proxy, overrides=True) if overrides else proxy)
            self.reals[id(fake)] = tensor
            self.inputs[id(tensor)] = (tensor, proxy)
        return fake

    def outside_tensors(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each real tensor that was used, with its fake."""
        return ((tensor, self._fakes[identity]) for identity, (tensor, _) in self.inputs.items())

    def note_buffer(self, buffer: object) -> None:
        """Keep an array or another buffer that an operation reads, with its contents at the first read."""
        if id(buffer) not in self.buffers:
            self.buffers[id(buffer)] = (buffer, contents_of(buffer))

    def _layout_of(self, tensor: torch.Tensor) -> Layout | None:
        """Return the sizes and strides of a real tensor, with symbols for changing sizes; None if all are constant."""
        return None if self.sizes is None else self.sizes.layout_of(tensor)

    def in_call(self, tree: Any) -> Any:
        """Return nested values with symbolic numbers replaced by their values in the traced call."""
        sizes = self.sizes
        if sizes is None:
            return tree

        def value(leaf: Any) -> Any:
            is_float = isinstance(leaf, torch.SymFloat) and not isinstance(leaf, SymbolicNumber)
            return sizes.in_call(leaf) if is_float or isinstance(leaf, torch.SymInt) else leaf

        return replace_leaves(tree, value)

    def sum_in_call(self, counts: Iterable[Any]) -> int | None:
        """Return the sum of sizes in the traced call.

        None if a size has no value: a transform that replays a trace has no values for symbolic sizes.
        """
        values = [self.in_call(count) for count in counts]
        return sum(values) if all(type(value) is int for value in values) else None

    def is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor existed before the program ran: it is neither a fake nor a handle."""
        return not isinstance(tensor, FakeTensor) and id(tensor) not in self._handles

    def handle(self, fake: torch.Tensor, kind: type) -> torch.Tensor:
        """Return a tensor of another class, which the program holds instead of a fake: a parameter, or another
        subclass.
        """
        handle = handle_of(fake, kind)
        self._fakes[id(handle)] = fake
        self._handles[id(handle)] = self._shown[id(fake)] = handle
        return handle

    def is_shown(self, fake: torch.Tensor) -> bool:
        """Whether the program holds a real tensor or a handle instead of this fake."""
        return id(fake) in self.reals or id(fake) in self._shown

    def object_proxy(self, value: object) -> Proxy:
        """Return the proxy of an input that is not a tensor, such as a generator, made at its first use."""
        entry = self._made.get(id(value)) or self.objects.get(id(value))
        if entry is None:
            entry = self.objects[id(value)] = (value, Proxy(self._name_input(value)))
        return entry[1]

    def new_object_proxy(self, value: Any) -> Proxy:
        """Return a new proxy for an object that the program makes."""
        self._made[id(value)] = (value, Proxy(self.next_name()))
        return self._made[id(value)][1]

    def new_tensor(self, proxy: TensorProxy) -> torch.Tensor:
        """Return a new fake for the result of a bound symbol that is recorded without running."""
        fake = fake_like(proxy, self.mode)
        self.adopt(fake, proxy)
        return fake

    def adopt(self, fake: torch.Tensor, proxy: TensorProxy) -> TensorProxy:
        """Set the proxy of a fake, and return it."""
        offset = fake.storage_offset() if fake.layout is torch.strided else 0
        if type(offset) is not int:
            offset = size_for_trace(offset)
        memory = self._memories[proxy.name] = memory_of(fake)
        self._proxies[id(fake)] = (fake, proxy, (*metadata(proxy), offset), memory)
        return proxy

    def proxy(self, fake: torch.Tensor) -> TensorProxy:
        """Return the proxy of a fake, made and named at its first use."""
        entry = self._proxies.get(id(fake))
        return self.adopt(fake, tensor_proxy(self.next_name(), fake)) if entry is None else entry[1]

    def renew(self, fake: torch.Tensor) -> TensorProxy:
        """Return a new proxy for a fake whose metadata was changed in place."""
        return self.adopt(fake, tensor_proxy(self.next_name(), fake))

    def note_detached(self, result: torch.Tensor, source: torch.Tensor) -> None:
        """Record that a tensor is the result of detaching another one."""
        self._detached[id(result)] = (result, source)

    def saved_result(self, leaf: Any) -> Any:
        """Return the operation's result that a saved tensor represents in a backward; return other values unchanged.

        An operation whose backward reads its own result saves it detached. When the backward reads it, autograd gives
        the saved tensor the position of the result in its graph. A second derivative must flow to the result, and the
        detached tensor would stop it.
        """
        source = leaf
        while (link := self._detached.get(id(source))) is not None:
            source = link[1]
        if source is leaf or leaf.grad_fn is None:
            return leaf
        is_saved = leaf.grad_fn is source.grad_fn and leaf.output_nr == source.output_nr
        return source if is_saved else leaf

    def fakes(self) -> Iterator[torch.Tensor]:
        """Yield the fakes that have a proxy."""
        return (entry[0] for entry in self._proxies.values())

    def latest(self) -> Iterator[torch.Tensor]:
        """Yield the fakes that have a proxy, the latest first."""
        return (entry[0] for entry in reversed(self._proxies.values()))

    def proxy_of_new_object(self, value: Any) -> Proxy | None:
        """Return the proxy of an object that a bound symbol of the program makes; None for any other object."""
        return self._made[id(value)][1] if id(value) in self._made else None

    def input_names(self) -> frozenset[str]:
        """Return the names of the real tensors that were used."""
        return frozenset(proxy.name for _, proxy in self.inputs.values())

    def outside_names(self, fakes: Iterable[torch.Tensor]) -> frozenset[str]:
        """Return the names with which the real tensors among the tensors of these fakes entered the trace."""
        reals = (self.reals.get(id(fake)) for fake in fakes)
        return frozenset(
            self.inputs[id(real)][1].name for real in reals if real is not None and id(real) in self.inputs
        )

    def memory(self) -> set[int]:
        """Return the identities of all existing storages."""
        return {entry[3] for entry in self._proxies.values()}

    def memory_of_name(self, name: str) -> int | None:
        """Return the identity of the storage of the tensor that has, or had, this name."""
        return self._memories.get(name)

    def tensor_named(self, name: str) -> torch.Tensor | None:
        """Return the tensor of the program whose proxy has this name, or None."""
        fake_of_name = next((fake for fake, proxy, *_ in self._proxies.values() if proxy.name == name), None)
        return None if fake_of_name is None else self.reals.get(id(fake_of_name), fake_of_name)

    def is_named(self, fake: torch.Tensor) -> bool:
        """Whether the fake has a proxy."""
        return id(fake) in self._proxies

    def describe(self, fake: torch.Tensor) -> Described | None:
        """Return a key of all properties of a fake that operations depend on, and its memory; None if values matter.

        A write may have made a tensor require a gradient after it got its proxy. A constant without elements, such as
        `torch.tensor([])`, has no values.
        """
        entry = self._proxies.get(id(fake))
        if entry is None or fake.layout is not torch.strided:
            return None
        constant = getattr(fake, "constant", None)
        if constant is not None and constant.numel():
            return None
        return (*entry[2], fake.requires_grad, constant is None), entry[3]

    def to_fake(self, tree: Any) -> Any:
        """Return nested arguments with real tensors replaced by their fakes."""
        kind = type(tree)
        if kind in ATOMS:
            return tree
        if kind is tuple:
            return tuple([item if type(item) in ATOMS else self.to_fake(item) for item in tree])
        if kind in PLAIN_CLASSES:
            return self.fake(tree)
        if kind is dict:
            return {key: self.to_fake(item) for key, item in tree.items()}
        return replace_leaves(tree, lambda leaf: self.fake(leaf) if isinstance(leaf, torch.Tensor) else leaf)

    def to_real(self, output: Any) -> Any:
        """Return a result with each fake replaced by the object that the program holds for it."""
        if isinstance(output, torch.Tensor):
            return self._shown.get(id(output), self.reals.get(id(output), output))
        if type(output) in (tuple, list):
            return type(output)([self.to_real(item) for item in output])
        if type(output) is dict:
            return {key: self.to_real(item) for key, item in output.items()}
        return output

    def to_proxies(self, tree: Any) -> Any:
        """Return nested arguments or results with fakes replaced by proxies. Named tuples and other subclasses become
        plain.
        """
        kind = type(tree)
        if kind is FakeTensor:
            return self.proxy(tree)
        if kind in ATOMS:
            return tree
        return replace_leaves_in_plain(tree, self._proxy_of)

    def to_proxies_in_kind(self, tree: Any) -> Any:
        """Return nested arguments with fakes replaced by proxies. Containers keep their classes, which Python code may
        read.
        """
        return replace_leaves(tree, self._proxy_of)

    def _proxy_of(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self.proxy(leaf)
        if isinstance(leaf, torch.Generator):
            return self.object_proxy(leaf)
        if is_buffer(leaf):
            self.note_buffer(leaf)
        return leaf.proxy if isinstance(leaf, SymbolicNumber) else number_of(leaf)


@cache
def overrides_methods(kind: type) -> bool:
    """Whether a subclass of Tensor overrides methods or attributes of Tensor."""
    own = [vars(base).keys() for base in kind.__mro__[: kind.__mro__.index(torch.Tensor)]]
    return kind not in PLAIN_CLASSES and not TENSOR_NAMES.isdisjoint(set().union(*own))


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Return the tensors of a tree, without duplicates, in order."""
    return list({id(leaf): leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)}.values())
