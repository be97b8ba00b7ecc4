"""Read the folder of a PEFT adapter, without PyTorch and without PEFT."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.workflow.models.folder.checkpoint import stored_names
from thunder_core.workflow.models.folder.folder import read_json
from thunder_core.workflow.models.folder.foreign_formats import ADAPTER

WEIGHTS, PICKLED_WEIGHTS = "adapter_model.safetensors", "adapter_model.bin"
# Thunder's names of tasks, by the names in the config of a PEFT adapter.
TASKS_OF_ADAPTERS = {
    "CAUSAL_LM": "causal-lm",
    "SEQ_CLS": "sequence-classification",
    "SEQ_2_SEQ_LM": "seq2seq-lm",
    "TOKEN_CLS": "token-classification",
    "QUESTION_ANS": "question-answering",
    "FEATURE_EXTRACTION": "feature-extraction",
}
# Types of adapters that change the inputs of layers; their weights cannot be added to the weights of layers.
INPUT_ADAPTERS = frozenset(
    {
        *(
            "PROMPT_TUNING",
            "MULTITASK_PROMPT_TUNING",
            "P_TUNING",
            "PREFIX_TUNING",
            "ADAPTION_PROMPT",
            "CPT",
            "CARTRIDGE",
        ),
        *("XLORA", "POLY", "TRAINABLE_TOKENS_PROMPT"),
    }
)


@dataclass(frozen=True)
class Adapter:
    """A PEFT adapter: its folder, its type, the name of its base model, its task, and the modules that it replaces.

    `replaced` are PEFT's `modules_to_save`: modules of which the adapter stores all weights.
    """

    folder: Path
    kind: str
    base: str
    task: str | None
    replaced: tuple[str, ...]

    @property
    def patterns(self) -> tuple[str, ...]:
        """The glob patterns for the names of the replaced modules."""
        return tuple(pattern for name in self.replaced for pattern in (name, f"*.{name}"))


def read_adapter(folder: Path) -> Adapter:
    """Return the adapter in a folder; raise `BadModelFolder` for a config that names no type or no base model."""
    file = folder / ADAPTER
    config = read_json(file)
    kind, base = config.get("peft_type"), config.get("base_model_name_or_path")
    if not isinstance(kind, str) or not kind:
        raise BadModelFolder(f"{file} of the adapter names no peft_type", fix="save the adapter again with PEFT")
    if kind in INPUT_ADAPTERS:
        raise BadModelFolder(
            f"{folder} holds an adapter of the type {kind}, whose weights cannot be added to the weights of layers",
            fix="load it with PEFT, and compile the PeftModel in Python: `thunder.compile(model)`",
        )
    if not isinstance(base, str) or not base:
        raise BadModelFolder(
            f"{file} of the adapter names no base model (base_model_name_or_path)",
            fix="write the folder or the Hub name of the base model into that file",
        )
    replaced = config.get("modules_to_save")
    names = tuple(map(str, replaced)) if isinstance(replaced, list) else ()
    return Adapter(folder, kind, base, TASKS_OF_ADAPTERS.get(str(config.get("task_type"))), names)


def require_adapter_weights(adapter: Adapter) -> None:
    """Raise `BadModelFolder` if the weights of an adapter are missing, pickled or damaged."""
    file = adapter.folder / WEIGHTS
    if file.is_file():
        stored_names(file)
        return
    pickled = (adapter.folder / PICKLED_WEIGHTS).is_file()
    raise BadModelFolder(
        f"{adapter.folder} has {f'its weights as a Python pickle ({PICKLED_WEIGHTS})' if pickled else f'no {WEIGHTS}'}",
        fix='if you trust the adapter, load it with PEFT and save it with `model.save_pretrained("NEW_FOLDER")`'
        if pickled
        else f"download {WEIGHTS} into this folder",
    )
