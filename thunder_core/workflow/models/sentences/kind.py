"""Models of sentence-transformers: a transformer and the stages after it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from transformers import PretrainedConfig

from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.inputs.modality import main_inputs
from thunder_core.workflow.models.inputs.transformers_inputs import transformers_inputs
from thunder_core.workflow.models.kinds.kind import ModelKind
from thunder_core.workflow.models.loading.config import read_transformers_config
from thunder_core.workflow.models.loading.model_folder import ModelFolder
from thunder_core.workflow.models.loading.plan import LoadingPlan, StoredModel
from thunder_core.workflow.models.loading.read_weights import read_weights_of
from thunder_core.workflow.models.request.names import BASE_TASK, SENTENCE_TASK, is_sentence_task
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.sentences.folder import has_stages
from thunder_core.workflow.models.sentences.loading import with_stages, write_stages
from thunder_core.workflow.models.sentences.transformer import (
    is_sentence_config,
    random_model,
    require_pairs,
    transformer_class,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

POOLER = "pooler"  # the layer of a transformer that sentence embeddings do not use


def is_sentence_folder(folder: ModelFolder) -> bool:
    """Whether a folder has stages, and the user does not name a task of the transformer alone."""
    return has_stages(folder.root) and (folder.task is None or is_sentence_task(folder.task))


def read_sentence_config(folder: ModelFolder) -> PretrainedConfig:
    """Return the config of the transformer in a folder, with the stages added to the config."""
    config = read_transformers_config(dataclasses.replace(folder, task=BASE_TASK))
    write_stages(config, folder.root)
    return config


def read_sentence_model(
    plan: LoadingPlan, origin: FolderOrigin, request: ModelRequest, not_needed: tuple[str, ...]
) -> StoredModel:
    """Load the transformer and the stages of a folder; raise `BadModelFolder` if their weights do not fit."""
    plan = dataclasses.replace(plan, names_task=True)  # so that the unused head may be missing
    kind = transformer_class(plan.config)
    transformer, caveats, notes = read_weights_of(kind, plan, origin, request, (*not_needed, POOLER))
    model = with_stages(transformer, plan.config, origin.named)
    return StoredModel(cast("PreTrainedModel", model), caveats, notes)


SENTENCES = ModelKind(
    library="sentence-transformers",
    has_folder=is_sentence_folder,
    read_config=read_sentence_config,
    has_config=is_sentence_config,
    find_task=lambda name, config: (SENTENCE_TASK, None),
    build=lambda task, config, dtype, trust_remote_code: random_model(config, dtype),
    read=read_sentence_model,
    main_inputs=main_inputs,
    example_inputs=transformers_inputs,
    require_loss=require_pairs,
)
