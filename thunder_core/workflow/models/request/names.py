"""The names of dtypes, devices and tasks on the command line, in recipes and in manifests; PyTorch is not needed."""

from __future__ import annotations

import re

from thunder_core.foundation.errors import UnknownName
from thunder_core.foundation.similar_names import unknown_name

DTYPES = ("float32", "bfloat16", "float16", "float64")
ALIASES: dict[str, str] = {
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
}
DIFFUSERS_TASK = "diffusion"  # the task of a diffusers model
TIMM_PREFIX = "timm:"  # the prefix of a model that is named by its architecture in timm
DEVICE = re.compile(r"cpu|cuda(:\d+)?")

BASE_TASK = "feature-extraction"
SENTENCE_TASK = "sentence-similarity"  # the task of a folder of sentence-transformers
OTHER_TASK = "other"  # the task of a class that no table of the transformers library lists
# For each task, the Auto class of transformers that loads its models, and the table of transformers with the task's
# classes by family. An architecture that several of these tables list belongs to the first task here.
TASKS: dict[str, tuple[str, str]] = {
    "image-text-to-text": ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    "causal-lm": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "seq2seq-lm": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "masked-lm": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "sequence-classification": (
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    ),
    "token-classification": ("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"),
    "visual-question-answering": (
        "AutoModelForVisualQuestionAnswering",
        "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES",
    ),
    "document-question-answering": (
        "AutoModelForDocumentQuestionAnswering",
        "MODEL_FOR_DOCUMENT_QUESTION_ANSWERING_MAPPING_NAMES",
    ),
    "table-question-answering": (
        "AutoModelForTableQuestionAnswering",
        "MODEL_FOR_TABLE_QUESTION_ANSWERING_MAPPING_NAMES",
    ),
    "question-answering": ("AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"),
    "multiple-choice": ("AutoModelForMultipleChoice", "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES"),
    "next-sentence-prediction": (
        "AutoModelForNextSentencePrediction",
        "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES",
    ),
    "image-classification": ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"),
    "audio-classification": ("AutoModelForAudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES"),
    "video-classification": ("AutoModelForVideoClassification", "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES"),
    "audio-xvector": ("AutoModelForAudioXVector", "MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES"),
    "audio-frame-classification": (
        "AutoModelForAudioFrameClassification",
        "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING_NAMES",
    ),
    "object-detection": ("AutoModelForObjectDetection", "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES"),
    "zero-shot-object-detection": (
        "AutoModelForZeroShotObjectDetection",
        "MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES",
    ),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation", "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES"),
    "universal-segmentation": ("AutoModelForUniversalSegmentation", "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES"),
    "instance-segmentation": ("AutoModelForInstanceSegmentation", "MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING_NAMES"),
    "image-segmentation": ("AutoModelForImageSegmentation", "MODEL_FOR_IMAGE_SEGMENTATION_MAPPING_NAMES"),
    "depth-estimation": ("AutoModelForDepthEstimation", "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES"),
    "keypoint-detection": ("AutoModelForKeypointDetection", "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES"),
    "mask-generation": ("AutoModelForMaskGeneration", "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES"),
    "masked-image-modeling": ("AutoModelForMaskedImageModeling", "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES"),
    "image-to-image": ("AutoModelForImageToImage", "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES"),
    "zero-shot-image-classification": (
        "AutoModelForZeroShotImageClassification",
        "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    ),
    "time-series-prediction": ("AutoModelForTimeSeriesPrediction", "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES"),
    "ctc": ("AutoModelForCTC", "MODEL_FOR_CTC_MAPPING_NAMES"),
    "speech-seq2seq": ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
    "text-to-spectrogram": ("AutoModelForTextToSpectrogram", "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES"),
    "text-to-waveform": ("AutoModelForTextToWaveform", "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES"),
    BASE_TASK: ("AutoModel", "MODEL_MAPPING_NAMES"),
    "text-encoding": ("AutoModelForTextEncoding", "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES"),
    "pretraining": ("AutoModelForPreTraining", "MODEL_FOR_PRETRAINING_MAPPING_NAMES"),
}
# The task `generate` means the first of these tasks that the model's family has.
GENERATE = "generate"
GENERATING = ("causal-lm", "seq2seq-lm", "image-text-to-text")
# The names of tasks on the Hub and in transformers pipelines. A name means its first task with a class in the family.
HUB_TASKS: dict[str, tuple[str, ...]] = {
    GENERATE: GENERATING,
    "text-generation": ("causal-lm",),
    "text2text-generation": ("seq2seq-lm",),
    "summarization": ("seq2seq-lm",),
    "translation": ("seq2seq-lm",),
    "fill-mask": ("masked-lm",),
    "text-classification": ("sequence-classification",),
    "sentiment-analysis": ("sequence-classification",),
    "zero-shot-classification": ("sequence-classification",),
    "text-ranking": ("sequence-classification",),
    "ner": ("token-classification",),
    SENTENCE_TASK: (BASE_TASK,),
    "image-feature-extraction": (BASE_TASK,),
    "automatic-speech-recognition": ("speech-seq2seq", "ctc"),
    "image-to-text": ("image-text-to-text",),
    "text-to-audio": ("text-to-waveform", "text-to-spectrogram"),
    "text-to-speech": ("text-to-waveform", "text-to-spectrogram"),
}


def timm_architecture(model: str | None) -> str | None:
    """Return the architecture in a name such as `timm:resnet18`, or None for other names."""
    return model.removeprefix(TIMM_PREFIX) if model is not None and model.startswith(TIMM_PREFIX) else None


def spelled_dtype(name: str) -> str:
    """Return the full name of a dtype from a name or alias, with or without `torch.`; raise `UnknownName` otherwise."""
    short = name.strip().lower().removeprefix("torch.")
    full = ALIASES.get(short, short)
    if full not in DTYPES:
        raise unknown_name("dtype", name, DTYPES)
    return full


def spelled_device(name: str) -> str:
    """Return the name of a device in lower case; raise `UnknownName` for an invalid name."""
    short = name.strip().lower()
    if DEVICE.fullmatch(short) is None:
        raise UnknownName(f"there is no device called {name!r}", fix="use cpu, cuda, or cuda:N for GPU number N")
    return short


def is_generation(task: str | None) -> bool:
    """Whether a name is the task `generate`."""
    return task is not None and task.strip().lower() == GENERATE


def is_sentence_task(task: str | None) -> bool:
    """Whether a name is the task of sentence embeddings."""
    return task is not None and usual_spelling(task) == SENTENCE_TASK


def usual_spelling(task: str) -> str:
    """Return the name of a task in lower case, with hyphens."""
    return task.strip().lower().replace("_", "-")


def spelled_task(name: str) -> tuple[str, ...]:
    """Return the possible tasks for a name, the likeliest first; raise `UnknownName` for an unknown name."""
    short = usual_spelling(name)
    if short in TASKS or short in (OTHER_TASK, DIFFUSERS_TASK):
        return (short,)
    if short not in HUB_TASKS:
        raise unknown_name("task", name, (*TASKS, OTHER_TASK, *HUB_TASKS))
    return HUB_TASKS[short]
