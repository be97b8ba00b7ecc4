"""Store the results of trials in the cache folder, so that a search continues where an earlier search stopped.

Each combination of model, machine and versions has a folder with a file for each candidate. Files are written
atomically, so several searches may use one folder. A file that cannot be read is ignored.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from pydantic import ValidationError as Malformed

from thunder_core.foundation.package import __version__
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.file import write_atomically
from thunder_core.foundation.storage.plain_file import read_plain
from thunder_core.workflow.benchmark.machine import machine_name
from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.recipe_search.stored_searches import searches_folder
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.validation.report_facts import ReportFacts

MAX_BYTES = 16 << 20  # the largest size of a file


class StoredTrial(ReportFacts):
    """The content of a file: the result of a candidate, and the candidate's name for people who read the file."""

    candidate: str
    facts: TrialFacts | None = None
    refusal: TrialRefusal | None = None


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "thunder": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class StoredTrials:
    """The stored results for one model, task, machine and set of versions."""

    folder: Path

    @classmethod
    def of(cls, facts: Mapping[str, object], device: torch.device) -> StoredTrials:
        """Return the stored results on this machine for the model and the task that the facts describe."""
        described = {**facts, **versions(), "machine": machine_name(device)}
        text = json.dumps(described, sort_keys=True, default=str)
        return cls(searches_folder() / digest_of(text.encode()))

    def get(self, candidate: Candidate) -> TrialFacts | TrialRefusal | None:
        """Return the stored result of a candidate, or None."""
        try:
            trial = StoredTrial.model_validate_json(read_plain(self._file(candidate), MAX_BYTES))
        except (OSError, Malformed):
            return None
        return trial.facts or trial.refusal

    def keep(self, candidate: Candidate, result: TrialFacts | TrialRefusal) -> None:
        """Write the result of a candidate, unless the result is a temporary refusal or writing fails (full disk)."""
        if isinstance(result, TrialRefusal) and result.is_temporary:
            return
        refusal, facts = (result, None) if isinstance(result, TrialRefusal) else (None, result)
        trial = StoredTrial(candidate=candidate.name, facts=facts, refusal=refusal)
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file(candidate), trial.model_dump_json(indent=1))

    def _file(self, candidate: Candidate) -> Path:
        text = json.dumps(asdict(candidate), sort_keys=True, default=str)
        return self.folder / f"{digest_of(text.encode())[:32]}.json"
