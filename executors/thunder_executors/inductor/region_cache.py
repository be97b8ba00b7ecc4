"""The cache of compiled regions: each region is built by Inductor once for all processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import RLock

import torch

from thunder_core.backend.cache import Entry, Key, Store
from thunder_core.backend.fusion.fuse import Fused, Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import Region
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import OutOfDisk

# Imported at its first use: Inductor takes seconds to import.
BUILD = "thunder_executors.inductor.build:build"
BUILD_FOR_GPU = "thunder_executors.inductor.gpu:build"
Result = MachineCode | Refusal
Build = Callable[[Sequence[Region]], Sequence[Result]]

BUILDING = RLock()  # held while Inductor writes code, because it is patched for all threads
os.register_at_fork(after_in_child=BUILDING._at_fork_reinit)  # type: ignore[attr-defined]

TEXT, LIBRARY, NEEDS, REFUSAL = "region.py", "kernels.so", "needs.json", "refusal.txt"
CONDITIONS, CHOICE = "conditions.json", "choice.txt"


def load_or_build(regions: Sequence[Region], machine: Mapping[str, str], builder: str) -> list[Fused | Refusal]:
    """Return the code or the refusal of each region, from the cache or built.

    `machine` has the facts of the cache key besides the region. `builder` is the path of the function that builds
    regions, as `module:name`.
    """
    store = Store()
    keys = {region.digest: key_of(region, machine) for region in regions}
    entries = {digest: store.get(key) for digest, key in keys.items()}
    results = {digest: read(entry) for digest, entry in entries.items() if entry is not None}
    missing = [region for region in regions if region.digest not in results]
    results |= _build(store, missing, keys, builder) if missing else {}
    return [_fused_result(results[region.digest]) for region in regions]


def key_of(region: Region, machine: Mapping[str, str]) -> Key:
    """Return the key of a region's machine code: everything that the code depends on.

    With deterministic algorithms, Inductor adds to elements of a tensor in a fixed order, or its code is refused.
    """
    settings = {"algorithms": "deterministic"} if torch.are_deterministic_algorithms_enabled() else {}
    return Key("inductor", {"region": region.digest, "executor": version(), **settings, **machine})


@cache
def version() -> str:
    """Return the digest of this executor's own source, so that a change of the source rebuilds every entry."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def label_of(region: Region) -> str:
    """Return a short description of a region."""
    shapes = sorted({proxy.described for proxy in region.outputs}, key=len)
    return f"{len(region.operations)} operations to {', '.join(shapes)}"


def read(entry: Entry) -> Result:
    """Return the machine code or the refusal in an entry of the cache."""
    if REFUSAL in entry.contents:
        return Refusal(entry.read(REFUSAL).decode(), lasting=True)
    needs = tuple(json.loads(entry.read(NEEDS)))
    conditions = tuple(json.loads(entry.read(CONDITIONS))) if CONDITIONS in entry.contents else ()
    choice = entry.contents.get(CHOICE, b"").decode()
    return MachineCode(entry.read(TEXT).decode(), entry.contents.get(LIBRARY, b""), needs, conditions, choice)


def _build(store: Store, regions: Sequence[Region], keys: Mapping[str, Key], builder: str) -> dict[str, Result]:
    with BUILDING:
        build: Build = plugins.import_object(builder)  # type: ignore[assignment]
        results = dict(zip((region.digest for region in regions), build(regions), strict=True))
    for region in regions:
        result = results[region.digest]
        if isinstance(result, MachineCode) or result.lasting:
            with suppress(OutOfDisk):  # the result is available even if it is not cached
                store.get_or_build(keys[region.digest], _writer(result), label_of(region))
    return results


def _writer(result: Result) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name, content in _files(result).items():
            (folder / name).write_bytes(content)

    return write


def _files(result: Result) -> dict[str, bytes]:
    if isinstance(result, Refusal):
        return {REFUSAL: result.reason.encode()}
    files = {TEXT: result.text.encode(), NEEDS: json.dumps(result.needs).encode()}
    files |= {CONDITIONS: json.dumps(result.conditions).encode()} if result.conditions else {}
    files |= {CHOICE: result.choice.encode()} if result.choice else {}
    return files | ({LIBRARY: result.library} if result.library else {})


def _fused_result(result: Result) -> Fused | Refusal:
    return result if isinstance(result, Refusal) else Fused(result.function, True, result.conditions)
