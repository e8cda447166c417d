"""The places in the words of a command, and which words a shell reads again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tartools.errors import UsageError
from tartools.run import placeholders
from tests.run.test_tasks import HOSTILE

PLAIN = ["a", "00147", "in/train-01.tar.gz", "s3://bucket/x_1+y.tar", "a=b,c:d@e%f", "-x"]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("in/train-01.tar.gz", ("in/train-01.tar", "train-01.tar.gz", "train-01.tar")),
        ("gs://b.c/plain", ("gs://b.c/plain", "plain", "plain")),
        ("a.b/c", ("a.b/c", "c", "c")),
        ("0", ("0", "0", "0")),
        ("dir/", ("dir/", "", "")),
        (".tar", ("", ".tar", "")),
        ("two\nlines.tar", ("two\nlines", "two\nlines.tar", "two\nlines")),
    ],
)
def test_places(item: str, expected: tuple[str, str, str]) -> None:
    assert tuple(placeholders.fill(f"{place}", item) for place in ("{.}", "{/}", "{/.}")) == expected
    assert placeholders.fill("x-{}-{}={.}", item) == f"x-{item}-{item}={expected[0]}"


def test_places_as_in_gnu_parallel() -> None:
    """Of its manual: {} {.} {/} {/.}, and nothing else in braces."""
    assert placeholders.fill("{..}{//}{#}{1}", "a/b.c") == "{..}{//}{#}{1}"


@pytest.mark.parametrize("item", HOSTILE, ids=ascii)
def test_the_item_as_it_is(item: str) -> None:
    assert placeholders.fill("s3://b/x '-{}.tar", item) == f"s3://b/x '-{item}.tar"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("bash -c ./x-{}", True),
        ("bash -lc ./x-{}", True),
        ("env A=1 /bin/sh -euc ./x-{}", True),
        ("timeout 9 nice zsh -ic ./x-{}", True),
        ("bash -c -e ./x-{}", True),
        ("bash -c -- ./x-{}", True),
        ("fish --command ./x-{}", True),
        ("fish --command=./x-{}", True),
        ("su me -lc ./x-{}", True),
        ("xargs -I% sh -c ./x-{}", True),
        ("python -c {}", True),
        ("wc -c ./x-{}", True),  # more than there need be
        ("tarproc -p 2 -c ./x-{}", True),
        ("tarproc -Sc ./x-{}", True),
        ("tarproc -c./x-{}", True),
        ("tarproc -qc./x-{}", True),
        ("tarproc --command ./x-{}", True),
        ("tarproc --command=./x-{}", True),
        ("python -m tartools tarproc -Sc ./x-{}", True),
        ("tarsplit --post ./x-{}", True),
        ("tarsplit --post=./x-{}", True),
        ("sbatch --wrap=./x-{}", True),
        ("tarcat pipe:./x-{}", True),
        ("tarcat -o pipe:./x-{}", True),
        ("tarcat -vopipe:./x-{}", True),
        ("tarcat --output=pipe:./x-{}", True),
        ("eval echo ./x-{}", True),
        ("ssh -p 22 host wc ./x-{}", True),
        ("bash -c", True),  # the item is appended
        ("bash -c true ./x-{}", False),
        ("bash -c true _ {}", False),
        ("./bash-{} -lc ./x", False),
        ("tarproc -c true -o ./x-{}", False),
        ("tarproc -c true --output=./x-{}", False),
        ("tarproc -s ./x-{}", False),
        ("xz -dc ./x-{}", False),
        ("tar -xzcf ./x-{}", False),
        ("tool --config=./x-{}", False),
        ("tarcat {} -o {/}", False),
        ("printf %s", False),
    ],
)
def test_which_words_a_shell_reads(words: str, expected: bool) -> None:
    command = words.split() if "{" in words else [*words.split(), "{}"]
    code = placeholders.shell_code(command)
    assert code == ([next(word for word in reversed(command) if "{" in word)] if expected else [])


@pytest.mark.parametrize("item", [*HOSTILE, "", "a b", "\t", "é", "*", "?", "a\0b"], ids=ascii)
def test_items_that_are_refused_in_code(item: str) -> None:
    if item == "-rf":  # an option perhaps, but no code
        placeholders.check_item(item, ["wc {}"])
        return
    placeholders.check_item(item, [])
    with pytest.raises(UsageError, match=re.escape('write "$TARJOB_ITEM" instead of {}')) as error:
        placeholders.check_item(item, ["wc {}"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("item", PLAIN)
@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
def test_items_that_are_accepted_mean_nothing_to_a_shell(item: str, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    placeholders.check_item(item, ["printf '%s' {}"])
    for line in ("printf -- %s {}", "printf -- %s '{}'", 'printf -- %s "{}"', 'printf -- %s "$(printf -- %s {})"'):
        done = subprocess.run([shell, "-c", placeholders.fill(line, item)], capture_output=True, check=True)
        assert os.fsdecode(done.stdout) == item
