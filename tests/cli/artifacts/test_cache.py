"""`thunder cache`: list, verify, prune and explain entries."""

from __future__ import annotations

import os
import time

import pytest
import torch

import thunder_core
from tests.cache.samples import Builder, key_of
from thunder_cli.commands.cache import complete_entry, complete_model
from thunder_core.backend.cache import Store, record_model


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(folder):
    """Three entries: two of one region, used 2 days ago and now, and one without a label, used 40 days ago."""
    store = Store()
    for days, key, label in (
        (40, key_of("b", executor="triton"), ""),
        (2, key_of("a", compiler="g++ 12.2"), "layers.0"),
        (0, key_of("a", compiler="g++ 13.1"), "layers.0"),
    ):
        store.get_or_build(key, Builder({"kernel.so": bytes(100_000)}), label)
        used = time.time() - days * 86_400
        os.utime(entry_of(store, key) / "manifest.json", (used, used))
    return store


def entry_of(store, key):
    return store.folder / "entries" / key.digest


def test_an_empty_cache(thunder, folder):
    for arguments in ([], ["list"], ["verify"]):
        done = thunder("cache", *arguments)
        assert (done.status, done.out, done.err) == (0, f"no entries in {folder}/kernels\n", "")
    assert thunder("cache", "clear").out == "freed 0 B: 0 entries\n"
    assert not folder.exists()


def test_entries_are_listed_with_sizes_and_ages(thunder, store):
    done = thunder("cache")
    lines = done.out.splitlines()
    assert (done.status, done.err) == (0, "")
    assert lines[0].split() == ["entry", "label", "executor", "size", "built", "used"]
    digest = key_of("a", compiler="g++ 13.1").digest[:12]
    assert lines[2].split() == [digest, "layers.0", "inductor", "98.1", "KiB", *["just", "now"] * 2]
    assert lines[3].endswith("2 days ago")
    assert lines[4].split()[1:3] == ["-", "triton"]
    assert lines[5] == f"3 entries, 294 KiB in {store.folder}"
    assert thunder("cache", "list").out == done.out


@pytest.mark.parametrize("columns", [80, 100])
def test_nothing_but_labels_gives_way_to_a_narrow_terminal(thunder, store, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    store.get_or_build(key_of("long"), Builder(), "a label " * 12)
    lines = thunder("cache").out.splitlines()
    assert max(map(len, lines[:-1])) <= columns
    assert all(any(part in line for line in lines) for part in ("inductor", "98.1 KiB", "just now", "40 days ago"))
    assert ("built" in lines[0]) is (columns == 100)


def test_the_list_as_json(thunder, store):
    data = thunder("cache", "--json").json
    assert (data["schema"], data["folder"]) == ("thunder.cache/1", str(store.folder))
    assert [entry["label"] for entry in data["entries"]] == ["layers.0", "layers.0", ""]
    assert data["size"] == sum(entry["size"] for entry in data["entries"])
    assert data["entries"][0]["fields"]["compiler"] == "g++ 13.1"
    assert data["entries"][0]["digest"] == key_of("a", compiler="g++ 13.1").digest


@pytest.fixture
def two_models(store):
    for number, model in enumerate(["Llama", "Llama", "Bert"]):
        with record_model(model):
            store.get_or_build(key_of(f"of {number}"), Builder({"kernel.so": bytes(200_000)}), "layers.1")
    return store


def test_models_are_listed_with_the_size_of_their_entries(thunder, two_models):
    lines = thunder("cache", "list", "--by-model").out.splitlines()
    assert [line.split()[:4] for line in (lines[0], *lines[2:5])] == [
        ["model", "entries", "size", "used"],
        ["Llama", "2", "392", "KiB"],
        ["-", "3", "294", "KiB"],
        ["Bert", "1", "196", "KiB"],
    ]
    models = thunder("cache", "list", "--by-model", "--json").json["models"]
    assert [(entry["model"], entry["entries"]) for entry in models] == [("Llama", 2), ("", 3), ("Bert", 1)]


def test_entries_of_one_model_are_removed(thunder, two_models):
    assert thunder("cache", "clear", "--model", "Llama", "--dry-run").out.splitlines()[-1].startswith("would free 39")
    assert len(two_models.entries()) == 6
    assert thunder("cache", "clear", "--model", "Llama").status == 0
    assert sorted({record.model for record in two_models.entries()}) == ["", "Bert"]
    done = thunder("cache", "clear", "--model", "Brt")
    assert (done.status, len(two_models.entries())) == (2, 4)
    assert "did you mean Bert?" in done.err


def test_models_that_completion_offers(two_models):
    assert complete_model("L") == ["Llama"]
    assert complete_model("") == ["Bert", "Llama"]


def test_model_of_an_entry_is_the_outermost_that_is_compiled(store):
    with record_model("Outer"), record_model("Inner"):
        store.get_or_build(key_of("nested"), Builder(), "layers.2")
    assert [record.model for record in store.entries() if record.label == "layers.2"] == ["Outer"]


def test_compiled_model_names_its_entries(store):
    class Net(torch.nn.Module):
        def forward(self, x):
            return (x.sin() * 3).cos() + x.exp()

    thunder_core.jit(Net(), executors=("inductor", "torch"))(torch.ones(3, 5))
    assert "Net" in {record.model.rpartition(".")[2] for record in store.entries()}


def test_verify_reports_that_all_entries_are_undamaged(thunder, store):
    assert thunder("cache", "verify").out == f"3 entries, 294 KiB, all intact in {store.folder}\n"
    data = thunder("cache", "verify", "--json").json
    assert (data["schema"], data["entries"]) == ("thunder.cache-verify/1", 3)


def damage(store):
    place = entry_of(store, key_of("a", compiler="g++ 12.2")) / "kernel.so"
    content = bytearray(place.read_bytes())
    content[5_000] ^= 1
    place.write_bytes(content)


def test_verify_finds_one_flipped_bit(thunder, store):
    damage(store)
    done = thunder("cache", "verify")
    assert done.status == 1
    assert "layers.0: 'kernel.so' does not match its digest in the manifest" in done.out
    assert "TH0101" in done.err
    assert "1 of 3 entries were damaged and have been removed" in done.err
    assert thunder("cache", "verify").status == 0
    assert len(store.entries()) == 2


def test_damage_as_json(thunder, store):
    damage(store)
    done = thunder("cache", "verify", "--json")
    assert (done.status, done.err, done.json["schema"]) == (1, "", "thunder.error/1")
    (row,) = done.json["error"]["rows"]
    assert row["damage"] == "'kernel.so' does not match its digest in the manifest"


def test_a_damaged_manifest_is_listed_as_damaged(thunder, store):
    (entry_of(store, key_of("a", compiler="g++ 13.1")) / "manifest.json").write_text("{}")
    done = thunder("cache")
    assert done.status == 0
    assert done.out.splitlines()[2].split()[1:3] == ["damaged", "97.7"]
    assert thunder("cache", "--json").json["entries"][0]["damage"] == "manifest.json is not a JSON manifest of Thunder"


def test_prune_by_age_and_size(thunder, store):
    assert (
        thunder("cache", "prune", "--max-age", "30d").out == "freed 98.1 KiB: 1 entry; 2 entries with 196 KiB remain\n"
    )
    done = thunder("cache", "prune", "--max-size", "100KiB", "--json")
    assert done.json["schema"] == "thunder.cache-freed/1"
    assert (done.json["freed"]["entries"], done.json["kept"]["entries"], done.json["dry_run"]) == (1, 1, False)
    assert [record["fields"]["compiler"] for record in done.json["removed"]] == ["g++ 12.2"]
    assert [record.fields["compiler"] for record in store.entries()] == ["g++ 13.1"]


def test_a_dry_run_lists_the_entries_to_remove(thunder, store):
    done = thunder("cache", "prune", "--max-age", "30d", "--dry-run")
    assert "triton" in done.out
    assert done.out.endswith("would free 98.1 KiB: 1 entry; 2 entries with 196 KiB remain\n")
    assert thunder("cache", "clear", "--dry-run", "--json").json["freed"]["entries"] == 3
    assert len(store.entries()) == 3


def test_prune_without_a_valid_limit_is_refused(thunder, store):
    done = thunder("cache", "prune")
    assert (done.status, done.out) == (2, "")
    assert "thunder cache clear" in done.err
    for option, value in (("--max-size", "2x"), ("--max-age", "30")):
        done = thunder("cache", "prune", option, value)
        assert (done.status, "TH0201" in done.err, value in done.err) == (2, True, True)
    assert len(store.entries()) == 3


def test_clear_reports_the_freed_space(thunder, store):
    assert thunder("cache", "clear").out == "freed 294 KiB: 3 entries\n"
    assert store.entries() == []


def test_why_names_the_field_that_differs(thunder, store):
    done = thunder("cache", "why")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[-1].split() == ["compiler", "g++", "12.2", "g++", "13.1"]
    digest = key_of("a", compiler="g++ 13.1").digest
    for wanted in ("layers.0", digest[:6], digest.upper()):
        assert thunder("cache", "why", wanted).out == done.out
    data = thunder("cache", "why", "--json").json
    assert data["schema"] == "thunder.cache-why/1"
    assert data["why"]["differences"] == [{"field": "compiler", "was": "g++ 12.2", "now": "g++ 13.1"}]


def test_why_of_the_first_entry(thunder, store):
    done = thunder("cache", "why", key_of("a", compiler="g++ 12.2").digest)
    assert "the cache had no earlier entry" in done.out
    damage(store)
    store.get_or_build(key_of("a", compiler="g++ 12.2"), Builder(), "layers.0")
    assert "because the entry was damaged: 'kernel.so' does not match its digest" in thunder("cache", "why").out


def test_why_of_an_unknown_entry_is_refused(thunder, store):
    done = thunder("cache", "why", "layer.0")
    assert (done.status, "TH0202" in done.err, "did you mean layers.0?" in done.err) == (2, True, True)
    store.clear()
    assert thunder("cache", "why").status == 2


def test_why_of_an_ambiguous_prefix_is_refused(thunder, store):
    for number in range(16):
        store.get_or_build(key_of(str(number)), Builder())
    digests = [record.digest for record in store.entries()]
    (shared, *_) = (digest[0] for digest in digests if sum(other[0] == digest[0] for other in digests) > 1)
    done = thunder("cache", "why", shared)
    assert (done.status, f"entries begin with {shared!r}" in done.err) == (2, True)


def test_a_folder_that_others_can_write_to(thunder, store):
    store.folder.chmod(0o777)
    for arguments in ([], ["verify"], ["clear"], ["why"], ["prune", "--max-size", "0"]):
        done = thunder("cache", *arguments)
        assert (done.status, "TH0216" in done.err, "chmod 700" in done.err) == (2, True, True)


def test_a_folder_that_cannot_be_read(thunder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "file"))
    done = thunder("cache", "--json")
    assert (done.status, done.json["error"]["code"]) == (2, "TH0216")


def test_an_entry_that_cannot_be_removed(thunder, store, monkeypatch):
    (store.folder / "building").rmdir()
    (store.folder / "building").write_text("")
    done = thunder("cache", "clear")
    assert (done.status, "TH0216" in done.err) == (2, True)
    assert "3 of 3 entries cannot be removed" in done.err


def test_entries_are_completed(store):
    digest = key_of("b", executor="triton").digest
    assert complete_entry(digest[:4]) == [(digest[:12], "")]
