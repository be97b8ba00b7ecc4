"""The tasks of models, and the Auto classes of the transformers library that load models for a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto as auto

from thunder_core.foundation.errors import BadOption, CannotGenerate
from thunder_core.workflow.models.request.names import (
    BASE_TASK,
    GENERATING,
    OTHER_TASK,
    TASKS,
    is_generation,
    spelled_task,
)

# Tasks whose models give logits over a vocabulary for each position.
LANGUAGE_TASKS = frozenset({"causal-lm", "masked-lm", "seq2seq-lm", "speech-seq2seq", "image-text-to-text"})

Classes = Mapping[str, str | Sequence[str]]  # the classes of a task, by family


def auto_class(task: str) -> type:
    """Return the Auto class of the transformers library that loads models for a task."""
    kind: type = getattr(auto, TASKS[task][0])
    return kind


def loading_class(task: str, config: PretrainedConfig) -> Any:
    """Return the class that loads a model for a task: an Auto class, or the class that the config names."""
    return getattr(transformers, (config.architectures or [""])[0]) if task == OTHER_TASK else auto_class(task)


def from_config(task: str, config: PretrainedConfig, **options: Any) -> Any:
    """Build a model for a task from a config, with random weights; `options` are passed to `from_config`."""
    model_class = loading_class(task, config)
    if task == OTHER_TASK:  # the class is from transformers, so there is no remote code
        return model_class._from_config(config, dtype=options["dtype"])
    return model_class.from_config(config, **options)


def classes_of(task: str) -> Classes:
    """Return the transformers classes for a task, by family; empty for the task `other`."""
    classes: Classes = {} if task == OTHER_TASK else getattr(auto, TASKS[task][1])
    return classes


def is_unlisted_class(name: str, config: PretrainedConfig) -> bool:
    """Whether transformers has a model class with this name in the config's family that no task lists.

    Nothing is imported.
    """
    folder, _, module = vars(transformers).get("_class_to_module", {}).get(name, "").rpartition(".")
    is_of_family = module.startswith("modeling_") and f".{folder}." in type(config).__module__
    return is_of_family and not any(_lists(value, name) for task in TASKS for value in classes_of(task).values())


def tasks_of(model_type: str) -> list[str]:
    """Return the tasks for which the transformers library has a class in a family."""
    return [task for task in TASKS if model_type in classes_of(task)]


def is_class_of(model_type: str, architecture: str) -> bool:
    """Whether the tables of the transformers library list a class for a family."""
    return any(_lists(classes_of(task).get(model_type), architecture) for task in TASKS)


def deduce_task(config: PretrainedConfig) -> tuple[str, str | None]:
    """Return the task of the architecture in a config, and a note if the task is only a fallback."""
    named = config.architectures or []
    if not named:
        return BASE_TASK, f"the config names no architecture, so the base model is loaded, for {BASE_TASK}"
    own = (task for task in TASKS if _lists(classes_of(task).get(config.model_type), named[0]))
    anywhere = (task for task in TASKS if any(_lists(value, named[0]) for value in classes_of(task).values()))
    task = next(own, None) or next(anywhere, None)
    if task is not None:
        return task, None
    if is_unlisted_class(named[0], config):
        return OTHER_TASK, f"{named[0]} has no task that Thunder knows, so the class is optimized without a task"
    return BASE_TASK, f"{named[0]} has no known task, so its base model is loaded, for {BASE_TASK}"


def task_with_name(name: str | None, config: PretrainedConfig) -> tuple[str, str | None]:
    """Return the named task, or without a name the task of the architecture, with a note if the task is a fallback.

    Raises `UnknownName` for an unknown task, and `CannotGenerate` for `generate` if the model cannot generate.
    """
    if name is None:
        return deduce_task(config)
    return generating_task(config) if is_generation(name) else task_among(spelled_task(name), config), None


def generating_task(config: PretrainedConfig) -> str:
    """Return the task with which a model generates; raise `CannotGenerate` if it cannot generate.

    The task is the task of the architecture in the config. The config may also name the base model of a decoder. It may
    not name the base model of an encoder: transformers can load an encoder's weights as a decoder, but such a decoder
    was never trained.
    """
    task, _ = deduce_task(config)
    tasks = tasks_of(config.model_type)
    if task == BASE_TASK and "masked-lm" not in tasks:
        task = next((task_name for task_name in GENERATING if task_name in tasks), task)
    if task not in GENERATING:
        named = (config.architectures or [f"a model of the family {config.model_type!r}"])[0]
        raise CannotGenerate(
            f"{named} generates no text: its task is {task}",
            fix=f"use a model with one of the tasks {', '.join(GENERATING)}, or leave out `--task generate`",
        )
    return task


def task_among(tasks: Sequence[str], config: PretrainedConfig) -> str:
    """Return the first task with a transformers class for this family, or the first task if none has a class."""
    return next((task for task in tasks if config.model_type in classes_of(task)), tasks[0])


def require_task(task: str, config: PretrainedConfig) -> None:
    """Raise `BadOption` if the transformers library has no class of this family for the task."""
    tasks = tasks_of(config.model_type)
    if task == OTHER_TASK:
        named = (config.architectures or [""])[0]
        if is_unlisted_class(named, config):
            return
        raise BadOption(
            f"the task {OTHER_TASK!r} is for classes that no other task lists, and the config names {named or 'none'}",
            fix=f"leave out --task, or use one of: {', '.join(tasks)}",
        )
    if task not in tasks and config.model_type in classes_of(BASE_TASK):
        raise BadOption(
            f"there is no model of the family {config.model_type!r} for the task {task!r}",
            fix=f"leave out --task, or use one of: {', '.join(tasks)}",
        )


def _lists(listed: str | Sequence[str] | None, architecture: str) -> bool:
    return architecture == listed or (not isinstance(listed, str) and architecture in (listed or ()))
