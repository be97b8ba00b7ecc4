"""Accidents with files of samples, settings and measurements."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.accidents.accident import Accident, World

Write = Callable[[Path], object]
QUICK = "--validate-inputs 1 --no-benchmark --without inductor"


def file(name: str, write: Write) -> Callable[[World], None]:
    """A file next to the working folder."""

    def arrange(world: World) -> None:
        write(world.path(name))

    return arrange


def content(text: str | bytes) -> Write:
    """Write text or bytes."""
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode())


def arrays(**named: np.ndarray) -> Write:
    """Write arrays as numpy does."""

    def write(path: Path) -> None:
        with path.open("wb") as opened:
            np.savez(opened, **named)

    return write


def lines(*rows: str) -> Write:
    """Write lines of JSON."""
    return content("".join(f"{row}\n" for row in rows))


IDS = '{"input_ids": [1, 2, 3]}'
LONG = np.ones((2, 4), dtype=np.int64)
SAMPLES: tuple[tuple[str, str, Write, str, str], ...] = (
    ("an empty list", "a.jsonl", lines('{"input_ids": []}'), "TH0221", "`input_ids` is empty"),
    ("an empty file", "a.jsonl", content(""), "TH0221", "has no samples"),
    ("blank lines", "a.jsonl", content("\n\n"), "TH0221", "has no samples"),
    ("no JSON", "a.jsonl", lines("input_ids: 1"), "TH0221", "line 1 is not JSON"),
    ("half a line", "a.jsonl", lines(IDS, '{"input_ids": [1'), "TH0221", "line 2 is not JSON"),
    ("a list in place of an object", "a.jsonl", lines("[1, 2]"), "TH0221", "is not an object"),
    ("an empty object", "a.jsonl", lines("{}"), "TH0221", "is not an object"),
    ("bytes that are no text", "a.jsonl", content(b"\xff\xfe\xff"), "TH0221", "is not UTF-8"),
    (
        "lists of other lengths",
        "a.jsonl",
        lines('{"input_ids": [[1], [1, 2]]}'),
        "TH0221",
        "is not an array of numbers",
    ),
    ("tokens as text", "a.jsonl", lines('{"input_ids": ["a"]}'), "TH0221", "is not an array of numbers"),
    ("tokens that are null", "a.jsonl", lines('{"input_ids": null}'), "TH0221", "is not an array of numbers"),
    ("a token that is a fraction", "a.jsonl", lines('{"input_ids": [1.5]}'), "TH0221", "tokens are lists of integers"),
    ("a token of many digits", "a.jsonl", lines('{"input_ids": [' + "9" * 30 + "]}"), "TH0221", "is not an array"),
    ("a token below zero", "a.jsonl", lines('{"input_ids": [-1]}'), "TH0221", "has the token -1"),
    ("a token beyond the vocabulary", "a.jsonl", lines('{"input_ids": [64]}'), "TH0221", "the vocabulary has 64"),
    ("one number", "a.jsonl", lines('{"input_ids": 3}'), "TH0221", "is one number"),
    ("truths", "a.jsonl", lines('{"input_ids": [true, false]}'), "TH0221", "tokens are lists of integers"),
    ("a batch of two in a line", "a.jsonl", lines('{"input_ids": [[1, 2], [3, 4]]}'), "TH0221", "has the shape [2, 2]"),
    ("three dimensions", "a.jsonl", lines('{"input_ids": [[[1]]]}'), "TH0221", "has the shape [1, 1, 1]"),
    ("a name that is not taken", "a.jsonl", lines('{"input_idz": [1]}'), "TH0221", "`input_idz`, which it does not"),
    (
        "other names in a line",
        "a.jsonl",
        lines(IDS, '{"input_ids": [1], "labels": [1]}'),
        "TH0221",
        "other names than the first sample",
    ),
    ("text without a tokenizer", "a.jsonl", lines('{"text": "hello"}'), "TH0221", "folder has no tokenizer"),
    ("an empty text", "a.jsonl", lines('{"text": ""}'), "TH0221", "is empty or not a string"),
    ("a text that is a number", "a.jsonl", lines('{"text": 3}'), "TH0221", "is empty or not a string"),
    ("a mask of another length", "a.jsonl", lines('{"input_ids": [1, 2], "attention_mask": [1]}'), "TH0221", "shape"),
    ("NaN in a mask", "a.jsonl", lines('{"input_ids": [1], "attention_mask": [NaN]}'), "TH0221", "holds NaN"),
    ("one dimension", "a.npz", arrays(input_ids=np.ones(4, dtype=np.int64)), "TH0221", "is one number"),
    ("no dimension", "a.npz", arrays(input_ids=np.int64(3)), "TH0221", "is one number"),
    ("rank 3", "a.npz", arrays(input_ids=np.ones((2, 3, 4), dtype=np.int64)), "TH0221", "has the shape [3, 4]"),
    ("floats", "a.npz", arrays(input_ids=np.ones((2, 4), dtype=np.float32)), "TH0221", "tokens are lists of integers"),
    ("complex numbers", "a.npz", arrays(input_ids=np.ones((2, 4), dtype=np.complex64)), "TH0221", "not numeric"),
    ("texts as arrays", "a.npz", arrays(input_ids=np.array([["a"]])), "TH0221", "which is not numeric"),
    ("pickled objects", "a.npz", arrays(input_ids=np.array([None], dtype=object)), "TH0221", "contains objects"),
    ("no arrays", "a.npz", arrays(), "TH0221", "has no samples"),
    ("no samples", "a.npz", arrays(input_ids=np.ones((0, 4), dtype=np.int64)), "TH0221", "has no samples"),
    ("batches of other sizes", "a.npz", arrays(input_ids=LONG, attention_mask=LONG[:1]), "TH0221", "different numbers"),
    ("another name", "a.npz", arrays(bogus=LONG), "TH0221", "`bogus`, which it does not accept"),
    ("no archive", "a.npz", content("hello"), "TH0221", "is not a file of numpy.savez"),
    ("an empty archive", "a.npz", content(""), "TH0221", "is not a file of numpy.savez"),
    ("no safetensors", "a.safetensors", content("hello world"), "TH0221", "is not a safetensors file"),
    ("empty safetensors", "a.safetensors", content(""), "TH0221", "is not a safetensors file"),
    ("another kind of file", "a.csv", content("1,2"), "TH0221", "has an unknown format"),
    ("a folder", "a.jsonl", Path.mkdir, "TH0221", "Is a directory"),
    ("a pipe", "a.jsonl", os.mkfifo, "TH0221", "it is a device or a pipe"),
    ("a link that leads nowhere", "a.jsonl", lambda path: path.symlink_to("nowhere"), "TH0221", "does not exist"),
    ("a link to itself", "a.jsonl", lambda path: path.symlink_to(path), "TH0221", "cannot be read"),
    ("a file that is not there", "a.jsonl", lambda path: None, "TH0221", "does not exist"),
)
ACCEPTED: tuple[tuple[str, str, Write], ...] = (
    ("a byte order mark", "a.jsonl", content(b"\xef\xbb\xbf" + (IDS + "\n").encode() * 2)),
    ("what a batched tokenizer gives", "a.jsonl", lines('{"input_ids": [[1, 2, 3]]}', '{"input_ids": [[3, 2, 1]]}')),
    ("the same with a mask", "a.jsonl", lines('{"input_ids": [[1, 2]], "attention_mask": [[1, 1]]}')),
)
SETTINGS: tuple[tuple[str, Write, str, str], ...] = (
    ("a key that does not exist", content("bogus = 1\n"), "TH0203", "there is no setting named 'bogus'"),
    ("no TOML", content("= 1"), "TH0203", "is not TOML"),
    ("no text", content(b"\xff"), "TH0203", "is not TOML"),
    ("a text for a number", content("batch = 'two'"), "TH0203", "batch is 'two'"),
    ("a truth for a number", content("batch = true"), "TH0203", "batch is True"),
    ("a number for a flag", content("train = 1"), "TH0203", "train is 1"),
    ("infinity", content("validate-budget = inf"), "TH0203", "a finite number"),
    ("no number", content("require-speedup = nan"), "TH0203", "a finite number"),
    ("a table for a name", content("[recipe]\nx = 1"), "TH0203", "recipe is"),
    ("an empty list of recipes", content("recipe = []"), "TH0203", "at least one name"),
    ("below the least", content("batch = 0"), "TH0203", "batch is 0"),
    ("many dots", content(".".join("a" * 400) + " = 1"), "TH0203", "dots, which is too many for a key"),
    ("a folder", Path.mkdir, "TH0203", "Is a directory"),
    ("a pipe", os.mkfifo, "TH0203", "it is a device or a pipe"),
    ("nothing", lambda path: None, "TH0203", "does not exist"),
    ("a link to a device", lambda path: path.symlink_to("/dev/zero"), "TH0203", "it is a device or a pipe"),
)
BASELINES: tuple[tuple[str, Write, str, str], ...] = (
    ("no JSON", content("hello"), "TH0201", "is not a measurement"),
    ("an empty file", content(""), "TH0201", "is not a measurement"),
    ("another JSON", content("{}"), "TH0201", "is not a measurement"),
    ("no text", content(b"\xff\xfe"), "TH0201", "it is not UTF-8 text"),
    ("a folder", Path.mkdir, "TH0201", "Is a directory"),
    ("a pipe", os.mkfifo, "TH0201", "it is a device or a pipe"),
    ("nothing", lambda path: None, "TH0201", "does not exist"),
    ("a link to a device", lambda path: path.symlink_to("/dev/zero"), "TH0201", "it is a device or a pipe"),
)
KEYS: tuple[tuple[str, Write, str, str], ...] = (
    ("no key", content("hello"), "TH0220", "is not a public key"),
    ("an empty file", content(""), "TH0220", "has no public key"),
    ("a private key", content("-----BEGIN PRIVATE KEY-----"), "TH0220", "is a private key"),
    ("a damaged key", content("-----BEGIN PUBLIC KEY-----\nAAAA"), "TH0220", "cannot be read as a public key"),
    ("a key of another kind", content("ssh-rsa AAAAB3NzaC1yc2E me\n"), "TH0220", ""),
    ("a folder", Path.mkdir, "TH0220", "Is a directory"),
    ("a pipe", os.mkfifo, "TH0220", "it is a device or a pipe"),
    ("nothing", lambda path: None, "TH0220", "does not exist"),
    ("a link to a device", lambda path: path.symlink_to("/dev/zero"), "TH0220", "it is a device or a pipe"),
)

DATA = (
    *(
        Accident(
            f"samples: {name}", f"optimize {{llama}} {QUICK} --input {{files}}/{where}", code, says, file(where, write)
        )
        for name, where, write, code, says in SAMPLES
    ),
    *(
        Accident(
            f"samples: {name}",
            f"optimize {{llama}} {QUICK} --input {{files}}/{where}",
            "",
            "Validation",
            file(where, write),
        )
        for name, where, write in ACCEPTED
    ),
    *(
        Accident(f"settings: {name}", "optimize {llama} --config {files}/a.toml", code, says, file("a.toml", write))
        for name, write, code, says in SETTINGS
    ),
    *(
        Accident(f"baseline: {name}", "bench {llama} --baseline {files}/a.json", code, says, file("a.json", write))
        for name, write, code, says in BASELINES
    ),
    *(
        Accident(f"key: {name}", "verify {artifact} --key {files}/key", code, says, file("key", write))
        for name, write, code, says in KEYS
    ),
)
