"""The measured times of an operation with a kernel and with PyTorch's library, which are cached."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from thunder_core.backend.cache import REGION, Key, Store
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.parallel.choices import shared_choice
from thunder_core.foundation.errors import OutOfDisk
from thunder_core.tracing.extension.processor import allowed_vectors, processor_name
from thunder_core.tracing.extension.requirement import compiler_version, cxx_name

FILE = "times.json"
# Fields of keys that may differ between the ranks of a process group.
MACHINE_FIELDS = ("processor", "vectors", "threads", "compiler")
# A kernel is used only if its time is less than this fraction of the library's time: measurements vary by some percent.
TIME_MARGIN = 0.97
NOT_MEASURED = "it was not measured in the time that --tune allows"


@dataclass(frozen=True)
class KernelTimes:
    """The times of an operation with a kernel and with PyTorch's library, in the same unit.

    `agrees` states whether the kernel and the library compute the same values.
    """

    kernel: float
    library: float
    agrees: bool = True

    @property
    def is_kernel_better(self) -> bool:
        """Whether the kernel computes equal values and is faster by more than the variation of measurements."""
        return self.agrees and self.kernel < TIME_MARGIN * self.library

    @property
    def disagreement(self) -> str:
        """The words that follow the time of a kernel with other values than the library; empty if the values agree."""
        return "" if self.agrees else " with other values"


T = TypeVar("T", bound=KernelTimes)


def key_on_processor(name: str, region: str, source: str, **others: str) -> Key:
    """Return the key of a measurement on the CPU: the operation, the machine, and the code of the kernel and PyTorch.

    The machine is the processor, the vectors that PyTorch may use, the number of threads, and the C++ compiler, which
    compiles the kernel. `source` is the digest of the kernel's code, and `others` are more fields of the key.
    """
    machine = {
        "processor": processor_name(),
        "vectors": allowed_vectors(),
        "threads": str(torch.get_num_threads()),
        "compiler": compiler_version(cxx_name()),
        "torch": torch.__version__,
    }
    return Key(name, {REGION: region, "source": source, **machine, **others})


def cached_times(
    kind: type[T], key: Key, title: str, budget: TuningBudget, seconds: float, prepare: Callable[[], Callable[[], T]]
) -> T | None:
    """Return the cached times of an operation, or else measure and cache them; None without time for a measurement.

    A measurement takes up to `seconds`; nothing is measured if the budget has fewer seconds left. `prepare` does the
    work that is not measured, such as compiling the kernel, and returns the function that measures. If another process
    has measured the operation in the meantime, its times are returned. The ranks of a process group get the same
    result, so that all ranks have the same program, even if their processors differ.
    """
    own = partial(_own_choice, key, title, budget, seconds, prepare)
    text = shared_choice(name_for_ranks(key), own)
    return None if text is None else kind(**json.loads(text))


def name_for_ranks(key: Key) -> str:
    """Return the name of a measurement that is the same on ranks with different processors."""
    fields = {name: text for name, text in key.fields.items() if name not in MACHINE_FIELDS}
    return Key(key.executor, fields).digest


def _own_choice(
    key: Key, title: str, budget: TuningBudget, seconds: float, prepare: Callable[[], Callable[[], KernelTimes]]
) -> str | None:
    """Return times as JSON, from the cache or measured by this process; None if there is no time to measure."""
    store = Store()
    entry = store.get(key)
    if entry is None and seconds > budget.seconds_left:
        return None
    if entry is None:
        measure = prepare()
        with budget.spending():
            times = measure()
        try:
            entry = store.get_or_build(key, lambda folder: write(folder, times), f"the time of {title}")
        except OutOfDisk:  # the result is available even if it is not cached
            return to_json(times)
    return entry.read(FILE).decode()


def to_json(times: KernelTimes) -> str:
    """Return times as JSON."""
    return json.dumps(asdict(times))


def write(folder: Path, times: KernelTimes) -> None:
    """Write times into the folder of an entry."""
    (folder / FILE).write_text(to_json(times), encoding="utf-8")
