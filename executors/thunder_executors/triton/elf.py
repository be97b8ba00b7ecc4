"""Read the facts of a cubin, NVIDIA's ELF file, that a launch depends on.

The layout of ELF is defined by the System V ABI; the layout of `.nv.info` (records of format, attribute, size, value)
is NVIDIA's, as `cuobjdump -elf` prints it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
RECORD = struct.Struct("<BBH")
MAGIC, CUDA, NO_DATA = b"\x7fELF", 190, 8
SIZED, PARAMETER, REQUIRED_THREADS = 0x04, 0x17, 0x10  # a record with a value; EIATTR_KPARAM_INFO; EIATTR_REQNTID
FRAME = 0x11  # EIATTR_FRAME_SIZE: the bytes of local memory of a function


def architecture_of(image: bytes) -> str | None:
    """Return the architecture of the file, such as `sm_90`; None if it is not an ELF file of NVIDIA."""
    if len(image) < HEADER.size or not image.startswith(MAGIC):
        return None
    _, _, machine, _, _, _, _, flags, *_ = HEADER.unpack_from(image)
    if machine != CUDA:
        return None
    # Since ABI version 8 (CUDA 13), the architecture is the second byte of the flags; before, the first.
    return f"sm_{(flags >> 8) & 0xFF if image[8] >= 8 else flags & 0xFF}"


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    _, _, _, _, _, _, offset, _, _, _, _, size, count, names_at = HEADER.unpack_from(image)
    sections = [SECTION.unpack_from(image, offset + number * size) for number in range(count)]
    names = image[sections[names_at][4] :]
    for name, kind, _, _, start, length, *_ in sections:
        text = names[name : names.index(b"\0", name)].decode()
        yield text, b"" if kind == NO_DATA else image[start : start + length]


def _records(image: bytes, entry: str = "") -> Iterator[tuple[int, bytes]]:
    """Yield the records of a kernel, or of the whole file without a kernel."""
    data = dict(_sections(image)).get(f".nv.info.{entry}".rstrip("."), b"")
    at = 0
    while at < len(data):
        form, attribute, size = RECORD.unpack_from(data, at)
        at += RECORD.size
        if form == SIZED:
            yield attribute, data[at : at + size]
            at += size


def parameter_sizes(image: bytes, entry: str) -> list[int]:
    """Return the bytes of each parameter of a kernel, in order."""
    sizes: dict[int, int] = {}
    for attribute, value in _records(image, entry):
        if attribute == PARAMETER:
            _, parameter, shape = struct.unpack("<III", value)
            sizes[parameter & 0xFFFF] = shape >> 18
    return [sizes[number] for number in sorted(sizes)]


def required_threads(image: bytes, entry: str) -> int | None:
    """Return the number of threads that a block of the kernel must have; None if the file does not require a number."""
    records = _records(image, entry)
    blocks = [struct.unpack("<III", value) for attribute, value in records if attribute == REQUIRED_THREADS]
    return blocks[0][0] * blocks[0][1] * blocks[0][2] if blocks else None


def local_memory(image: bytes) -> int:
    """Return the largest number of bytes of local memory, such as for registers that do not suffice, of a function."""
    return max(
        (struct.unpack("<II", value)[1] for attribute, value in _records(image) if attribute == FRAME), default=0
    )
