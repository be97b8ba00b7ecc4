"""Convert configs of timm's models for the classes of transformers that wrap these models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import PretrainedConfig

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import UnknownArchitecture
from thunder_core.foundation.similar_names import nearest
from thunder_core.workflow.models.loading.load_errors import library_import, loading_errors, require_package

TIMM = "timm"
WRAPPER = "timm_wrapper"  # the `model_type` of these classes
CLASSIFIER, FEATURES = "TimmWrapperForImageClassification", "TimmWrapperModel"


def is_timm_config(content: Mapping[str, Any]) -> bool:
    """Whether the content of a config describes a timm model: it names an architecture and no family."""
    return "model_type" not in content and isinstance(content.get("architecture"), str)


def timm_config(what: Path | str, content: Mapping[str, Any]) -> PretrainedConfig:
    """Return the transformers config for the `content` of a timm config, with timm's facts about the architecture.

    `what` is the model in error messages. Raises `PackageMissing` without timm, and `UnknownArchitecture` for an
    architecture that the installed timm does not have.
    """
    require_timm(what)
    name = str(content["architecture"])
    with library_import(what, TIMM):
        library: Any = plugins.import_object(TIMM)
    if not library.is_model(name):
        near = nearest(name, library.list_models())
        raise UnknownArchitecture(
            f"{what} names the architecture {name!r:.80}, which timm {library.__version__} does not have",
            fix=f"{f'did you mean {near[0]}? ' if near else ''}`timm.list_models()` lists the architectures",
        )
    pretrained_config = library.get_pretrained_cfg(name)
    facts = (
        {}
        if pretrained_config is None
        else {"input_size": list(pretrained_config.input_size), "num_classes": pretrained_config.num_classes}
    )
    stored_config = content.get("pretrained_cfg")
    classes = content.get("num_classes", facts.get("num_classes", 1000))
    settings = {**facts, **(stored_config if isinstance(stored_config, Mapping) else {})}
    arguments = dict(content.get("model_args") or {})
    arguments.pop("num_classes", None)  # transformers passes the number of classes, too
    changed = {"num_classes": classes, "pretrained_cfg": settings, "model_args": arguments or None}
    with loading_errors(what, "is not a valid config of timm"):
        kind: Any = transformers.TimmWrapperConfig
        config: PretrainedConfig = kind.from_dict({**content, **changed})
        config.num_channels = arguments.get("in_chans", settings.get("input_size", (3,))[0])
    config.architectures = [CLASSIFIER if classes else FEATURES]
    return config


def require_timm(what: Path | str) -> None:
    """Raise `PackageMissing` if timm is not installed."""
    require_package(f"{what} is a model of timm", TIMM)
