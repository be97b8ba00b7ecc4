"""Check, unpack and build the layers of checkpoints with quantized weights.
The transformers library loads the formats in docs/quantized_checkpoints.md with the library of each format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers import PretrainedConfig

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadModelFolder, PackageMissing
from thunder_core.tracing.ir.proxy import dtype_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The packages that transformers needs to load weights of a format.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "bitnet": ("accelerate",),
    "bitsandbytes": ("accelerate", "bitsandbytes"),
    "compressed-tensors": ("compressed-tensors",),
    "fp8": ("accelerate",),
    "torchao": ("torchao",),
}
REMOVE_OFFLOADING = "compressed_tensors.offload:remove_dispatch"
UNPACKED = (
    "compressed-tensors unpacks its weights for the CPU: the program computes with {} and keeps no packed weights"
)
BITNET = "bitnet"
QUANTIZERS = "transformers.quantizers.auto"


def settings_of(config: PretrainedConfig) -> Mapping[str, Any]:
    """Return the quantization settings of a config; empty for float weights."""
    settings = getattr(config, "quantization_config", None) or {}
    return settings if isinstance(settings, Mapping) else cast(Mapping[str, Any], settings.to_dict())


def require_packages(what: Path | str, config: PretrainedConfig) -> None:
    """Raise `PackageMissing` if a package that the format of the weights needs is not installed.

    Raises `BadModelFolder` for a format that the transformers library does not know, and would read as float weights.
    """
    method = str(settings_of(config).get("quant_method", "") or "")
    methods = {*PACKAGES, *_quantizers("AUTO_QUANTIZER_MAPPING")} if method else ()
    if method and method not in methods:
        raise BadModelFolder(
            f"{what} holds quantized weights in an unknown format ({method:.80})",
            fix="correct or remove the quantization_config of its config.json; known formats: "
            + ", ".join(sorted(methods)),
        )
    missing = [package for package in PACKAGES.get(method, ()) if not plugins.is_installed(package.replace("-", "_"))]
    if missing:
        raise PackageMissing(
            f"{what} has quantized weights ({method}), which need {' and '.join(missing)} to be loaded",
            fix=f"pip install {' '.join(missing)}; the extra `quantize` of this package installs all such packages",
        )


def unpack(model: PreTrainedModel) -> tuple[str, ...]:
    """Unpack the weights now instead of at the first call, and return a note about it."""
    if not hasattr(model, "ct_decompress_hook"):
        return ()
    quantizer: Any = model.hf_quantizer
    quantizer.compressor.decompress_model(model)
    remove_offloading = cast("Callable[[PreTrainedModel], object]", plugins.import_object(REMOVE_OFFLOADING))
    remove_offloading(model)  # the library wraps each module for offloading, although all modules are on the CPU
    del model.hf_quantizer  # the weights are plain tensors now
    return (UNPACKED.format(dtype_name(model.dtype)),)


def is_built_by_config(model: PreTrainedModel) -> bool:
    """Whether the layers of a model can be built from its config and plain tensors."""
    return settings_of(model.config).get("quant_method") in (None, BITNET)


def place_packed_layers(model: PreTrainedModel) -> None:
    """Replace the layers of a model by layers for packed weights; the new layers have no values."""
    settings = settings_of(model.config)
    if settings.get("quant_method") == BITNET:
        quantizer: Any = _quantizers("AutoHfQuantizer").from_config(dict(settings), pre_quantized=True)
        quantizer.preprocess_model(model)


def _quantizers(name: str) -> Any:
    """Import a name from transformers' module of quantizers, which is slow to import and rarely needed."""
    return plugins.import_object(f"{QUANTIZERS}:{name}")
