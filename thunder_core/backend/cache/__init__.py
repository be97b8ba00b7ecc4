"""Compiled kernels on disk, shared by all processes: found by their source and target, verified, or built.

A `Key` names everything that a kernel depends on. A `Store` is a folder of entries. An `Entry` is a set of files whose
digests were verified. This package does not import torch.
"""

from thunder_core.backend.cache.built_for import record_model
from thunder_core.backend.cache.entry import Entry
from thunder_core.backend.cache.explanation import KeyDifference, MissExplanation
from thunder_core.backend.cache.folders import cache_folder
from thunder_core.backend.cache.key import REGION, Key
from thunder_core.backend.cache.prune import Freed
from thunder_core.backend.cache.record import ModelRecord, Record, by_models
from thunder_core.backend.cache.store import Store

__all__ = [
    "REGION",
    "Entry",
    "Freed",
    "Key",
    "KeyDifference",
    "MissExplanation",
    "ModelRecord",
    "Record",
    "Store",
    "by_models",
    "cache_folder",
    "record_model",
]
