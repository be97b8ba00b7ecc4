"""The text of generated tokens, returned in pieces during generation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from thunder_core.workflow.pipeline.generation.artifact_generation import TextPieces, Token

WORDS = ["it", "'", "s", "fine", ".", "do", "n", "t", "##ing", "!", ",", "v", "e", "we", "ve", "re"]
BYTES = [
    *"abc ",
    "\u0120it",
    "\u0120n",
    "'t",
    "\u0120.",
    "\u00e2",
    "\u0124",
    "\u00ac",
]  # the last three are a single character


def word_pieces(*, cleanup: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_pairs(*, cleanup: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(BYTES)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=cleanup)


TOKENIZERS = {
    "word pieces": word_pieces(cleanup=False),
    "word pieces, cleaned up": word_pieces(cleanup=True),
    "byte pairs": byte_pairs(cleanup=False),
    "byte pairs, cleaned up": byte_pairs(cleanup=True),
}


def pieces(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    text = TextPieces(tokenizer)
    return [*(text.after(Token(number, 0.0, False)) for number in ids), text.rest()]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 10), max_size=25))
def test_the_pieces_add_up_to_the_text(name: str, ids: list[int]) -> None:
    assert "".join(pieces(TOKENIZERS[name], ids)) == TOKENIZERS[name].decode(ids, skip_special_tokens=True)


def test_text_is_returned_while_tokens_come() -> None:
    ids = [WORDS.index(word) for word in ("it", "'", "s", "fine", ".", "it", "'", "s")]
    assert next(filter(None, pieces(TOKENIZERS["word pieces, cleaned up"], ids))) == "it"
    assert pieces(TOKENIZERS["byte pairs"], [0, 1, 4]) == ["a", "b", " it", ""]
