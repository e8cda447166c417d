"""The command line: options, errors to exit statuses, progress on stderr, signals.

Commands declare their parameters with `declare` and `options`; `command` makes a command of a function, `parse` reads
command lines, and `typer_app` prints help. `process` handles signals and standard streams, `progress` prints messages
and totals, and `drawing` draws progress. `manual` and `completions` make files from the declarations. Only this package
ends the process. Begin reading at `command.Command`.
"""

from __future__ import annotations

from tartools.cli.command import Command as Command
from tartools.cli.command import command as command
from tartools.cli.declare import Group as Group
from tartools.cli.declare import Option as Option
from tartools.cli.declare import sample_slice as sample_slice
from tartools.cli.options import AllowPipe as AllowPipe
from tartools.cli.options import CheckSums as CheckSums
from tartools.cli.options import Count as Count
from tartools.cli.options import DescribedInputs as DescribedInputs
from tartools.cli.options import Dots as Dots
from tartools.cli.options import Fields as Fields
from tartools.cli.options import Force as Force
from tartools.cli.options import Gzip as Gzip
from tartools.cli.options import Inputs as Inputs
from tartools.cli.options import Memory as Memory
from tartools.cli.options import Output as Output
from tartools.cli.options import Parallel as Parallel
from tartools.cli.options import ResourceOptions as ResourceOptions
from tartools.cli.options import Seed as Seed
from tartools.cli.options import ShardOutputs as ShardOutputs
from tartools.cli.options import Sums as Sums
from tartools.cli.options import TmpDir as TmpDir
from tartools.cli.options import Url as Url
from tartools.cli.options import Verbatim as Verbatim
from tartools.cli.options import Workers as Workers
from tartools.cli.options import check_outputs as check_outputs
from tartools.cli.options import count_workers as count_workers
from tartools.cli.options import implicit_workers as implicit_workers
from tartools.errors import byte_size as byte_size
