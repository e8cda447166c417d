r"""Write samples to a TFRecord file.

Writes one tf.train.Example per sample, with a feature for each field, and __key__ for the key; each is a list of one
bytes value, the unchanged payload. tf.data.TFRecordDataset and tf.io.parse_single_example read these, and so does
tarcreate --tfrecord, which restores keys, fields and payloads byte for byte, with members sorted by name. An output
that ends in .gz is compressed with gzip, for TensorFlow's compression_type="GZIP"; files with other codec suffixes
(.zst ...) can be read by tarcreate only. This needs protobuf and google-crc32c, installed by the extra tfrecord, but
not TensorFlow.

-f selects fields and gives them the names that a program expects: 'image/encoded=jpg image/class/label=cls'. Payloads
stay bytes: a class is the text of its number. The same samples give the same bytes. A field called __key__, duplicate
names, names that are not UTF-8, and samples larger than 2 GiB are errors. A sample is held in memory three times.

Examples:
  Make a TFRecord file from shards:
    tar2tfrecord 'train-*.tar' -o train.tfrecord
  Name the features as in TensorFlow's examples:
    tar2tfrecord -f 'image/encoded=jpg image/class/label=cls' train.tar \
      -o train.tfrecord
  Make ten files from ten shards, four at a time:
    tarjob -p 4 --spec '{0..9}' -- tar2tfrecord train-{}.tar \
      -o train-{}.tfrecord
"""

from collections.abc import Iterator

from tartools import cli
from tartools.commands._export import ExportOutput, SampleSelection, export
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.stages import select
from tartools.storage.outputformats import TFRECORD
from tartools.storage.streams import Sink, write_lines


@cli.command(__doc__)
def tar2tfrecord(account: Account, source: cli.Inputs, selection: SampleSelection, output: ExportOutput) -> None:
    """Write the samples of *source* to the TFRecord file *output*, a record for each.

    *selection*: the fields to write, and how many samples; a sample without any of these fields is left out. The exit
    status is 0, but 1 after an omission, such as a link in a shard. Raises: TarToolsError, such as SampleError for a
    duplicate or impossible name, a sample above 2 GiB, and a word of -f that no sample has a field for.
    """
    from tartools.formats import tfrecord
    from tartools.samples.columnfields import ChosenColumns

    words = select.parse_words(selection.fields) or None
    chosen = ChosenColumns(words, (), str if selection.verbatim or words is None else str.lower, skip_underscored=False)

    def write(samples: Iterator[Sample], sink: Sink) -> None:
        """Write a framed tf.train.Example to *sink* for each sample; leave out samples without a chosen field."""
        write_lines(tfrecord.make_frames(samples, account, chosen), sink)

    export(account, source, output, TFRECORD, write, selection, check=tfrecord.check_protobuf)
