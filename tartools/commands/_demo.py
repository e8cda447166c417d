"""Make a small data set and run the commands on it, line by line.

Draws 60 labelled pictures, then creates, splits, processes, sorts and shows shards of them. Each command line is
printed before it runs. The directory is kept, so that you can try more.

Examples:
  Run the demo in a new temporary directory:
    tartools demo
  Run it in a directory of your own, which must be empty or new:
    tartools demo tryout
"""

import os
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from tartools import cli
from tartools.cli.process import print_now

CORNERS_BY_CLASS = {"circle": 0, "square": 4, "triangle": 3}  # class: corners
PICTURES_PER_CLASS = 20  # of each class
DEMO_PICTURE_PIXELS = 96  # pixels

DEMO_LINES = (
    (
        "create: a shard from a folder of pictures, the folder as the label: its number, and its name in cls.txt",
        "tarcreate --folder pictures --class cls -o shapes.tar",
    ),
    ("split: shards of 15 samples", "tarsplit -n 15 -o train shapes.tar"),
    (
        "process: a command for each sample, two at a time; a file sample.NAME that it leaves is a new field",
        "tarproc -p 2 -c 'echo $(wc -c < sample.jpg) > sample.bytes' 'train-{000000..000003}.tar' -o processed.tar",
    ),
    ("sort: by the size of the pictures", "tarsort --sort-key bytes --sort-type int processed.tar -o sorted.tar"),
    (
        "shuffle: a random order, the same on every machine",
        "tarsort --sort-type shuffle --seed 7 sorted.tar -o shuffled.tar",
    ),
    ("tabulate: fields as columns", "tar2tsv -c 5 -f 'cls bytes' shuffled.tar"),
    ("show: the fields of two samples", "tarshow -c 2 shuffled.tar"),
    ("count: the tools are made for pipes", "tar2tsv --no-key --no-header -f cls.txt shuffled.tar | sort | uniq -c"),
)


@cli.command(__doc__, name="tartools demo")
def demo(
    *, directory: Annotated[str | None, cli.Option("[DIRECTORY]", "An empty or new directory to work in.")] = None
) -> int:
    """Draw pictures in *directory*, then print and run each command line of the demo there; return the exit status.

    *directory*: made if it is missing; None makes a temporary one. It is kept. The status is 1 if it is not empty, or
    once a line fails: the others do not run. Raises: OSError.
    """
    folder = Path(directory or tempfile.mkdtemp(prefix="tartools-demo-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.stderr.write(f"tartools demo: {folder} is not empty\n")
        return 1
    draw_pictures(folder / "pictures")
    scripts = str(Path(sys.executable).parent)
    classes = len(CORNERS_BY_CLASS)
    print_now(f"# {classes * PICTURES_PER_CLASS} pictures in {classes} folders are drawn. To repeat what follows:\n")
    print_now(f"PATH={shlex.quote(scripts)}:$PATH; cd {shlex.quote(str(folder))}\n")
    environment = os.environ | {"PATH": scripts + os.pathsep + os.environ.get("PATH", os.defpath)}
    for what, line in DEMO_LINES:
        print_now(f"\n# {what}\n$ {line}\n")
        status = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}"], cwd=folder, env=environment, check=False
        ).returncode
        if status:
            sys.stderr.write(f"tartools demo: this line ended with status {status}\n")
            return 1
    print_now(f"\n# All of it is in {folder}\n")
    return 0


def draw_pictures(folder: Path) -> None:
    """Draw 20 pictures of each of 3 classes as `folder/CLASS/NN.jpg`: the same ones every time.

    Makes the folders. Raises: OSError, also if a folder of a class exists.
    """
    from PIL import Image, ImageDraw

    chance = random.Random(0)
    for shape, corners in CORNERS_BY_CLASS.items():
        (folder / shape).mkdir(parents=True)
        for number in range(PICTURES_PER_CLASS):
            colours = [tuple(chance.randrange(256) for _ in range(3)) for _ in range(2)]
            image = Image.new("RGB", (DEMO_PICTURE_PIXELS, DEMO_PICTURE_PIXELS), colours[0])
            x, y, radius = chance.uniform(36, 60), chance.uniform(36, 60), chance.uniform(16, 34)
            pen = ImageDraw.Draw(image)
            if corners:
                pen.regular_polygon((x, y, radius), corners, rotation=chance.randrange(360), fill=colours[1])
            else:
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colours[1])
            image.save(folder / shape / f"{number:02d}.jpg")
