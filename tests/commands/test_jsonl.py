"""tar2jsonl, and JSON lines as plans of tarcreate."""

from __future__ import annotations

import gzip
import json
import tarfile
import tempfile
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartools.cli import Command
from tartools.commands.tar2jsonl import tar2jsonl
from tartools.commands.tar2tfrecord import tar2tfrecord
from tartools.commands.tarcreate import tarcreate
from tartools.commands.tarindex import tarindex
from tests.commands.conftest import Inside
from tests.conftest import Run, has_end, make_tar, members_of

SAMPLES = [
    ("d/a.JPG", b"\xff\xd8" * 900),
    ("d/a.cls", b"3\n"),
    ("README", b"\x00 text\n"),
    ("d/ü.seg.png", b"\x89PNG" * 70),
    ("d/ü.json", b'{"a": [1.50, "\xc3\xa9"]}'),
    ("e.@txt", b"mail"),
    ("e.\\@txt", b""),
    ("e.__key__", b"key"),
]


def test_there_and_back(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(SAMPLES))
    assert run("tar2jsonl", "a.tar", "-o", "a.jsonl") == (0, b"", "")
    lines = (tmp_path / "a.jsonl").read_bytes()
    assert [json.loads(line) for line in lines.splitlines()] == [
        {"__key__": "d/a", "JPG": {"@base64": b64encode(b"\xff\xd8" * 900).decode()}, "cls": "3\n"},
        {"__key__": "README", "": "\x00 text\n"},
        {"__key__": "d/ü", "seg.png": {"@base64": b64encode(b"\x89PNG" * 70).decode()}, "json": '{"a": [1.50, "é"]}'},
        {"__key__": "e", "\\@txt": "mail", "\\\\@txt": "", "\\__key__": "key"},
    ]
    back = run("tarcreate", "a.jsonl").output()
    assert members_of(back) == SAMPLES and has_end(back)
    chosen = run("tar2jsonl", "-f", "label=CLS", "-x", "jpg", "a.tar", "-v")
    assert chosen.stdout == b'{"__key__": "d/a", "label": "3\\n"}\n'
    assert chosen.stderr.startswith("tar2jsonl: 4 samples in, 1 out, 3 left out, ")


@pytest.mark.parametrize(
    ("options", "plan", "expected"),
    [
        ((), '{"a": "x\\u00e9\\n", "b": ""}', [("000000000.a", b"x\xc3\xa9\n"), ("000000000.b", b"")]),
        (("--key-template", "k{:02d}"), '{"a": 1}\n\n{"a": 2}', [("k00.a", b"1"), ("k01.a", b"2")]),
        ((), '{"__key__": "k", "a": 1.50, "b": -0, "c": 123456789012345678901234567890, "d": 1E400, "e": NaN}',
         [("k.a", b"1.50"), ("k.b", b"-0"), ("k.c", b"123456789012345678901234567890"), ("k.d", b"1E400"),
          ("k.e", b"NaN")]),
        ((), '{"__key__": 7, "a": false}', [("7.a", b"false")]),
        ((), '{"__key__": "k", "a": true, "b": null, "__index__": 7, "__shard__": "s", "@c": "", "@d": null}',
         [("k.a", b"true")]),
        ((), '\ufeff{"__key__": "k", "m": { "x" : [1.0, null, "\\u00fc\\/"], "y": {} }, "l": []}\r\n',
         [("k.m.json", '{"x":[1.0,null,"ü/"],"y":{}}'.encode()), ("k.l.json", b"[]")]),
        ((), '{"__key__": "k", "m": ["\\ud800"]}', [("k.m.json", b'["\\ud800"]')]),
        ((), '{"__key__": "k", "a": {"@base64": "AP8="}, "@b": "one", "@c": "two"}',
         [("k.a", b"\0\xff"), ("k.b", b"1"), ("k.c", b"abcd")]),
        ((), '{"__key__": "k", "\\u0040b": "one"}', [("k.b", b"1")]),
        ((), '{"__key__": "k", "\\\\@b": "one", "\\\\__size__": "2"}', [("k.@b", b"one"), ("k.__size__", b"2")]),
        ((), '{"__key__": "k", "a": {"@context": "x"}}', [("k.a.json", b'{"@context":"x"}')]),
    ],
)  # fmt: skip
def test_plans(
    options: tuple[str, ...], plan: str, expected: list[tuple[str, bytes]], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one").write_bytes(b"1")
    (tmp_path / "data/two").write_bytes(b"abcd")
    (tmp_path / "plan.jsonl").write_text(plan)
    done = run("tarcreate", *options, "-C", "data", "plan.jsonl")
    assert (done.status, done.stderr) == (0, "")
    assert members_of(done.stdout) == expected and has_end(done.stdout)
    assert run("tarcreate", *options, "-C", "data", "--format", "jsonl", stdin=plan.encode()) == done


@pytest.mark.parametrize("value", ["\\ud800", "\\udc80"])
def test_a_lone_surrogate_in_a_template(value: str, run: Run) -> None:
    line = f'{{"name": "{value}", "a": 1}}'.encode()
    said = run("tarcreate", "--format", "jsonl", "--key-template", "{name}", stdin=line).failure()
    assert said == f"tarcreate: stdin: line 1, column __key__: the lone surrogate '{value}' can't be written as UTF-8\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "stdin: the plan is empty: it has no line"),
        ("[1]", "stdin: line 1: not a JSON object"),
        ('{"a": 1', "stdin: line 1: not JSON: Expecting ',' delimiter (character 8)"),
        ('{"a": 1}\n{"a": 1} x', "stdin: line 2: not JSON: Extra data (character 10)"),
        ('{"a": "x\ny"}', "stdin: line 1: not JSON: "),
        ('{"a": ' + "[" * 100_000, "stdin: line 1: not JSON that can be read: brackets are nested too deeply"),
        ('{"a": 1, "a": 2}', "stdin: line 1: the name 'a' occurs twice in one object"),
        ('{"a": {"b": 1, "b": 2}}', "stdin: line 1: the name 'b' occurs twice in one object"),
        ('{"@a": "x", "a": 2}', "stdin: line 1, column a: two values are for the field 'a'"),
        ('{"@a": 5}', "stdin: line 1, column @a: the value must be a path or a URL, as text"),
        ('{"@a": "nope"}', "nope: No such file or directory (stdin: line 1, column @a; paths are relative"),
        ('{"@a": "pipe:echo"}', "line 1, column @a: a table may not name a command: pipe:echo"),
        ('{"a": {"@url": "four", "offset": 0, "size": 4}}',
         'stdin: line 1, column a: a range of a file, {"@url": ...}, is not read: a table that tarindex makes lists '),
        ('{"a": {"@base64": "A"}}', "stdin: line 1, column a: not base64: "),
        ('{"a": {"@base64": "AAA= "}}', "stdin: line 1, column a: not base64: "),
        ('{"a": {"@base64": "", "x": 1}}', "stdin: line 1, column a: bytes are {"),
        ('{"a": "\\ud800"}', "stdin: line 1, column a: the lone surrogate '\\ud800' can't be written as UTF-8"),
        ('{"__key__": "\\udcff", "a": 1}', "stdin: line 1, column __key__: the lone surrogate"),
        ('{"__key__": true, "a": 1}', "column __key__: the key is true, and must be text or a number"),
        ('{"__key__": null, "a": 1}', "stdin: line 1, column __key__: the key is null"),
        ('{"__key__": "../x", "a": 1}', "stdin: line 1, column __key__: the key '../x' is absolute or contains '..'"),
        ('{"__key__": "x.y", "a": 1}', "stdin: line 1, column a: key 'x.y' with field 'a' would not read back"),
        ('{"a/b": 1}', "stdin: line 1, column a/b: key '000000000' with field 'a/b' would not read back"),
        ('{"__key__": "k", "a": null}', "stdin: line 1: the sample 'k' has no field"),
        ('{"__key__": "k", "": "", "a": 1}', "stdin: line 1: a member without a field is a sample of its own"),
        ('{"__key__": "k", "a": 1}\n\n{"__key__": "k", "b": 1}',
         "line 3, column __key__: the key 'k' is that of line 1 too"),
    ],
)  # fmt: skip
def test_failures(line: str, message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "four").write_bytes(b"1234")
    done = run("tarcreate", "--format", "jsonl", "-o", "out.tar", stdin=line.encode("utf-8", "surrogatepass"))
    assert done.status == 1 and message in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["four"]


@pytest.mark.parametrize("first", ["@a", "a"])
def test_a_field_of_a_file_and_of_a_value_with_chosen_names(first: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "four").write_bytes(b"1234")
    second = {"@a": "a", "a": "@a"}[first]
    values = {"@a": "four", "a": 2}
    line = json.dumps({name: values[name] for name in (first, second)})
    failed = run("tarcreate", "--format", "jsonl", "-f", "a", stdin=line.encode())
    assert failed.failure() == "tarcreate: stdin: line 1: two values are for the field 'a'\n"
    for empty, payload in (("a", b"1234"), ("@a", b"2")):
        line = json.dumps({name: None if name == empty else values[name] for name in (first, second)})
        for options in ([], ["-f", "a"]):
            made = run("tarcreate", "--format", "jsonl", *options, stdin=line.encode()).output()
            assert members_of(made) == [("000000000.a", payload)]


def test_bytes_that_are_not_utf8(run: Run, tmp_path: Path) -> None:
    done = run("tarcreate", "--format", "jsonl", stdin=b'{"a": 1}\n{"a": "\xff"}\n')
    said = "tarcreate: stdin: line 2: not UTF-8 text (byte 7 of the line); --encoding cp1252 reads it as such\n"
    assert done.status == 1 and done.stderr == said
    for name in ("\udcff.txt", "a.\udcff"):
        (tmp_path / "a.tar").write_bytes(make_tar([(name, b"")]))
        assert "is not UTF-8, so JSON cannot hold it" in run("tar2jsonl", "-q", "a.tar", "-o", "a.jsonl").failure()
    (tmp_path / "a.tar").write_bytes(make_tar([("a.txt", b"1"), ("a.txt", b"2")]))
    assert "the sample 'a' has the field 'txt' twice" in run("tar2jsonl", "-q", "a.tar", "-o", "a.jsonl").failure()
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_file_that_is_cut(inside: Inside) -> None:
    """Cut in a line, it is a failure that names the line. Cut between two lines, all before it is there."""
    lines = [b'{"__key__": "a", "b": {"@base64": "AP8="}}\n', b'{"__key__": "\xc3\xbc", "c": [1, true]}\n']
    whole = b"".join(lines)
    for cut in range(len(whole) + 1):
        Path("a.jsonl").write_bytes(whole[:cut])
        status, _, said = inside("tarcreate", "a.jsonl", "-o", "a.tar", short=True)
        complete = {len(lines[0]) - 1: 1, len(lines[0]): 1, len(whole) - 1: 2, len(whole): 2}.get(cut)
        if complete:
            assert (status, said) == (0, "") and len(members_of(Path("a.tar").read_bytes())) == complete
            Path("a.tar").unlink()
        else:
            line = f"line {1 + (cut > len(lines[0]))}: " if cut else "the plan is empty"
            assert status == 1 and said.startswith(f"tarcreate: a.jsonl: {line}") and said.count("\n") == 1
            assert not Path("a.tar").exists()


keys = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0/."), min_size=1, max_size=8)
names = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0/") | st.sampled_from('@\\_.A"\n'), max_size=8
).filter(lambda name: not name.endswith("/") and name != "")
payloads = st.binary(max_size=20) | st.text(st.characters(exclude_categories=("Cs",)), max_size=20).map(str.encode)


def test_a_member_without_a_field_is_never_compressed(run: Run) -> None:
    done = run("tarcreate", "--format", "jsonl", stdin=b'{"__key__": "gz", "": "alone"}\n{"__key__": "a", "gz": "b"}\n')
    (name, plain), (field, packed) = members_of(done.stdout)
    assert (name, plain) == ("gz", b"alone") and (field, gzip.decompress(packed)) == ("a.gz", b"b")
    lying = make_tar([("gz", b"alone"), ("a.gz", b"no gzip data")])
    there = run("tar2jsonl", stdin=lying).stdout
    assert members_of(run("tarcreate", "--format", "jsonl", stdin=there).stdout) == members_of(lying)
    recipe = run("tarcreate", "--format", "recipe", stdin=b"gz text:alone\n")
    assert members_of(recipe.stdout) == [("gz", b"alone")]


@given(st.dictionaries(keys, st.dictionaries(names | st.just("__key__"), payloads, max_size=4), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("command", [tar2jsonl, tar2tfrecord], ids=["jsonl", "tfrecord"])
def test_any_key_name_and_payload_comes_back(command: Command, samples: dict[str, dict[str, bytes]]) -> None:
    """From a shard and from a table of it; a sample without a field is a lone member."""
    if command is tar2tfrecord:  # features are in the order of their names, and one of them is the key
        samples = {
            key: {name: fields[name] for name in sorted(fields) if name != "__key__"} for key, fields in samples.items()
        }
    content = [
        (f"{key}.{name}" if name else key, payload)
        for key, fields in samples.items()
        for name, payload in (fields or {"": b"alone"}).items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        first, table, again, back = (f"{folder}/{name}" for name in ("a.tar", "t.parquet", "b.x", "b.tar"))
        there = f"{folder}/a.{'jsonl' if command is tar2jsonl else 'tfrecord'}"
        Path(first).write_bytes(make_tar(content, tarfile.PAX_FORMAT))
        assert command.main([first, "-o", there]) == 0
        assert tarindex.main([first, "-o", table]) == 0
        assert command.main([table, "-o", again]) == 0
        assert Path(again).read_bytes() == Path(there).read_bytes()
        plan = [there] if command is tar2jsonl else ["--tfrecord", there]
        assert tarcreate.main([*plan, "-o", back]) == 0
        assert members_of(Path(back).read_bytes()) == content
