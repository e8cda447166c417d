"""Usage errors, a row for each: status 2, one line that says what is wrong, and nothing is made.

What every command refuses alike is in `test_every_command`, and how values are parsed in `tests.cli.test_parse`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.commands.conftest import Inside
from tests.conftest import make_samples, make_tar

PARTS, EACH = "--parts train:0.7,val:0.2,test:0.1", "{part}-{shard:06d}.tar"
WRONG = [
    ("tarsplit --parts train:0.9,val:0.2 -o EACH", "the shares sum to 1.1, not to 1"),
    ("tarsplit --parts train:80,val:10 -o EACH", "the shares sum to 90, not to 100"),
    ("tarsplit --parts train:0.33,val:0.33,test:0.33 -o EACH", "the shares sum to 0.99, not to 1"),
    ("tarsplit --parts train:1,val:0 -o EACH", "the part 'val' has the share 0"),
    ("tarsplit --parts train:0.5,train:0.5 -o EACH", "two parts have the name 'train'"),
    ("tarsplit --parts train,val:0.5 -o EACH", "not a part and its share: 'train'"),
    ("tarsplit --parts train:0.5,val:half -o EACH", "not a number from 0 to 100: 'half'"),
    ("tarsplit --parts '' -o EACH", "not a part and its share: ''"),
    ("tarsplit --parts ../x:0.5,val:0.5 -o EACH", "the name of the part '../x' would be another folder"),
    ("tarsplit --parts A:0.5,a:0.5 -o EACH", "the name of the part 'a' is too much like 'A'"),
    ("tarsplit PARTS -o part-%06d.tar", "OUTPUT needs {part}"),
    ("tarsplit PARTS -o {part}%06d.tar", "{part} stands beside the number"),
    ("tarsplit PARTS -o %06d0{part}.tar", "{part} stands beside the number"),
    ("tarsplit PARTS -o {part}.tar -n 3", "OUTPUT has no number"),
    ("tarsplit PARTS -o {part}.tar --shards 3", "OUTPUT has no number"),
    ("tarsplit PARTS -o {part}.parquet -z", "-z writes gzip"),
    ("tarsplit PARTS -o s3://{part}/%06d.tar", "{part} can't stand for a bucket"),
    ("tarsplit PARTS --max-shards 3 -o EACH", "--max-shards stops reading"),
    ("tarsplit PARTS --shards 3 -n 3 -o EACH", "--shards sets the size"),
    ("tarsplit --stratify cls -o EACH", "--stratify needs --parts"),
    ("tarsplit --by cls -o {part}-%06d.tar", "OUTPUT needs {cls}"),
    ("tarsplit --by shard -o {shard}.tar", "{shard} in OUTPUT is a number"),
    ("tarsplit --by cls PARTS -o {cls}-%d.tar", "it excludes --parts and --stratify"),
    ("tarsplit --by cls --stratify cls -o {cls}-%d.tar", "it excludes --parts and --stratify"),
    ("tarsplit --by __index__ -o {__index__}/", "__index__ is not a value"),
    ("tarsplit --by '' -o {cls}/", "not a column: ''"),
    ("tarsplit -o a.tar -z", "a-000000.tar: -z writes gzip, but this name ends in .tar"),
    ("tarsplit -o a%d%d.tar", "a pattern has one number, not 2: a%d%d.tar"),
    ("tarsplit", "Missing option '-o' / '--output'."),
    ("tarsplit -o a --remove", "--remove needs a --post that copies the shards elsewhere first"),
    ("tarsplit -o a -n 1 --samples 2", "-n/--samples is given twice"),
    ("tarsplit -o a -s 1e400", "not a number of bytes: '1e400'; write 1e9, 64K, 64KiB (1024) or 64KB (1000)"),
    ("tarsplit -o a -s 1e30", "not a number of bytes: '1e30'; write 1e9, 64K, 64KiB (1024) or 64KB (1000)"),
    ("tarsplit -o a -s 0.1", "not a number of bytes: '0.1'; write 1e9, 64K, 64KiB (1024) or 64KB (1000)"),
    ("tarcat --skip 1 --slice 1:2", "--skip and --slice exclude each other"),
    ("tarcat -c -1", "-1 is less than 0"),
    ("tarcat -c x", "not a whole number: 'x'"),
    ("tarcat --skip -1", "-1 is less than 0"),
    ("tarcat --slice -1:", "not a slice: '-1:'; write lo:hi or lo:hi:step, without negatives"),
    ("tarcat --slice 1", "not a slice: '1'; write lo:hi or lo:hi:step, without negatives"),
    ("tarcat --slice 1:2:0", "not a slice: '1:2:0'; write lo:hi or lo:hi:step, without negatives"),
    ("tarcat --slice 1:2:3:4", "not a slice: '1:2:3:4'; write lo:hi or lo:hi:step, without negatives"),
    ("tarcat --shuffle 0", "0 is less than 1"),
    ("tarcat --interleave 0", "0 is less than 1"),
    ("tarcat --seed x", "not a whole number: 'x'"),
    ("tarcat -c 1 --count 2", "-c/--count is given twice"),
    ("tarcat -o a --output b", "-o/--output is given twice"),
    ("tarproc", "give what to run: either -c COMMAND, or -s SCRIPT, or -- and the words of a command"),
    ("tarproc -c true -s x", "give what to run: either -c COMMAND, or -s SCRIPT, or -- and the words of a command"),
    ("tarproc -c true -e other", "'other' is not one of abort, skip, ignore"),
    ("tarproc -c true --base a/b", "--base 'a/b' can't be the name of a file"),
    ("tarproc -c true --base ''", "--base '' can't be the name of a file"),
    ("tarproc -c true --add-log a/b", "--add-log 'a/b' can't be the name of a field"),
    ("tarproc -c true -p -1", "-1 is less than 0"),
    ("tarproc -c true --timeout 0", "0 is less than 0.001"),
    ("tarproc -c true --timeout nan", "not a number: 'nan'"),
    ("tarproc -c true --timeout inf", "not a number: 'inf'"),
    ("tarproc -c true --timeout 1e300", "--timeout 1e+300 is not a number of seconds up to 1,000,000"),
    *((f"tarbench --seconds={value} a.tar", f"not a number: '{value}'") for value in ("nan", "inf", "-inf", "1e400")),
    ("tarproc -c true -- true", "give what to run: either -c COMMAND, or -s SCRIPT, or -- and the words of a command"),
    ("tarproc -s a -- true", "give what to run: either -c COMMAND, or -s SCRIPT, or -- and the words of a command"),
    ("tarproc --", "no command after --"),
    ("tarproc --shell sh -- true", "--shell is for -c: no shell reads the words after --"),
    ("tarproc -c true -p 1 -p 2", "-p/--parallel is given twice"),
    ("tarsort -s cls -s cls", "-s/--sort-key is given twice"),
    ("tarpcat -p 1 --parallel 2", "-p/--parallel is given twice"),
    ("tarshow -c 1 -c 1", "-c/--count is given twice"),
    ("tar2tsv -f cls --fill x --fill y", "--fill is given twice"),
    ("tarcreate -o a -o b", "-o/--output is given twice"),
    ("tarfirst -k a -k b", "-k/--key is given twice"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_usage_errors(line: str, message: str, inside: Inside, tmp_path: Path) -> None:
    words = shlex.split(line.replace("PARTS", PARTS).replace("EACH", EACH))
    done = inside(*words, stdin=make_tar(make_samples(9)))
    assert (done.status, done.stdout, done.stderr.count("\n")) == (2, b"", 1), done.stderr
    assert done.stderr.startswith(f"{words[0]}: ") and message in done.stderr
    assert os.listdir(tmp_path) == []
