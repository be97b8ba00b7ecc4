"""Keys are equal if their fields are equal, and only then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_core.backend.cache import Key

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
# Texts that imitate the separators of a key.
SLY = st.text('",:{}[]\\=/ab\x00\n', max_size=6) | TEXT
CUTS = st.tuples(st.integers(0, 6), st.integers(0, 6))
FIELDS = st.dictionaries(SLY, SLY, max_size=4)


@given(SLY, FIELDS, SLY, FIELDS)
def test_two_keys_are_equal_only_if_all_their_parts_are_equal(executor, fields, other_executor, other_fields):
    same = (executor, fields) == (other_executor, other_fields)
    first_key, second_key = Key(executor, fields), Key(other_executor, other_fields)
    assert (first_key.digest == second_key.digest) is same
    assert (first_key == second_key) is same


@given(SLY, CUTS, CUTS)
def test_text_cannot_move_between_fields_without_changing_the_digest(text, first, second):
    def cut(low: int, high: int) -> Key:
        return Key(text[:low], {text[low:high]: text[high:]})

    first_key, second_key = cut(*sorted(first)), cut(*sorted(second))
    same = (first_key.executor, first_key.fields) == (second_key.executor, second_key.fields)
    assert (first_key.digest == second_key.digest) is same


@given(st.dictionaries(SLY, SLY, min_size=2, max_size=4))
def test_the_order_of_the_fields_means_nothing(fields):
    backwards = dict(reversed(fields.items()))
    assert Key("a", fields) == Key("a", backwards)
    assert Key("a", fields).digest == Key("a", backwards).digest
    assert len({Key("a", fields), Key("a", backwards)}) == 1


def test_changes_of_the_source_dict_do_not_change_a_key():
    fields = {"region": "a"}
    key = Key("inductor", fields)
    before = key.digest
    fields["region"] = "b"
    assert key.fields == {"region": "a"}
    assert Key("inductor", key.fields).digest == before


def test_the_digest_does_not_change_between_versions():
    """A change of this digest makes every entry of every user unreachable: raise SCHEMA_VERSION with it."""
    assert Key("inductor", {"region": "a", "compiler": "ü"}).canonical() == (
        '["thunder.kernel",2,"inductor",{"compiler":"ü","region":"a"}]'
    )
    assert Key("a").digest == "1eb77cbf50bab9fe398c054f635cbc80a20c0865f6c20be5222029a094169ca6"


@pytest.mark.parametrize("fields", [{"version": 1}, {1: "version"}, {"version": None}])
def test_only_texts_are_fields(fields):
    with pytest.raises(TypeError, match="must be strings"):
        Key("inductor", fields)


def test_key_that_cannot_be_encoded_is_refused():
    with pytest.raises(ValueError, match="surrogates"):
        Key("inductor", {"region": "\ud800"})


def test_a_key_is_no_place_for_a_program():
    with pytest.raises(ValueError, match="use digests of long strings"):
        Key("inductor", {"region": "x" * (1 << 20)})
