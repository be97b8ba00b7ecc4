"""Files of real samples, and a tokenizer, for the tests that read them."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = ("the", "cat", "saw", "a", "red", "dog")
FIRST_WORD = 3  # the token of the first of them; those before mean something special


def write_lines(file: Path, *samples: object) -> Path:
    """A .jsonl file."""
    file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return file


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words, in a model's folder."""
    vocabulary = {"<pad>": 0, "<unk>": 1, **{word: FIRST_WORD + number for number, word in enumerate(WORDS)}}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
