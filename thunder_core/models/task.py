"""Tasks: what a model is loaded for, and the Auto class of the transformers library that loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto as auto

from thunder_core.errors import BadOption
from thunder_core.plugins import unknown_name

BASE_TASK = "feature-extraction"
# Tasks whose models give logits over a vocabulary for each position.
LANGUAGE_TASKS = frozenset({"causal-lm", "masked-lm", "seq2seq-lm", "speech-seq2seq", "image-text-to-text"})

# An architecture that is listed under several tasks belongs to the first of them here.
TASKS: dict[str, tuple[type, Mapping[str, str | Sequence[str]]]] = {
    "image-text-to-text": (auto.AutoModelForImageTextToText, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
    "causal-lm": (auto.AutoModelForCausalLM, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    "seq2seq-lm": (auto.AutoModelForSeq2SeqLM, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    "masked-lm": (auto.AutoModelForMaskedLM, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    "sequence-classification": (
        auto.AutoModelForSequenceClassification,
        auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ),
    "token-classification": (
        auto.AutoModelForTokenClassification,
        auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    ),
    "question-answering": (auto.AutoModelForQuestionAnswering, auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES),
    "multiple-choice": (auto.AutoModelForMultipleChoice, auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES),
    "next-sentence-prediction": (
        auto.AutoModelForNextSentencePrediction,
        auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
    ),
    "image-classification": (auto.AutoModelForImageClassification, auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    "audio-classification": (auto.AutoModelForAudioClassification, auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES),
    "ctc": (auto.AutoModelForCTC, auto.MODEL_FOR_CTC_MAPPING_NAMES),
    "speech-seq2seq": (auto.AutoModelForSpeechSeq2Seq, auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES),
    BASE_TASK: (auto.AutoModel, auto.MODEL_MAPPING_NAMES),
    "text-encoding": (auto.AutoModelForTextEncoding, auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES),
    "pretraining": (auto.AutoModelForPreTraining, auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES),
}


def parse_task(name: str) -> str:
    """The task of that name; raises `UnknownName`."""
    short = name.strip().lower().replace("_", "-")
    if short not in TASKS:
        raise unknown_name("task", name, TASKS)
    return short


def auto_class(task: str) -> type:
    """The Auto class of the transformers library that loads models for a task."""
    return TASKS[task][0]


def tasks_of(model_type: str) -> list[str]:
    """The tasks that the transformers library has a class for in a family."""
    return [task for task, (_, classes) in TASKS.items() if model_type in classes]


def deduce_task(config: PretrainedConfig) -> tuple[str, str | None]:
    """The task of the architecture that a config names, and a note where it is only the base model's."""
    named = config.architectures or []
    if not named:
        return BASE_TASK, f"the config names no architecture, so the base model is loaded, for {BASE_TASK}"
    own = (t for t, (_, classes) in TASKS.items() if _names(classes.get(config.model_type), named[0]))
    anywhere = (t for t, (_, classes) in TASKS.items() if any(_names(value, named[0]) for value in classes.values()))
    task = next(own, None) or next(anywhere, None)
    if task is not None:
        return task, None
    return BASE_TASK, f"{named[0]} belongs to no task that is known, so its base model is loaded, for {BASE_TASK}"


def require_task(task: str, config: PretrainedConfig) -> None:
    """Raise `BadOption` where the transformers library has no class of this family for the task."""
    known = tasks_of(config.model_type)
    if task not in known and config.model_type in TASKS[BASE_TASK][1]:
        raise BadOption(
            f"there is no model of the family {config.model_type!r} for the task {task!r}",
            fix=f"leave --task out, or use one of: {', '.join(known)}",
        )


def _names(listed: str | Sequence[str] | None, architecture: str) -> bool:
    return architecture == listed or (not isinstance(listed, str) and architecture in (listed or ()))
