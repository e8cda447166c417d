"""Suffixes of outputs, and how a table is recognized.

All commands refuse a name with the suffix of another format than they write. A name without a suffix, or with one that
is not in `OUTPUT_FORMATS`, may be the output of any command.
"""

from typing import NamedTuple

from tartools.errors import UsageError
from tartools.storage.url import Url


class OutputFormat(NamedTuple):
    """A format of outputs.

    *name*: the word for messages.
    *suffixes*: suffixes that mean this format, without a dot; the first is the usual one.
    *writes*: the command that writes it; "" if none of tartools does.
    *other_suffixes*: suffixes of other formats that a user may choose for it.
    """

    name: str
    suffixes: tuple[str, ...]
    writes: str = ""
    other_suffixes: tuple[str, ...] = ()

    @property
    def is_packed(self) -> bool:
        """True if the suffix of a codec (.gz) may follow the suffix of the format; then the output is compressed."""
        return self.name in ("tar", "TSV", "CSV", "JSON lines", "TFRecord")


# a table, if the samples are in shards already
SHARD_FORMAT = OutputFormat("tar", ("tar", "tgz"), "tarcat", ("parquet",))
PARQUET = OutputFormat("Parquet", ("parquet", "pq"), "tarindex or tar2parquet")
ZIP = OutputFormat("zip", ("zip",), "tar2zip")
TFRECORD = OutputFormat("TFRecord", ("tfrecord", "tfrecords"), "tar2tfrecord")
TSV = OutputFormat("TSV", ("tsv", "tab"), "tar2tsv", ("txt",))
CSV = OutputFormat("CSV", ("csv",), "tar2tsv --csv", ("txt",))
JSON_LINES = OutputFormat("JSON lines", ("jsonl", "ndjson"), "tar2jsonl", ("json", "txt"))
HTML = OutputFormat("HTML", ("html", "htm"), "tarshow --html")
OTHER_FORMATS = (
    OutputFormat("text", ("txt", "md", "json", "yaml", "xml", "py", "sh")),
    OutputFormat("a picture", ("jpg", "jpeg", "png", "gif", "webp", "tif", "tiff", "bmp", "svg")),
    OutputFormat("a sound or a video", ("wav", "mp3", "flac", "ogg", "mp4", "webm", "mkv", "avi", "mov")),
    OutputFormat("data of another kind", ("pdf", "npy", "npz", "pt", "pth", "h5", "hdf5", "arrow", "xlsx", "db")),
    OutputFormat("another archive or compression", ("7z", "rar", "lzma", "lz", "z", "br", "sz")),
)
PARQUET_MAGIC, PARQUET_SUFFIX = b"PAR1", ".parquet"  # the first and last bytes of a table, and the suffix of one
CODEC_SUFFIXES = ("gz", "bz2", "xz", "zst", "lz4")
OUTPUT_FORMATS = {
    suffix: form
    for form in (*OTHER_FORMATS, SHARD_FORMAT, PARQUET, ZIP, TFRECORD, TSV, CSV, JSON_LINES, HTML)
    for suffix in form.suffixes
}


def is_table_name(url: str) -> bool:
    """True if the output *url* is a table of samples and not a shard: its name ends in .parquet, ignoring case.

    >>> is_table_name("s3://b/good.parquet"), is_table_name("pipe:cat > good.parquet")
    (True, False)
    """
    return (
        PARQUET_SUFFIX in url.lower() and Url(url).scheme != "pipe" and Url(url).name.lower().endswith(PARQUET_SUFFIX)
    )


def check_format(url: str, form: OutputFormat) -> None:
    """Raise UsageError if the output *url* has a suffix that means another format than *form*.

    The suffix is the text behind the last dot of its name, in capital or small letters. Unknown suffixes, none,
    `form.other_suffixes`, stdout and commands are fine. If `form.is_packed`, the suffix of a codec may follow, and the
    one before it counts; else it is an error.

    >>> check_format("a.tsv.gz", TSV), check_format("a.v2", SHARD_FORMAT), check_format("pipe:cat", SHARD_FORMAT)
    (None, None, None)
    """
    if Url(url).scheme in ("-", "pipe"):
        return
    words = Url(url).name.rpartition("/")[2].lower().split(".")
    if form.is_packed and words[-1] in CODEC_SUFFIXES:
        del words[-1]
    suffix = words[-1] if len(words) > 1 else ""
    named_format = OUTPUT_FORMATS.get(suffix) or (
        OutputFormat("compressed data", CODEC_SUFFIXES) if suffix in CODEC_SUFFIXES else None
    )
    if named_format is None or named_format == form or suffix in form.other_suffixes:
        return
    advice = f"; {named_format.writes} writes {named_format.name}" if named_format.writes else ""
    raise UsageError(
        f".{suffix} says {named_format.name}, and this writes {form.name}: name it .{form.suffixes[0]}{advice}", url=url
    )
