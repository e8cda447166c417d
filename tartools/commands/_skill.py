"""Print one page for an assistant: the data model, the commands, ten recipes.

It is Markdown with the head of a skill file, and belongs to the version that prints it.

Examples:
  Read it:
    tartools skill | less
  Give it to an assistant that reads skills from a folder:
    mkdir -p skills/tartools && tartools skill > skills/tartools/SKILL.md
"""

from __future__ import annotations

from tartools import cli
from tartools.cli.process import print_now
from tartools.commands import BUILTINS, COMMANDS_BY_TASK, load

SKILL_HEAD = """\
---
name: tartools
description: View, check, filter, join, sort, shuffle, split and process machine-learning data sets that are kept as tar
  shards (WebDataset format), locally or in object stores, by Unix commands and in Python, without losing samples.
---

# tartools

Commands that treat tar archives of training data as streams of samples. They combine in pipes as cat and sort do.

## Data model

- A shard is a tar archive, plain or compressed (.tar, .tgz, .tar.zst ...). `train/a.seg.png` has the key `train/a`
  (up to the first dot of the base name) and the field `seg.png`. Adjacent members with one key are one sample.
- A table is a Parquet file with a row for each sample: shard, bytes, key, values. `tarindex` makes it, SQL selects and
  orders its rows, and all commands read it where they read shards. An output that ends in .parquet is a table.
- Inputs are files, `-` (stdin), `pipe:COMMAND`, and URLs: s3: gs: azure: ais: hf: http: https: sftp:. Quote wildcards
  and braces, which tartools expands itself: 'train-{000000..000147}.tar', 's3://bucket/train-*.tar'.
- Outputs go to stdout (never a terminal) or to -o. A named output appears only when it is complete. An existing one is
  refused unless --force is given.
- `json:class` is a value inside the JSON of the field json, where a column is named; in expressions of -S it is
  field('json:class'). 'jpg;png' is the first of these that a sample has.

## Rules

- Use `set -o pipefail` in scripts. Check the exit status: nothing is lost silently.
- `NAME -h` lists the options of a command, `NAME --help` or `tartools man NAME` explains everything, `tartools man`
  what all commands share. Do not guess options.
- Where another program has the name of a command (GNU tar has a script tarcat), write `tartools NAME`.
- Try on a few samples first: -c 10 stops after ten.
- Random choices depend on --seed (default 0) alone: the same input, options and seed give the same bytes.

## Commands
"""
SKILL_RECIPES = """\
## Ten recipes

They run as printed in the folder that `tartools demo shapes` makes.

```sh
# 1. What is in these shards? Counts, fields, sizes, classes; as JSON
tarstat --json 'train-*.tar'
# 2. A few samples as text, and a page for a browser
tarshow -c 3 train-000000.tar
tarshow --html sheet.html 'train-*.tar'
# 3. Values as a table
tar2tsv -f 'cls cls.txt' 'train-*.tar' > values.tsv
# 4. Shards from a folder with one subfolder per class, of up to 1 GB
tarcreate --folder pictures --class cls | tarsort -S shuffle --seed 1 | tarsplit -s 1e9 -o made
# 5. Select by an expression over fields; the others go to another shard
tarfilter -S "cls == '0' and width('jpg') > 64" 'train-*.tar' --rest others.tar -o chosen.tar
# 6. Add fields from a table of rows, by key
tarjoin 'train-*.tar' --with values.tsv -f 'label.txt=cls.txt' -o labelled.tar
# 7. Find damage, repeated keys, missing fields, broken pictures; write the intact samples
tarcheck --decode --fix 'train-*.tar' -o intact.tar
# 8. Split into training and validation, the same in every run, with a tenth of each class
tarsplit --parts train:0.9,val:0.1 --stratify cls shapes.tar -o '{part}/{shard:06d}.tar'
# 9. Run a command on every sample, on all cores; the files it leaves are the new sample
tarproc -p 0 -c 'echo $(wc -c < sample.jpg) > sample.bytes' 'train-*.tar' -o sized.tar
# 10. The same for many shards, resumed after an interruption; then a table of all samples
tarjob --spec 'train-*.tar' --log log.jsonl -- tarproc -c 'rm sample.cls' {} -o small/{/}
tarindex -f cls 'train-*.tar' -o train.parquet
```

In Python: `tartools.read(urls)` yields samples (`sample.key`, `sample["jpg"]` is bytes), `tartools.TarWriter` and
`ShardWriter` write them, `tartools.Table` reads them by number, `tartools.map_samples(function, urls, output)` changes
each. For PyTorch, without loss, and resumable:

```python
import tartools.train

loader = tartools.train.loader(
    "train-*.tar", 16, table="all.parquet", fields="jpg cls", decode="torchrgb8", resize=(224, 224)
)
for pictures, labels in loader:
    print(tuple(pictures.shape), labels.dtype)
state = loader.state_dict()
```

## Exit statuses

- 0: success; every sample read was written, or left out because an option asked for that.
- 1: a failure, or something that was reported and left out; one line on stderr names the URL, the byte or the sample.
  A command that fails writes no output under its name. `tardiff`: the data sets differ.
- 2: an error in the command line; nothing was read. `tardiff`: also a failure.
- 128 + N: ended by signal N.
"""


@cli.command(__doc__, name="tartools skill")
def skill() -> int:
    """Print the Markdown page for agents: data model, rules, all commands by task, recipes, exit statuses; return 0."""
    lines = []
    for task, names in COMMANDS_BY_TASK.items():
        words = ((f"tartools {name}" if name in BUILTINS else name, load(name).summary) for name in names)
        lines += [f"To {task}:", "", *(f"- `{name}`: {summary}" for name, summary in words), ""]
    print_now("\n".join([SKILL_HEAD, *lines, SKILL_RECIPES]))
    return 0
