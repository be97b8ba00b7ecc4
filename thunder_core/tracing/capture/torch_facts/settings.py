"""PyTorch's process-wide settings: their setters, their getters, and how they are restored."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.saved_tensors_hooks import (
    keep_saved_tensors_hooks,
    set_saved_tensors_hooks,
    unset_saved_tensors_hooks,
)

Restore = Callable[[], object]
C: Any = torch._C

BACKENDS = ("cuda", "mkldnn")
PRECISIONS = (("generic", "all"), *((backend, op) for backend in BACKENDS for op in ("all", "matmul", "conv", "rnn")))
LEGACY_PRECISIONS = ("float32_matmul_precision", "cublas_allow_tf32", "cudnn_allow_tf32", "onednn_allow_tf32")
# Settings with a single value: `torch._C._set_<name>(value)` sets it, and `torch._C._get_<name>()` returns it.
VALUED = (
    "blas_preferred_backend",
    "cpu_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation",
    "cublas_allow_fp16_reduced_precision_reduction",
    "cudnn_benchmark",
    "cudnn_depthwise_kernel",
    "cudnn_deterministic",
    "cudnn_enabled",
    "linalg_preferred_backend",
    "math_sdp_allow_fp16_bf16_reduction",
    "miopen_immediate",
    "mkldnn_deterministic",
    "mkldnn_enabled",
    "nnpack_enabled",
    "qengine",
    "rocm_fa_preferred_backend",
    "warnAlways",
)
ATTENTION = ("cudnn", "fa3", "flash", "math", "mem_efficient", "overrideable")


@dataclass(frozen=True)
class Setting:
    """One setting, or several that depend on each other.

    `keep()` returns a function that restores the present value. A `decisive` setting affects the results of operations
    (their dtype, or whether they raise), and not only their speed or precision. So bound symbols that run under such a
    setting must not run without it. A setting that `chooses_attention` determines the operations of which attention
    consists.

    A setting with `answers` is not changed at tracing, because the change would affect tracing, or could not be undone.
    `answers` takes the arguments of a setter, and returns the values that the getters would return after the call.
    """

    setters: tuple[Callable[..., Any], ...]
    getters: tuple[Callable[..., Any], ...]
    keep: Callable[[], Restore]
    decisive: bool = False
    chooses_attention: bool = False
    answers: Callable[..., tuple[object, ...]] | None = None


def _setting_of_pair(
    setter: Callable[..., Any] | None,
    getter: Callable[..., Any] | None,
    *,
    decisive: bool = False,
    chooses_attention: bool = False,
) -> tuple[Setting, ...]:
    """Return a tuple with the setting of a setter and a getter; an empty tuple if this version of PyTorch lacks
    either.
    """
    if setter is None or getter is None:
        return ()
    set_value, get_value = setter, getter

    def keep() -> Restore:
        value = get_value()
        return partial(set_value, *value) if isinstance(value, tuple) else partial(set_value, value)

    return (Setting((set_value,), (get_value,), keep, decisive, chooses_attention),)


def _settings_named(name: str, *, decisive: bool = False) -> tuple[Setting, ...]:
    return _setting_of_pair(getattr(C, f"_set_{name}", None), getattr(C, f"_get_{name}", None), decisive=decisive)


def _attention_setting(setter: str, getter: str) -> tuple[Setting, ...]:
    return _setting_of_pair(getattr(C, setter, None), getattr(C, getter, None), chooses_attention=True)


def _keep_determinism() -> Restore:
    warns = C._get_deterministic_algorithms_warn_only()
    return partial(C._set_deterministic_algorithms, C._get_deterministic_algorithms(), warn_only=warns)


def _keep_anomaly() -> Restore:
    return partial(torch.set_anomaly_enabled, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())


def _keep_default_dtype() -> Restore:
    device, dtype = C._get_default_device(), torch.get_default_dtype()

    def restore() -> None:
        if C._get_default_device() != device:
            torch.set_default_tensor_type("torch.FloatTensor" if device == "cpu" else f"torch.{device}.FloatTensor")
        C._set_default_dtype(dtype)

    return restore


def flushes_denormals() -> bool:
    """Whether this thread treats denormal numbers as zero, which PyTorch can set but not query."""
    return sys.float_info.min * 0.5 == 0.0


def _keep_device() -> Restore:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return partial(torch.set_default_device, None if context is None else context.device)


def _legacy_precision(name: str) -> Any:
    """Return the value of a legacy setting; None if newer settings contradict it, so that its getter raises."""
    try:
        return getattr(C, f"_get_{name}")()
    except RuntimeError:
        return None


def _keep_precision() -> Restore:
    """Return a function that restores the precision settings, which affect each other, in several steps."""
    legacy = {name: _legacy_precision(name) for name in LEGACY_PRECISIONS}
    values = {setting: C._get_fp32_precision_getter(*setting) for setting in PRECISIONS}

    def restore_values() -> None:
        for setting, value in values.items():
            if C._get_fp32_precision_getter(*setting) != value:
                C._set_fp32_precision_setter(*setting, value)

    def restore() -> None:
        restore_values()
        for name, value in legacy.items():
            if value is not None and _legacy_precision(name) != value:
                getattr(C, f"_set_{name}")(value)
                restore_values()

    return restore


def _precision_setting() -> Setting:
    setters = [getattr(C, f"_set_{name}") for name in LEGACY_PRECISIONS]
    getters = [getattr(C, f"_get_{name}") for name in LEGACY_PRECISIONS]
    return Setting((*setters, C._set_fp32_precision_setter), (*getters, C._get_fp32_precision_getter), _keep_precision)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        (C._set_default_dtype, C._set_default_tensor_type),
        (torch.get_default_dtype,),
        _keep_default_dtype,
        decisive=True,
    ),
    Setting((torch.set_default_device,), (torch.get_default_device,), _keep_device),
    Setting(
        (C._set_deterministic_algorithms,),
        (C._get_deterministic_algorithms, C._get_deterministic_algorithms_warn_only),
        _keep_determinism,
        decisive=True,
    ),
    *_settings_named("deterministic_fill_uninitialized_memory", decisive=True),
    *_setting_of_pair(C._set_check_sparse_tensor_invariants, C._check_sparse_tensor_invariants, decisive=True),
    Setting(
        (torch.set_anomaly_enabled,),
        (torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled),
        _keep_anomaly,
        decisive=True,
        answers=lambda mode, check_nan=True: (mode, check_nan),
    ),
    Setting((torch.set_flush_denormal,), (), lambda: partial(torch.set_flush_denormal, flushes_denormals())),
    Setting(
        (torch.set_num_interop_threads,),
        (torch.get_num_interop_threads,),
        lambda: lambda: None,
        answers=lambda threads: (threads,),
    ),
    Setting((set_saved_tensors_hooks, unset_saved_tensors_hooks), (), keep_saved_tensors_hooks),
    *_setting_of_pair(torch.set_num_threads, torch.get_num_threads),
    *_setting_of_pair(C._set_multithreading_enabled, C._is_multithreading_enabled),
    *_setting_of_pair(getattr(C, "_set_view_replay_enabled", None), getattr(C, "_is_view_replay_enabled", None)),
    _precision_setting(),
    *(setting for name in VALUED for setting in _settings_named(name)),
    *(
        setting
        for name in ATTENTION
        for setting in _attention_setting(f"_set_sdp_use_{name}", f"_get_{name}_sdp_enabled")
    ),
    *_attention_setting("_set_sdp_priority_order", "_get_sdp_priority_order"),
)
SETTERS: dict[Callable[..., Any], Setting] = {setter: each for each in SETTINGS for setter in each.setters}
GETTERS: dict[Callable[..., Any], Setting] = {getter: each for each in SETTINGS for getter in each.getters}


def setting_of(bsym: BoundSymbol) -> Setting | None:
    """Return the setting that a bound symbol changes, or None."""
    return SETTERS.get(bsym.symbol.target) if bsym.ordered else None


def changes_later_results(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes the results of later bound symbols."""
    setting = setting_of(bsym)
    return setting is not None and setting.decisive


def chooses_attention(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes which operations attention consists of."""
    setting = setting_of(bsym)
    return setting is not None and setting.chooses_attention


def device_contexts() -> dict[int, DeviceContext]:
    """Return the torch function modes for a default device, by position; the last one is in effect."""
    modes = (torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack()))
    return {index: mode for index, mode in enumerate(modes) if isinstance(mode, DeviceContext)}


def with_default_device(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keywords of a call, with the default device if it determines where the call makes a tensor."""
    contexts = device_contexts() if torch._C._len_torch_function_stack() else None
    if not contexts or kwargs.get("device") is not None or function not in _device_constructors():
        return kwargs
    return {**kwargs, "device": contexts[max(contexts)].device}


def settings_of(bsyms: Iterable[BoundSymbol]) -> tuple[Setting, ...]:
    """Return the settings that bound symbols change, without duplicates."""
    settings = {id(setting): setting for bsym in bsyms if (setting := setting_of(bsym)) is not None}
    return tuple(settings.values())


def settings_in(text: str) -> tuple[Setting, ...]:
    """Return the settings whose setters the text of a program names."""
    return tuple(setting for setting in SETTINGS if any(setter.__name__ in text for setter in setting.setters))
