"""Quantized MiniLM: the embeddings of fifty sentences keep their direction."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import thunder_core as thunder
from tests.test_real_weights import SENTENCES as FIRST_SENTENCES
from tests.test_real_weights import embed, minilm

SENTENCES = [
    *FIRST_SENTENCES,
    "The river flooded three villages last spring.",
    "Doctors advise their patients to walk more.",
    "How do I reset the password of my account?",
    "The museum is closed on Mondays.",
    "A spectre is haunting the old library.",
    "Rust is a systems programming language.",
    "The recipe needs two eggs and a pinch of salt.",
    "Light takes eight minutes from the sun to the earth.",
    "They signed the contract after a week of talks.",
    "My neighbour's dog barks at every cyclist.",
    "Penguins cannot fly, but they swim very well.",
    "The court rejected the appeal.",
    "Please send the invoice by the end of the month.",
    "An earthquake of magnitude six shook the coast.",
    "Children learn languages faster than adults.",
    "The bridge was built in 1894 and rebuilt in 1951.",
    "I have never been to the opera.",
    "Interest rates will stay where they are.",
    "Photosynthesis turns carbon dioxide into sugar.",
    "The goalkeeper saved two penalties.",
    "Her thesis is about medieval trade routes.",
    "Turn left at the second traffic light.",
    "The battery lasts about eleven hours.",
    "Snow is expected above eight hundred metres.",
    "He forgot his umbrella on the bus again.",
    "The new law protects whistleblowers.",
    "Mix the paint until it is smooth.",
    "Jupiter is the largest planet of the solar system.",
    "The orchestra tuned before the concert began.",
    "We moved the database to another region.",
    "Coffee prices have doubled within a year.",
    "A stitch in time saves nine.",
    "Is this seat taken?",
    "The vaccine was tested on thirty thousand volunteers.",
    "Sharks have existed longer than trees.",
    "The printer is out of paper.",
    "Nobody answered when she knocked.",
    "Gradient descent follows the steepest slope.",
    "The harvest was poor because of the drought.",
    "Good night, and see you tomorrow.",
]
COSINE = 0.999


@pytest.mark.filterwarnings("ignore::thunder_core.foundation.errors.DegradedWarning")  # a processor without VNNI
@pytest.mark.usefixtures("one_thread", "without_kernels")
def test_embeddings_in_8_bits_keep_their_direction() -> None:
    folder = minilm()
    tokens = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    model = AutoModel.from_pretrained(folder).eval()
    assert len(set(SENTENCES)) == 50
    with torch.no_grad():
        expected = embed(model(**inputs).last_hidden_state, inputs["attention_mask"])
        for recipe in ("int8-dynamic", "int8-weight-only"):
            compiled = thunder.compile(model, ["hf-bert", recipe])
            found = embed(compiled(**inputs).last_hidden_state, inputs["attention_mask"])
            cosines = torch.nn.functional.cosine_similarity(found.double(), expected.double())
            assert cosines.min() > COSINE, f"{recipe}: {SENTENCES[int(cosines.argmin())]}"
            assert cosines.min() < 1, f"{recipe} quantized nothing"
