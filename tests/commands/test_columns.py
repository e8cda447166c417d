"""Where an option names a value: inside JSON alike in all commands, and a name that no sample has is an error."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.archives import picture
from tests.commands.conftest import Inside
from tests.conftest import BIN, keys_in, make_tar
from tests.processes import on_terminal

ADVICE = "(a value inside JSON is json:class)"


@pytest.fixture
def inputs(inside: Inside, tmp_path: Path) -> None:
    """Make shard and table of six samples: a picture, and JSON with a class and a size."""
    members = []
    for number in range(6):
        content: dict[str, Any] = {"class": "ab"[number % 2], "size": [number, 2]}
        if number == 4:
            del content["class"]
        members += [(f"{number}.json", json.dumps(content).encode()), (f"{number}.png", picture("PNG", 3 + number, 4))]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    assert inside("tarindex", "-f", "json:class", "a.tar", "-o", "t.parquet").status == 0


WRONG = {  # name -> whether the field exists, and advice
    "jgp": "",
    "json:clas": "",
    "jgp:class": "",
    "json.class": f" {ADVICE}",
    "JSON.class": f" {ADVICE}".replace("json", "JSON"),
}
LINES = {
    "tar2tsv": ["tar2tsv", "--fill", "-", "-f"],
    "tar2tsv -c": ["tar2tsv", "-c", "2", "--fill", "-", "-f"],
    "tar2tsv --jsonl": ["tar2tsv", "--jsonl", "-c", "2", "--fill", "-", "-f"],
    "tarsort": ["tarsort", "--missing", "last", "--sort-key"],
    "tarsort -r": ["tarsort", "--missing", "first", "-r", "--sort-key"],
    "tarstat": ["tarstat", "--classes"],
    "tarsplit": ["tarsplit", "--parts", "x:0.5,y:0.5", "--group"],
}


@pytest.mark.parametrize("url", ["a.tar", "t.parquet"])
@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_no_sample_has_is_an_error(
    name: str, url: str, inside: Inside, inputs: None, tmp_path: Path
) -> None:
    before = sorted(os.listdir(tmp_path))
    for title, line in LINES.items():
        outputs = ["{part}.tar"] if title == "tarsplit" else ["o.tar", "o.parquet"] if "tarsort" in title else ["o"]
        for output in [] if title == "tarstat" else outputs:
            said = inside(*line, name, url, "-o", output).failure().splitlines()[-1]
            assert name in said and ("jpg" in said or "png" in said or "tarstat lists the fields" in said), said
            assert (ADVICE in said.replace("JSON.", "json.").replace("JSON:", "json:")) == bool(WRONG[name]), said
            assert sorted(os.listdir(tmp_path)) == before
    said = inside("tarstat", "--classes", name, url).failure().splitlines()[-1]
    assert said == f"tarstat: no sample had the field {name}{WRONG[name]}; the fields were: json png"


@pytest.mark.parametrize("name", WRONG)
def test_a_column_without_values_is_an_error(name: str, inside: Inside, inputs: None, tmp_path: Path) -> None:
    """In a table a misspelled value would be a column of nulls."""
    said = inside("tarindex", "-f", f"json:class {name}", "a.tar", "-o", "o.parquet").failure()
    lost = name.partition(":")[0] if name == "jgp:class" else name
    assert said == f"tarindex: no sample had the field {lost}{WRONG[name]}; the fields were: json png\n"
    assert not (tmp_path / "o.parquet").exists()


def test_messages_in_full(inside: Inside, inputs: None) -> None:
    for line, said in (
        (["tar2tsv", "-f", "json.class", "a.tar"], "a.tar: sample '0' has no value for 'json.class' " + ADVICE),
        (
            ["tar2tsv", "-f", "x=json.class", "a.tar"],
            "a.tar: sample '0' has no value for 'x'; its fields are: json png",
        ),
        (["tar2tsv", "-f", "json.class", "t.parquet"], "t.parquet: no sample has 'json.class' " + ADVICE),
        (["tar2tsv", "-f", "json.width", "a.tar"], "(a value inside JSON is json:width)"),
        (["tar2tsv", "-f", "png.width", "a.tar"], "(tarindex --facts makes a table with the column png.width); its f"),
        (["tar2tsv", "-f", "height('png')", "a.tar"], "(tarindex --facts makes a table with the column png.height)"),
        (["tar2tsv", "-f", "flac.rate", "a.tar"], "no value for 'flac.rate'; its fields are: json png"),
        (["tarsplit", "--by", "json.class", "-o", "{json.class}.tar", "a.tar"], f"has no json.class {ADVICE} (its f"),
        (["tarsort", "--sort-key", "json.class", "a.tar"], f"sample '0' has no json.class to sort by {ADVICE} (its f"),
        (["tardedup", "--equal", "json.class", "a.tar"], f"has no 'json.class' to compare {ADVICE}; its fields are"),
        (["tarcat", "-f", "json.class", "a.tar"], f"no sample had the field json.class {ADVICE}; the fields were"),
        (["tarfilter", "-S", "json.class == 'a'", "a.tar"], "a value inside JSON is field('json:class')"),
        (["tarfilter", "-S", "json:class == 'a'", "a.tar"], "a value inside JSON is field('json:class')"),
        (["tarfilter", "-S", "json.size > 3", "a.tar"], "a value inside JSON is field('json:size')"),
        (["tarfilter", "-S", "json['class'] == 'a'", "a.tar"], "a value inside JSON is field('json:class')"),
    ):
        done = inside(*line)
        assert done.status in (1, 2) and said in done.stderr.splitlines()[-1], done.stderr


def test_first_rows_that_lack_an_optional_value_are_written(inside: Inside, inputs: None) -> None:
    """A value that some sample among the first has is no error; a field that later ones have is one, as in tarcat."""
    line = ["tar2tsv", "--no-key", "--no-header", "--fill", "-", "-f"]
    for url in ("a.tar", "t.parquet"):
        assert inside(*line, "json:class", "-c", "5", url).output() == b"a\nb\na\nb\n-\n"
        assert inside(*line, "json:class;png", "-c", "0", url).output() == b""


def test_either_of_two_fields_in_all_functions(inside: Inside, inputs: None) -> None:
    for test in (
        "width('jpg;png') > 6",
        "height('webp;png') == 4 and width('png') > 6",
        "size('jpg;png') and key > '3'",
    ):
        for url in ("a.tar", "t.parquet"):
            assert keys_in(inside("tarfilter", "-S", test, url).output()) == ["4", "5"], test


def test_classes_inside_json(inside: Inside, inputs: None, tmp_path: Path) -> None:
    """The same from shards, from a table with the column, and from one without."""
    assert inside("tarindex", "a.tar", "-o", "n.parquet").status == 0
    for url in ("a.tar", "t.parquet", "n.parquet"):
        done = inside("tarstat", "--classes", "json:class size=json:size.0", url)
        assert done.status == 0
        lines = done.stdout.decode().splitlines()
        assert lines[-11:] == [
            "missing json:class: 1 of 6 samples, first 4",
            "classes json:class: 2",
            "class json:class b: 3",
            "class json:class a: 2",
            "classes size: 6",
            *(f"class size {number}: 1" for number in range(6)),
        ]
        found = json.loads(inside("tarstat", "--json", "--classes", "json:class", url).stdout)
        assert [field["field"] for field in found["fields"]] == ["json", "png"]
        assert found["values"] == [
            {
                "field": "json:class",
                "samples": 5,
                "missing": 1,
                "missing_in": "4",
                "classes": {"values": 2, "counts": {"b": 3, "a": 2}, "long": 0},
            }
        ]
    assert "values" not in json.loads(inside("tarstat", "--json", "a.tar").stdout)


def test_many_and_long_values_are_no_classes(inside: Inside, tmp_path: Path) -> None:
    members = [(f"{n:04d}.json", json.dumps({"id": n, "text": "x" * (256 + n % 2)}).encode()) for n in range(1001)]
    for name, part in (("0.tar", members[:300]), ("1.tar", members[300:])):
        (tmp_path / name).write_bytes(make_tar(part))
    lines = inside("tarstat", "-p", "2", "--classes", "json:id json:text", "0.tar", "1.tar").output().decode()
    assert "classes json:id: more than 1,000\nclasses json:text: 1\n" in lines
    assert re.search(r"class json:text x+…: 501\nno classes json:text: 500 values longer than 256 bytes\n\Z", lines)


def test_a_table_of_classes_inside_json_on_a_terminal(inputs: None, tmp_path: Path) -> None:
    done = on_terminal([BIN / "tarstat", "--classes", "json:class", "a.tar"], tmp_path)
    assert done.status == 0
    said = done.stdout.decode() + done.stderr
    assert "Classes json:class" in said and "1 sample without a value" in said


def test_bad_json_is_an_error_that_names_the_sample(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("0.json", b'{"class": 1}'), ("1.json", b"{")]))
    said = inside("tarstat", "--classes", "json:class", "a.tar").failure()
    assert said.startswith("tarstat: a.tar: sample '1', field 'json': not JSON: ")
