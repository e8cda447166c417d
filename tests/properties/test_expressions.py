"""Expressions do no harm: what would take all memory or time ends at once, and so do random ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run, make_tar
from tests.properties.expressions import BOMBS
from tests.tiers import exhaustive


def ended(*words: str) -> list[tuple[str, str]]:
    """Return the expressions that a process of little memory has evaluated, each with how it ended."""
    command = [sys.executable, "-m", "tests.properties.expressions", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [tuple(line.split("\t")) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
    return lines  # type: ignore[return-value]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_no_bomb_takes_memory_or_time() -> None:
    found = ended()
    assert len(found) == len(BOMBS)
    ends = {text: end.split()[0] for text, end in found}
    assert set(ends.values()) <= {"True", "False", "UsageError", "SampleError", "ExcessError"}
    assert all(int(end.split()[1]) < 1000 for _, end in found if " " in end)  # messages stay short
    harmless = {text for text, end in ends.items() if end in ("True", "False")}
    assert {text for text in harmless if "json:" not in text} == {
        *("match('(a+)+$', 'a' * 40 + 'b')", "'a' * -1", "'a' * 999999 in 'a' * 999999 + 'b'"),
        *("str(int('9' * 4300))", "len.__self__", "min([1], key=len)", "(" * 120),
        next(text for text in ends if text.startswith("[1 for a0 in")),
    }


@exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
@pytest.mark.parametrize("seed", range(10))
def test_random_expressions_end(seed: int) -> None:
    """Each has a value, or is refused, or fails on the sample; nothing else is raised."""
    found = ended(str(seed), "1000")
    assert len(found) == 1000
    kinds = {end.split()[0] for _, end in found}
    assert kinds == {"True", "False", "UsageError", "SampleError", "ExcessError"}


@pytest.mark.parametrize("more", [[], ["--ignore-errors"]], ids=["plain", "missing"])
def test_a_limit_is_a_failure_and_never_leaves_a_sample_out(more: list[str], run: Run) -> None:
    archive = make_tar([("a.txt", b"a" * 40), ("b.txt", b"b")])
    said = run("tarfilter", "-S", "'a' * 10**10 != txt", *more, stdin=archive).failure()
    assert said == "tarfilter: stdin: sample 'a': 'a' * 10**10 != txt: it takes more than 100,000 steps (see --help)\n"
    done = run("tarfilter", "-S", "[match('(x|xx)+y$', 'x' * 5000 + 'z') for a in txt]", *more, stdin=archive)
    assert done.status == 1 and "takes over 1 s: avoid repeats in repeats (see --help)" in done.stderr


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("txt.ljust(9) == ''", ".ljust() is not allowed in an expression; these are: startswith endswith find "),
        ("f'{txt}' == ''", "this is not allowed in an expression: f'{txt}'"),
        ("json:a > 3", "not an expression: 'json:a > 3' (a value inside JSON is field('json:a'))"),
        ("meta.json:a > 3", "not an expression: 'meta.json:a > 3' (a value inside JSON is field('meta.json:a'))"),
        (
            "cls like '3'",
            "\"cls like '3'\": to look for a part of a text write 'part' in cls, or match('p[ae]rt', cls)\n",
        ),
        ("key ~ '3'", "to look for a part of a text write 'part' in key, or match('p[ae]rt', key)\n"),
        (
            "txt.contains('3')",
            ".contains() is not allowed in an expression; to look for a part of a text write 'part' in ",
        ),
        (
            "re.search('3', cls)",
            ".search() is not allowed in an expression; to look for a part of a text write 'part' in cls",
        ),
        ("cls is is 3", "not an expression: 'cls is is 3': invalid syntax\n"),
        ("match('(a{1000}){1000}', txt)", "at most 10,000 characters, and 100,000 once repeats are written out: "),
        ("match('(a(?R)?b)', txt)", "a regular expression may not have a pattern inside itself: '(a(?R)?b)'"),
        ("match('(?x) a', txt)", "a regular expression may not have blanks and comments inside (?x): '(?x) a'"),
        ("match('(?:cat){e<=1}', txt)", "a regular expression may not have approximate matching: '(?:cat){e<=1}'"),
        ("width(jpg) > 3", "width(jpg): the name of a field has quotes here: width('jpg')"),
        ("field(meta.json) == '1'", "field(meta.json): the name of a field has quotes here: field('meta.json')"),
        ("cls == '1' && has('txt')", "in place of && write and"),
        ("cls == 'a&&b' || has('txt')", "in place of || write or"),
        ("!has('txt')", "in place of ! write not"),
        ("cls <> '1'", "in place of <> write !="),
        ("cls == '1' AND has('txt')", "in place of AND write and"),
        ("+".join("1" * 200), "not an expression: it is nested over 100 levels deep"),
    ],
)
def test_what_is_refused_says_why(expression: str, message: str, run: Run) -> None:
    said = run("tarfilter", "-S", expression, stdin=make_tar([("a.cls", b"1")])).failure(2, lines=1)
    assert said.startswith("tarfilter: ") and message in said


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("len([box for box in field('json:boxes') if box['w'] > 5]) == 1", True),
        ("[name for name, n in field('json:o').items() if n > 1] == ['b']", True),
        ("field('json:o').b == 2 and field('json:o').get('c', 7) == 7", True),
        ("'b' in field('json:o') and 3 not in field('json:list')", True),
        ("txt.lower().strip().split(' ')[-1] == 'world'", True),
        ("txt[:5] + '!' == 'Hello!' and txt.replace('l', '')[::-1][0] == 'd'", True),
        ("1 < int(cls) <= 3 and -int(cls) % 2 == 1 and (2 if cls else 1) ** 10 >> 1 == 512", True),
        ("not has('jpg') or width('jpg') > 1", True),
        ("max(field('json:list')) == 2 and min(3, 2) == 2 and round(2.345, 1) == 2.3 and abs(-1) == 1", True),
        ("[has(name) for name in ['txt', 'jpg']] == [True, False]", True),
        ("[x * y for x in field('json:list') for y in field('json:list') if x != y] == [2, 2]", True),
        ("int('ff', 16) == 255 and float('0.5') < 1 and str(field('json:list')) == '[1, 2]'", True),
        ("match('^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}$', '00000000-1111-2222')", True),
        ("match(r'^(\\d{1,3}\\.){3}\\d{1,3}$', '10.0.0.1') and match('(?i)hello', txt)", True),
        ("cls is None or not field('json:none') is None", False),
    ],
)
def test_what_expressions_can_do(expression: str, value: bool, run: Run) -> None:
    boxes = b'{"boxes": [{"w": 3}, {"w": 8}], "o": {"a": 1, "b": 2}, "list": [1, 2], "none": null}'
    archive = make_tar([("a.cls", b"3\n"), ("a.json", boxes), ("a.txt", b"Hello World\n")])
    done = run("tarfilter", "-v", "-S", expression, stdin=archive)
    assert done.status == 0 and f"{int(value)} out" in done.stderr


def test_too_little_memory_is_a_failure_with_a_reason(shell: Run, tmp_path: Path) -> None:
    """A sample on which memory runs out is not one on which the expression is false."""
    info = tarfile.TarInfo("a.txt")
    info.size = 1 << 30
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(info.tobuf(tarfile.USTAR_FORMAT))
        file.seek(info.size, os.SEEK_CUR)
        file.write(make_tar([("b.txt", b"1")]))
    for more in ("", "--ignore-errors"):
        done = shell(f"ulimit -v 900000; tarfilter -S 'int(txt) > 0' {more} a.tar -o o.tar")
        assert (done.status, done.stderr) == (1, "tarfilter: out of memory\n")
        assert os.listdir(tmp_path) == ["a.tar"]
