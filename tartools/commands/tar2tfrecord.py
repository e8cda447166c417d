r"""Write samples to a TFRecord file.

Writes one tf.train.Example per sample, with a feature for each field, and __key__ for the key; each is a list of one
value of bytes, the payload as it is. tf.data.TFRecordDataset and tf.io.parse_single_example read that, and so does
tarcreate --tfrecord, which gives back keys, fields and payloads byte for byte; its members are in the order of their
names. A name that ends in .gz is compressed by gzip, for TensorFlow's compression_type="GZIP"; other suffixes of codecs
(.zst ...) are for tarcreate only. This needs protobuf and google-crc32c, which the extra
tfrecord installs, but not TensorFlow.

-f chooses fields and gives them the names that a program expects: 'image/encoded=jpg image/class/label=cls'. Payloads
stay bytes: a class is the text of its number. The same samples give the same bytes. A field called __key__, two fields
of one name, names that are not UTF-8, and samples above 2 GiB are errors. A sample is held in memory three times.

Examples:
  Make a TFRecord file from shards:
    tar2tfrecord 'train-*.tar' -o train.tfrecord
  Make one with two features, called as TensorFlow's examples do:
    tar2tfrecord -f 'image/encoded=jpg image/class/label=cls' train.tar \
      -o train.tfrecord
  Make ten files of the shards, four at a time:
    tarjob -p 4 -s '{0..9}' -- tar2tfrecord train-{}.tar -o train-{}.tfrecord
"""

from collections.abc import Iterator

from tartools import cli
from tartools.commands._export import ExportOutput, SampleSelection, export
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.stages import select
from tartools.storage.outputformats import TFRECORD
from tartools.storage.streams import Sink


@cli.command(__doc__)
def tar2tfrecord(account: Account, source: cli.Inputs, selection: SampleSelection, output: ExportOutput) -> None:
    """Run the command."""
    from tartools.formats import textwrite, tfrecord
    from tartools.samples.columnfields import ChosenColumns

    words = select.parse_words(selection.fields) or None
    chosen = ChosenColumns(words, (), str if selection.verbatim or words is None else str.lower, hidden=False)

    def write(samples: Iterator[Sample], sink: Sink) -> None:
        textwrite.write_lines(tfrecord.frames(samples, account, chosen), sink)

    export(account, source, output, TFRECORD, write, selection, check=tfrecord.check_protobuf)
