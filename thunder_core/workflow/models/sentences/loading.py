"""Load the stages of a folder of sentence-transformers: the modules that follow the transformer, such as pooling."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PretrainedConfig

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.tracing.library.sentences.model import KEY, SentenceModel, build_stage
from thunder_core.workflow.models.folder.checkpoint import stored_names
from thunder_core.workflow.models.folder.foreign_formats import PICKLED_FILES, SINGLE_FILE
from thunder_core.workflow.models.loading.load_errors import loading_errors
from thunder_core.workflow.models.loading.outputs import leave_out_cache
from thunder_core.workflow.models.sentences.folder import stages_of
from thunder_core.workflow.models.sentences.transformer import transformer_class


def write_stages(config: PretrainedConfig, root: Path) -> None:
    """Write the stages of a folder into the config of its transformer; raise `BadModelFolder` for unknown stages."""
    stages = [stage.as_data() for stage in stages_of(root)]
    for stage in stages:
        with loading_errors(root / stage["folder"], "has settings that are not valid"), torch.device("meta"):
            build_stage(stage)
    with loading_errors(root, "has a transformer for which transformers has no base model"):
        transformer_class(config)
    setattr(config, KEY, stages)
    leave_out_cache(config)
    leave_out_cache(config.get_text_config())


def stage_file(folder: Path, stage: dict[str, object]) -> Path | None:
    """Check the names in the weight file of a stage, and return the file; None for a stage without weights."""
    with torch.device("meta"):
        needed = set(build_stage(stage).state_dict())
    if not needed:
        return None
    file = folder / SINGLE_FILE
    if not file.is_file():
        pickled = next((name for name in PICKLED_FILES if (folder / name).is_file()), None)
        raise BadModelFolder(
            f"{folder} has {f'its weights as a Python pickle ({pickled})' if pickled else f'no {SINGLE_FILE}'}",
            fix='if you trust the model, convert it: `SentenceTransformer("MODEL").save_pretrained("NEW_MODEL")`'
            if pickled
            else "add the weights, or use --random-weights to build the model from its configs alone",
        )
    require_same_names(folder, needed, stored_names(file))
    return file


def require_same_names(folder: Path, needed: set[str], stored: set[str]) -> None:
    """Raise `BadModelFolder` if a file lacks a weight of a stage, or has others."""
    for fault, names in (("lacks the weights", needed - stored), ("has unknown weights:", stored - needed)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise BadModelFolder(
                f"{folder / SINGLE_FILE} {fault} {', '.join(sorted(names)[:3])}{more}",
                fix="use the config.json that was saved with these weights",
            )


def with_stages(transformer: nn.Module, config: PretrainedConfig, root: Path) -> SentenceModel:
    """Return a loaded transformer with the stages of its folder, in the transformer's dtype."""
    vars(transformer.config)[KEY] = getattr(config, KEY)
    model = SentenceModel(transformer)
    for stage, module in zip(stages_of(root), model.stages, strict=True):
        file = stage_file(root / stage.folder, stage.as_data())
        if file is not None:
            with loading_errors(file, "does not fit its config"):
                module.load_state_dict(load_file(file), assign=True)
                module.to(model.dtype).requires_grad_(requires_grad=True)
    return model
