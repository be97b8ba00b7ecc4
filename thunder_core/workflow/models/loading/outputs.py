"""The kind of a model's outputs (`dict`, `tuple` or `model`) is stored in its config and follows the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import PretrainedConfig

from thunder_core.tracing.library.model_output import has_outputs_set, set_outputs
from thunder_core.workflow.models.request.request import PLAIN_OUTPUTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OUTPUTS_ATTRIBUTE = "thunder_outputs"  # the attribute of a config with the kind of outputs


def request_outputs(config: PretrainedConfig, outputs: str | None) -> None:
    """Write the requested kind of outputs into a config; None does not change the config."""
    if outputs is None:
        return
    vars(config).pop(OUTPUTS_ATTRIBUTE, None)
    config.return_dict = True
    if outputs in PLAIN_OUTPUTS:
        setattr(config, OUTPUTS_ATTRIBUTE, outputs)
        leave_out_cache(config)
        leave_out_cache(config.get_text_config())


def leave_out_cache(config: PretrainedConfig) -> None:
    """Set `use_cache` to False in a config, because plain outputs cannot contain a KV cache object of transformers."""
    if getattr(config, "use_cache", False):
        config.use_cache = False


def follow_config(model: PreTrainedModel) -> None:
    """Make a model return the kind of outputs that its config names; raise ValueError for an unknown kind."""
    kind = getattr(model.config, OUTPUTS_ATTRIBUTE, None)
    if kind is not None and not has_outputs_set(model):
        set_outputs(model, str(kind))
