"""The reason why an entry was built: the field in which it differs from the nearest existing entry."""

from __future__ import annotations

from tests.cache.samples import Builder, key_of


def differences(why):
    return [str(difference) for difference in why.differences]


def test_the_field_that_changed_is_named(store, build):
    store.get_or_build(key_of("a", compiler="g++ 12.2"), build, "layer 0")
    now = key_of("a", compiler="g++ 13.1")
    expected = ["compiler: was g++ 12.2, is g++ 13.1"]
    before = store.why(now)
    assert (before.kept, differences(before)) == (False, expected)
    store.get_or_build(now, build, "layer 0")
    after = store.why(now)
    assert (after.kept, differences(after), after.label) == (True, expected, "layer 0")


def test_the_first_of_its_kind_has_nothing_to_be_compared_with(store, build):
    first = key_of("a")
    assert store.why(first).nearest is None
    store.get_or_build(first, build, "layer 0")
    store.get_or_build(key_of("a", compiler="later"), build, "layer 0")
    store.get_or_build(key_of("b"), build, "another")
    store.get_or_build(key_of("a", executor="triton"), build, "layer 0")
    assert store.why(first).nearest is None
    assert store.why(key_of("b")).nearest is None
    assert store.why(key_of("a", executor="triton")).nearest is None


def test_the_nearest_entry_has_the_fewest_differences(store, build):
    store.get_or_build(key_of("a", torch="2.12.0"), build)
    store.get_or_build(key_of("a", torch="2.12.0", compiler="g++ 11"), build)
    store.get_or_build(key_of("a", torch="2.11.0", compiler="g++ 11"), build)
    assert differences(store.why(key_of("a"))) == ["torch: was 2.12.0, is 2.13.0"]


def test_the_latest_of_several_near_entries_is_compared(store, build):
    store.get_or_build(key_of("a", torch="2.12.0"), build)
    store.get_or_build(key_of("a", torch="2.11.0"), build)
    assert differences(store.why(key_of("a"))) == ["torch: was 2.11.0, is 2.13.0"]


def test_fields_that_come_and_go(store, build):
    store.get_or_build(key_of("a", cpu="avx2"), build)
    assert differences(store.why(key_of("a", gpu="sm_90"))) == [
        "cpu: was avx2, is not named",
        "gpu: was not named, is sm_90",
    ]


def test_another_region_under_the_same_label(store, build):
    store.get_or_build(key_of("a"), build, "layer 0")
    assert differences(store.why(key_of("b"), "layer 0")) == ["region: was a, is b"]
    assert store.why(key_of("b")).nearest is None


def test_an_entry_records_that_it_replaced_a_damaged_entry(store, key):
    store.get_or_build(key, Builder())
    (store.folder / "entries" / key.digest / "kernel.so").unlink()
    store.get_or_build(key, Builder())
    assert store.why(key).replaced == "'kernel.so' is missing"
