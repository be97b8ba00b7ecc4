"""What a call gives on real tensors, where the recording depends on it: the lines so far are run on the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from thunder_core.capture.memo import Made, fresh_fake
from thunder_core.capture.tensors import Tensors, tensors_in
from thunder_core.capture.trial import apart
from thunder_core.ir.proxy import Proxy, TensorProxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

IRRELEVANT = frozenset({"torch._C._set_grad_enabled"})
SEEDS = ("torch.Generator", "torch.manual_seed", "torch.random.manual_seed")  # what `apart` puts back
NUMBERS = (bool, int, float, complex)


class Unknowable(Exception):
    """A value that the recording cannot know ahead of the call: the reason."""


def evaluated(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: Tensors, lines: Sequence[BoundSymbol]
) -> Any:
    """What the function gives on the values that its tensors have here, with fakes for the tensors among it.

    Raises what the function raises, and `Unknowable`.
    """
    if any(isinstance(leaf, torch.Generator) for leaf in leaves((args, kwargs))):
        raise Unknowable("it draws from a generator")
    fakes = tensors_in((args, kwargs))
    proxies = [tensors.proxy(fake) for fake in fakes]
    grad = torch.is_grad_enabled()
    with apart():
        known = values(tensors, lines, proxies)
        reals = [known[proxy.name].detach().requires_grad_(proxy.requires_grad) for proxy in proxies]
        versions = [real._version for real in reals]
        stand_ins = {id(fake): real for fake, real in zip(fakes, reals, strict=True)}
        given = replace_leaves((args, kwargs), lambda leaf: stand_ins.get(id(leaf), leaf))
        with torch.set_grad_enabled(grad):
            result = function(*given[0], **given[1])
        if versions != [real._version for real in reals]:
            raise Unknowable("it writes to its arguments")
        known_fakes = {id(real): fake for fake, real in zip(fakes, reals, strict=True)}
        made = {id(leaf): fake_like(leaf, reals, fakes, tensors) for leaf in tensors_in(result)} | known_fakes
        return tree_map_only(torch.Tensor, lambda leaf: made[id(leaf)], result)


def fake_like(
    real: torch.Tensor, reals: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor], tensors: Tensors
) -> torch.Tensor:
    """A fake for a result, which is a view of a fake where the result is one of what the function was given."""
    storage = real.untyped_storage()._cdata
    base = next((place for place, one in enumerate(reals) if one.untyped_storage()._cdata == storage), None)
    offset = 0 if base is None else fakes[base].storage_offset() + real.storage_offset() - reals[base].storage_offset()
    made = fresh_fake(Made(tensor_proxy("", real), base, int(offset)), list(fakes), tensors.mode)
    return made.requires_grad_(real.requires_grad)


def values(tensors: Tensors, lines: Sequence[BoundSymbol], wanted: Iterable[TensorProxy]) -> dict[str, Any]:
    """The values of names, by running the lines that they need; all of them where some line has an effect."""
    needed = list(lines) if any(map(matters, lines)) else list(reversed(list(behind(lines, wanted))))
    known: dict[str, Any] = {proxy.name: real for real, proxy in tensors.inputs.values()}
    if any(line.mutates for line in needed):
        known = copies(known)
    known |= {proxy.name: unspoilt(one) for one, proxy in tensors.objects.values()}
    with torch.no_grad():
        for line in filter(is_replayed, needed):
            unknown = [proxy.name for proxy in line.inputs if proxy.name not in known]
            if unknown:
                raise Unknowable(f"`{unknown[0]}`, which it hangs on, is not known before the call")
            given = replace_leaves(
                (line.args, dict(line.kwargs)), lambda leaf: known[leaf.name] if isinstance(leaf, Proxy) else leaf
            )
            result = line.symbol.target(*given[0], **given[1])
            for name, value in zip(leaves(line.output), leaves(result), strict=True):
                if isinstance(name, Proxy):
                    known[name.name] = value
    return known


def matters(line: BoundSymbol) -> bool:
    """Whether the line changes what others compute."""
    return line.has_effect and line.symbol.name not in IRRELEVANT and not line.symbol.name.startswith("thunder_core.")


def is_replayed(line: BoundSymbol) -> bool:
    """Whether the line is run to know values; `Unknowable` for changes of a state that cannot be taken back."""
    if line.mutates or line.outputs or line.symbol.name.startswith(SEEDS):
        return True
    if matters(line):
        raise Unknowable(f"`{line.symbol.name}` stands before it")
    return False


def behind(lines: Sequence[BoundSymbol], wanted: Iterable[TensorProxy]) -> Iterable[BoundSymbol]:
    """The lines that names need, the last one first."""
    names = {proxy.name for proxy in wanted}
    for line in reversed(lines):
        if not names.isdisjoint(proxy.name for proxy in line.defines):
            names.update(proxy.name for proxy in line.inputs)
            yield line


def unspoilt(generator: torch.Generator) -> torch.Generator:
    """A generator to draw from in an outside one's place; the default one is put back by `apart`."""
    return generator if generator is torch.default_generator else generator.clone_state()


def copies(known: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Copies of tensors that share memory as the tensors do."""
    memory: dict[int, torch.UntypedStorage] = {}
    copied: dict[str, Any] = {}
    for name, real in known.items():
        storage = real.untyped_storage()
        if storage._cdata not in memory:
            memory[storage._cdata] = torch.empty(0, dtype=torch.uint8).set_(storage).clone().untyped_storage()
        own = memory[storage._cdata]
        copied[name] = torch.empty(0, dtype=real.dtype).set_(own, real.storage_offset(), real.shape, real.stride())
    return copied
