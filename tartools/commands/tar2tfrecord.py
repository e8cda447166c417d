r"""Write samples to a TFRecord file.

Writes one tf.train.Example per sample, with a feature for each field, and __key__ for the key; each is a list of one
value of bytes, the payload as it is. tf.data.TFRecordDataset and tf.io.parse_single_example read that, and so does
tarcreate --tfrecord, which gives back keys, fields and payloads byte for byte; its members are in the order of their
names. A name that ends in .gz is compressed by gzip, for TensorFlow's compression_type="GZIP"; other suffixes of codecs
(.zst ...) are for tarcreate only. TensorFlow is not needed, but protobuf and google-crc32c,
which the extra tfrecord brings.

-f chooses fields and gives them the names that a program expects: 'image/encoded=jpg image/class/label=cls'. Payloads
stay bytes: a class is the text of its number. The same samples give the same bytes. A field called __key__, two fields
of one name, names that are not UTF-8, and samples above 2 GiB are errors. A sample is held in memory three times.

Examples:
  Make a TFRecord file from shards:
    tar2tfrecord 'train-*.tar' -o train.tfrecord
  Make one with two features, called as TensorFlow's examples do:
    tar2tfrecord -f 'image/encoded=jpg image/class/label=cls' train.tar -o train.tfrecord
  Make ten files of the shards, four at a time:
    tarjob -p 4 -s '{0..9}' -- tar2tfrecord train-{}.tar -o train-{}.tfrecord
"""

import os

from tartools import cli, storage
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.shards.reading import Reading, closing_upstream, read_samples
from tartools.storage.expand import expand
from tartools.tar import compression


@cli.command(__doc__)
def tar2tfrecord(
    account: Account, source: cli.Inputs, wanted: cli.Fields, url: cli.Url = "-", force: cli.Force = False
) -> None:
    """Run the command."""
    from tartools.formats import tfrecordmessage, tfrecordwrite, tsv
    from tartools.samples.payloads import ChosenColumns
    from tartools.stages import select

    urls = expand(*source.named)
    storage.check_output(url, force, urls)
    if url == "-" and os.isatty(1):
        raise UsageError("stdout is a terminal, which cannot show a TFRecord file: use -o FILE, > FILE or a pipe")
    words = select.pairs(wanted.fields) or None
    chosen = ChosenColumns(words, (), str if wanted.verbatim or words is None else str.lower, hidden=False)
    samples = read_samples(urls, account, Reading(source.lax, source.skip_special))
    tfrecordmessage.check_installed()
    if wanted.exclude:
        samples = select.fields(samples, (), " ".join(wanted.exclude).split(), account, verbatim=wanted.verbatim)
    with closing_upstream(samples), compression.writing(url, force) as sink:
        tsv.write_lines(tfrecordwrite.records(samples, account, chosen), sink)
        account.check()
