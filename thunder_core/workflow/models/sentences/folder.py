"""Read a model folder of the library sentence-transformers.

Its `modules.json` lists a transformer and the stages after the transformer, such as pooling, each with its folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from thunder_core.foundation.errors import BadModelFolder
from thunder_core.workflow.models.folder.folder import CONFIG_FILE, read_json, require_plain
from thunder_core.workflow.models.folder.foreign_formats import SINGLE_FILE

MODULES = "modules.json"
LIBRARY = "sentence_transformers."
TRANSFORMER = "Transformer"
STAGES = ("Pooling", "Normalize", "Dense", "LayerNorm", "Dropout")
TRANSFORMER_ALONE = "or optimize the transformer alone: --task feature-extraction"
# Possible names of the file with the transformer's settings; older releases name the file after the family.
SETTINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# The only supported values of the settings: with these, a transformer returns the embeddings of text tokens.
TASK, OUTPUT = "feature-extraction", "token_embeddings"
TEXT_MODALITY = {"method": "forward", "method_output_name": "last_hidden_state"}
# The settings that change how the model is built, which Thunder does not support.
BUILD_SETTINGS = ("model_args", "model_kwargs", "config_args", "config_kwargs")


@dataclass(frozen=True)
class SentenceStage:
    """A stage after the transformer: its class in sentence-transformers, its folder and its settings."""

    kind: str
    folder: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Return the stage as plain data."""
        return asdict(self)


def transformer_folder(root: Path) -> Path:
    """Return the transformer's folder inside a sentence-transformers folder; return any other folder unchanged."""
    entries = modules_of(root)
    if not entries or class_name(entries[0]) != TRANSFORMER:
        return root
    return root / path_of(root, entries[0])


def has_stages(root: Path) -> bool:
    """Whether a folder of sentence-transformers has more than a transformer."""
    return len(modules_of(root)) > 1


def modules_of(root: Path) -> list[Mapping[str, Any]]:
    """Return the entries of a folder's `modules.json`; empty without this file. Raises `BadModelFolder`."""
    file = root / MODULES
    if not file.is_file():
        return []
    try:
        require_plain(file)
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadModelFolder(f"{file} cannot be read as JSON: {error}", fix="download the file again") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "type" in entry for entry in entries):
        raise BadModelFolder(f"{file} does not list modules with their types", fix="download the file again")
    return entries


def files_of_modules(root: Path) -> tuple[str, ...]:
    """Return the relative paths of the files that a folder's modules may have.

    These are the settings of the transformer, and the config and the weights of each later stage.
    """
    paths = [path_of(root, entry) for entry in modules_of(root)]
    if not paths:
        return ()
    transformer, *stages = paths
    stage_files = [str(PurePosixPath(path) / name) for path in stages if path for name in (CONFIG_FILE, SINGLE_FILE)]
    return (*(str(PurePosixPath(transformer) / name) for name in SETTINGS), *stage_files)


def stages_of(root: Path) -> tuple[SentenceStage, ...]:
    """Return the stages after the transformer.

    Raises `BadModelFolder` for modules or settings that Thunder does not support.
    """
    first, *others = modules_of(root)
    for entry in (first, *others):
        allowed_kinds = (TRANSFORMER,) if entry is first else STAGES
        if class_name(entry) not in allowed_kinds or not str(entry["type"]).startswith(LIBRARY):
            raise BadModelFolder(
                f"{root / MODULES} lists {str(entry['type'])!r:.120}, which Thunder cannot optimize: the first "
                f"module must be a {TRANSFORMER} of sentence-transformers, and the others can be {', '.join(STAGES)}",
                fix=f"compile the model in Python: `thunder.compile(model)`; {TRANSFORMER_ALONE}",
            )
    require_plain_transformer(root / path_of(root, first))
    return tuple(stage_of(root, entry) for entry in others)


def stage_of(root: Path, entry: Mapping[str, Any]) -> SentenceStage:
    """Return the stage that an entry of `modules.json` describes; a stage without a config has no settings."""
    folder = path_of(root, entry)
    file = root / folder / CONFIG_FILE
    return SentenceStage(class_name(entry), folder, read_json(file) if folder and file.exists() else {})


def require_plain_transformer(folder: Path) -> None:
    """Raise `BadModelFolder` for a transformer whose settings Thunder does not support.

    These settings request other outputs than the embeddings of text tokens, or change how the model is built.
    """
    file = next((folder / name for name in SETTINGS if (folder / name).is_file()), None)
    settings = {} if file is None else read_json(file)
    is_unsupported = {
        "transformer_task": settings.get("transformer_task", TASK) != TASK,
        "module_output_name": settings.get("module_output_name", OUTPUT) != OUTPUT,
        "modality_config": not returns_token_embeddings(settings.get("modality_config")),
        **{name: changes_model(settings.get(name)) for name in BUILD_SETTINGS},
    }
    refused = [name for name, is_refused in is_unsupported.items() if is_refused]
    if refused:
        reason = (
            "Thunder does not support settings that change how the model is built"
            if refused[0] in BUILD_SETTINGS
            else "Thunder only supports transformers that return the embeddings of text tokens"
        )
        raise BadModelFolder(
            f"{file} sets {refused[0]} to {settings[refused[0]]!r:.120}, but {reason}",
            fix=f"compile the model in Python: `thunder.compile(model)`; {TRANSFORMER_ALONE}",
        )


def returns_token_embeddings(modalities: object) -> bool:
    """Whether a transformer with this `modality_config` returns the last hidden state for text."""
    return modalities is None or (isinstance(modalities, Mapping) and modalities.get("text") == TEXT_MODALITY)


def changes_model(changes: object) -> bool:
    """Whether the value of a setting among `BUILD_SETTINGS` changes how the model is built.

    The entry `trust_remote_code` does not count, because Thunder ignores it: only the user can trust remote code.
    """
    return bool(changes) and (not isinstance(changes, Mapping) or bool(set(changes) - {"trust_remote_code"}))


def class_name(entry: Mapping[str, Any]) -> str:
    """Return an entry's class name without the Python package path."""
    return str(entry["type"]).rpartition(".")[2]


def path_of(root: Path, entry: Mapping[str, Any]) -> str:
    """Return the folder of an entry, relative to the root; raise `BadModelFolder` for a folder outside of the root."""
    path = str(entry.get("path", ""))
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise BadModelFolder(
            f"{root / MODULES} names {path!r:.120}, which is outside of the folder", fix="correct the path in this file"
        )
    return path
