"""PyTorch's process-wide settings that a program reads or changes while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from thunder_core.passes.autodiff.decompose_autocast import with_autocast_off
from thunder_core.tracing.capture.torch_facts.autocast import AUTOCAST_DEVICES
from thunder_core.tracing.capture.torch_facts.settings import GETTERS, Setting, chooses_attention, device_contexts
from thunder_core.tracing.capture.torch_facts.symbols import as_bound_symbol, symbol_of
from thunder_core.tracing.ir.symbol import BoundSymbol

ATTENTION_NAME = "scaled_dot_product"


class Settings:
    """The settings that a program has read or changed.

    `answers` maps queries (calls of getters as Python source) to the results that the prologue checks.
    """

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.has_changed_autocast = False
        self.changed_functions: set[Callable[..., Any]] = set()  # process-wide setters that the program has called
        self._changed: set[int] = set()
        self._device_contexts = device_contexts()
        self._changed_answers: dict[Callable[..., Any], object] = {}

    def note_autocast_change(self) -> None:
        """Note that the program has changed autocast: later reads of its state need no guard."""
        self.has_changed_autocast = True

    def change(self, setting: Setting, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that the program has changed a setting: later reads of the setting need no guard."""
        self._changed.add(id(setting))
        if setting.answers is not None:
            self._changed_answers |= zip(setting.getters, setting.answers(*args, **kwargs), strict=True)

    def ask(self, getter: Callable[..., Any], *args: Any) -> Any:
        """Return the value of a setting, which is guarded unless the program has changed the setting."""
        if getter in self._changed_answers:
            return self._changed_answers[getter]
        value = getter(*args)
        if not self._is_changed(getter):
            self.answers[f"{symbol_of(getter).name}({', '.join(map(repr, args))})"] = value
        return value

    def _is_changed(self, getter: Callable[..., Any]) -> bool:
        if getter is torch.get_default_device and device_contexts() != self._device_contexts:
            return True  # `with torch.device(...)` changes it, too
        return getter in GETTERS and id(GETTERS[getter]) in self._changed


def with_chosen_attention(bsyms: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the bound symbols; after the program has selected a kernel of attention, decompose each attention."""
    has_chosen = False
    autocast = {device: torch.is_autocast_enabled(device) for device in AUTOCAST_DEVICES}
    for bsym in bsyms:
        has_chosen = has_chosen or chooses_attention(bsym)
        if bsym.symbol.target is torch.set_autocast_enabled and len(bsym.args) == 2:
            autocast[bsym.args[0]] = bsym.args[1]
        if (
            has_chosen
            and bsym.subsymbols
            and any(ATTENTION_NAME in part.symbol.name for part in (bsym, *bsym.subsymbols))
        ):
            parts = [as_bound_symbol(part, bsym) for part in bsym.subsymbols]
            yield from with_autocast_off(parts, [device for device, enabled in autocast.items() if enabled])
        else:
            yield bsym
