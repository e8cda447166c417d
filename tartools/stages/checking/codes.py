"""The kinds of findings: code, weight, meaning and advice."""

from typing import NamedTuple

from tartools.samples.kinds import PAYLOAD_KINDS
from tartools.tar.groups import MACOS_METADATA

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)  # the exit status is 1 with errors and warnings


class Place(NamedTuple):
    """The place of a finding.

    `shard`: number of the input. `byte`: offset in its tar stream, or a row number in a table; -1 for none. `key`: of
    the sample, "" if the finding is about the shard. `detail`: description, which may be empty.
    """

    shard: int
    byte: int
    key: str
    detail: str = ""


class ShardFinding(NamedTuple):
    """A finding about a shard or table, about a place in a shard between samples, or about a row of a table.

    `code`: its kind, a key of CODES; "" if it was reported before. `byte`: offset in the stream, -1 for none. `key`: of
    the last sample before the place in a shard, or of the table row; "" if there is none. `detail`: description, which
    may be empty. `rows`: number of table rows that can't be read because of it.
    """

    code: str
    byte: int
    key: str
    detail: str
    rows: int = 0


class Code(NamedTuple):
    """A kind of finding.

    `weight`: "error", "warning" or "note". `means`: its meaning. `todo`: advice, both for users.
    `is_saved`: True if --fix writes samples with it though it is no note, since their data are sound.
    """

    weight: str
    means: str
    todo: str
    is_saved: bool = False


COPY_ADVICE = "copy or download the shard again; --fix recovers the intact samples"
RENAME_ADVICE = "rename the files before the archive is made"
DOTS_ADVICE = "--fix --dots last, or tarcat --dots last, cuts names at the last dot"
UNICODE_ADVICE = "give all names one form before the archive is made: convmv -f utf8 -t utf8 --nfc -r --notest FOLDER"
SORT_ADVICE = "tarsort brings the members of a key together"
TABLE_ADVICE = "tarindex --update makes the table again"
CARD_ADVICE = "copy the features below to README.md of the data set, or give all samples the same fields and types"
REPLACE_ADVICE = "replace the sample, or leave it out with --fix"

CODES = {
    # archives
    "cut-shard": Code(ERROR, "the archive ends inside a member", COPY_ADVICE),
    "no-end": Code(ERROR, "the archive has no end: it is truncated, or its writer omitted the end", COPY_ADVICE),
    "empty-shard": Code(ERROR, "the file is empty: 0 bytes", "run again what should have written it"),
    "not-tar": Code(ERROR, "the file is not a tar archive", "check what it is, and name only shards"),
    "split-part": Code(
        ERROR,
        "the file is one part of an archive that was split",
        "name all parts, which are read as one: 'x.tar.part*'",
    ),
    "missing-part": Code(
        ERROR,
        "the parts of an archive that was split are not whole: one is missing or named twice, or names differ in kind",
        "copy or download the missing part, and name all of them: 'x.tar.part*'",
    ),
    "bad-header": Code(ERROR, "the checksum of a header does not match", COPY_ADVICE),
    "bad-size": Code(ERROR, "the size in a header is not a number", COPY_ADVICE),
    "bad-extended": Code(ERROR, "an extended header (pax, long name) is damaged", COPY_ADVICE),
    "garbage-after-end": Code(ERROR, "bytes after the end are neither zeros nor an archive", COPY_ADVICE),
    "archive-after-end": Code(
        WARNING, "another archive follows the end, and most readers don't read it", "tarcat makes one of the two"
    ),
    "cut-compressed": Code(ERROR, "the compressed data end too early", COPY_ADVICE),
    "bad-compressed": Code(ERROR, "the compressed data are damaged", COPY_ADVICE),
    "garbage-after-compressed": Code(ERROR, "other bytes follow the compressed data", COPY_ADVICE),
    "checksum-differs": Code(ERROR, "the bytes have another checksum than --check-sums lists", COPY_ADVICE),
    "no-checksum": Code(
        WARNING,
        "the list of --check-sums does not have the shard",
        "make a new list: sha256sum train-*.tar > SHA256SUMS",
    ),
    "no-samples": Code(NOTE, "the archive has no samples", "leave the shard out"),
    "shard-size": Code(NOTE, "the shard is far smaller or larger than most", "tarsplit --shards makes equal shards"),
    # members without data
    "macos-metadata": Code(
        WARNING,
        "a file that macOS adds (._NAME, .DS_Store): datasets reads it as a sample, and it tears the one around it",
        "tarcat leaves these out of its copy; COPYFILE_DISABLE=1 tar on macOS writes none",
    ),
    "foreign-prefix": Code(
        WARNING,
        "times of tar -g, or other bytes, are where ustar has a prefix: webdataset and datasets read another key",
        "--fix writes headers that all read alike; so does tar without -g",
        is_saved=True,
    ),
    "link": Code(WARNING, "a link carries no data", "tar -h --hard-dereference stores files instead"),
    "device": Code(WARNING, "a device or fifo carries no data", "leave it out when the archive is made"),
    "sparse": Code(
        WARNING,
        "a sparse member is stored in pieces, which tools for samples do not read",
        "unpack and archive it without tar -S",
    ),
    "volume": Code(
        WARNING, "a member continues in, or comes from, another volume", "unpack and archive it without tar -M"
    ),
    # names
    "unsafe-path": Code(WARNING, "the name is absolute or contains '..'", RENAME_ADVICE),
    "control-character": Code(WARNING, "the name has control characters", RENAME_ADVICE),
    "not-utf-8": Code(NOTE, "the name is not UTF-8", RENAME_ADVICE),
    "unicode-form": Code(
        WARNING,
        "names differ only in their Unicode form (NFC, NFD), so readers treat them as different",
        UNICODE_ADVICE,
        True,
    ),
    "no-field": Code(NOTE, "the name has no field: no usable dot", "leave it out, or give it a suffix"),
    "hidden-file": Code(
        NOTE, "the base name begins with a dot, as files that systems leave in folders do", "leave it out"
    ),
    "reserved-name": Code(
        NOTE, "the name or the field begins with underscores, which some readers skip", RENAME_ADVICE
    ),
    "upper-case": Code(NOTE, "the field has capital letters, which some readers make lower case", RENAME_ADVICE),
    "dotted-name": Code(NOTE, "the name has several dots, and all that follows the first is the field", DOTS_ADVICE),
    # samples
    "torn-sample": Code(ERROR, "members of one key are not adjacent, and read as several samples", SORT_ADVICE),
    "split-sample": Code(ERROR, "members of one key are in different shards", SORT_ADVICE),
    "key-twice": Code(
        ERROR, "a key occurs again in its shard, with the same fields", "--fix --drop-duplicates keeps the first"
    ),
    "key-in-two-shards": Code(
        ERROR, "samples in different shards have the same key", "tarcat --rekey, or --fix --drop-duplicates"
    ),
    "field-twice": Code(ERROR, "a sample has a field twice", "--fix --drop-duplicates keeps the first"),
    "case-twice": Code(ERROR, "two fields of a sample differ in case only", RENAME_ADVICE),
    "several-samples": Code(
        WARNING,
        "names differ in a number after the first dot, where keys end: perhaps several samples are read as one",
        f"{DOTS_ADVICE}; if they are meant, name them by --expect",
        True,
    ),
    "missing-field": Code(
        WARNING,
        "a sample lacks a field that most have",
        f"{REPLACE_ADVICE}; --expect 'jpg;jpeg json' says what samples should have",
    ),
    "unexpected-field": Code(NOTE, "a sample has a field that most lack", "check where it comes from"),
    "many-fields": Code(
        WARNING, "there are more than 1,000 combinations of fields; perhaps keys contain dots", "tarstat lists fields"
    ),
    # payloads
    "empty-field": Code(WARNING, "the payload has no bytes", f"{REPLACE_ADVICE}; --ignore empty-field accepts it"),
    "suffix-lies": Code(
        WARNING,
        "the payload is not what its suffix says",
        "rename the field, or make it again; --ignore suffix-lies keeps it",
    ),
    "not-a-number": Code(
        WARNING,
        "webdataset and datasets read this field as a number, and it is not one",
        "store the number of the class, or call the field cls.txt; --ignore not-a-number keeps it",
    ),
    "pickle": Code(NOTE, "the payload is a pickle: reading it runs code", "read it only if you trust its maker"),
    "size-outlier": Code(
        NOTE, "the payload is far larger or smaller than most of its field", "inspect it with tarshow"
    ),
    "broken-picture": Code(ERROR, "the picture can't be decoded", REPLACE_ADVICE),
    "damaged-picture": Code(
        WARNING,
        "a strict decoder refuses the JPEG, though Pillow decodes it",
        "inspect it with tarshow; --ignore damaged-picture keeps it",
    ),
    "large-png-text": Code(
        WARNING,
        "a PNG has so much text, or so large a colour profile, that Pillow refuses it by default",
        "readers that use Pillow alone fail; gm mogrify -strip removes text and profile",
        True,
    ),
    "huge-picture": Code(
        WARNING,
        "the picture has more than 178,956,970 pixels, and Pillow refuses it by default",
        "resize it; readers that use Pillow fail unless they set PIL.Image.MAX_IMAGE_PIXELS",
        True,
    ),
    "large-picture": Code(
        NOTE,
        "the picture has more than 89,478,485 pixels, so Pillow warns; only some JPEGs of this size are decoded",
        "resize it, unless it is meant",
    ),
    "broken-compressed": Code(ERROR, "the compressed payload can't be unpacked", REPLACE_ADVICE),
    "json-constant": Code(
        WARNING,
        "the JSON has NaN or Infinity, which RFC 8259 excludes: jq, DuckDB, pyarrow and browsers refuse it",
        "write null instead",
        True,
    ),
    "json-encoding": Code(
        NOTE,
        "the JSON begins with a byte order mark, or is not UTF-8, which some readers refuse",
        "write it as UTF-8 without a mark",
    ),
    "broken-json": Code(ERROR, "the JSON can't be decoded", REPLACE_ADVICE),
    "broken-array": Code(ERROR, "the array can't be decoded", REPLACE_ADVICE),
    "broken-sound": Code(ERROR, "the sound can't be decoded", REPLACE_ADVICE),
    "broken-text": Code(ERROR, "the text is not UTF-8", REPLACE_ADVICE),
    # --for
    "reader-stops": Code(ERROR, "the reader of --for can't decode the field, and stops", REPLACE_ADVICE),
    "reader-skips": Code(WARNING, "the reader of --for skips the member because of its name", RENAME_ADVICE),
    "reader-codec": Code(
        WARNING,
        "the reader of --for can't decompress the shard: zst (before Python 3.14) or lz4",
        "tarcat x.tar.zst -o x.tar; gz, bz2 and xz are read, too",
    ),
    "hf-first-samples": Code(
        ERROR,
        "datasets takes the fields from the first five samples, and refuses these: they differ, or there are none",
        CARD_ADVICE,
    ),
    "hf-first-types": Code(
        ERROR,
        "datasets takes the types from the first five samples, and refuses these: values don't have one type",
        CARD_ADVICE,
    ),
    "hf-late-field": Code(WARNING, "datasets drops the field: the first five samples don't have it", CARD_ADVICE),
    "hf-late-type": Code(
        ERROR,
        "the values have another type than in the first five samples: datasets stops, or changes them",
        CARD_ADVICE,
    ),
    "hf-name": Code(
        ERROR,
        "datasets does not load the shard in a folder, because of its name",
        "name it train-000000.tar; --for hf is about all shards of the data set, with their names on the hub",
    ),
    "hf-split": Code(
        ERROR,
        "in a folder, datasets reads the shard in no split, or twice, or not as a split, because of its name",
        "name all shards train-*.tar, validation-*.tar, test-*.tar, or copy the configs below to the card",
    ),
    # tables
    "table-damaged": Code(ERROR, "the table can't be read", TABLE_ADVICE),
    "table-stale": Code(ERROR, "a shard has changed since the table was made", TABLE_ADVICE),
    "table-row": Code(ERROR, "a row does not match its shard", TABLE_ADVICE),
    "missing-shard": Code(ERROR, "the shard does not exist, or can't be opened", "restore it, or leave it out"),
}
# a kind of payloads that are decoded, and that has no row of its own above, gets one
for _kind in filter(lambda kind: kind.checks, PAYLOAD_KINDS):
    CODES.setdefault(_kind.code, Code(ERROR, f"the {_kind.name} can't be decoded", REPLACE_ADVICE))


def is_harmless(code: str) -> bool:
    """True if --fix writes samples with a finding of this *code*, a key of CODES: it is a note, or `is_saved`."""
    return CODES[code].weight == NOTE or CODES[code].is_saved


SPECIAL_CODES = {  # kinds of members that carry no data -> code
    "hard link": "link",
    "symbolic link": "link",
    "character device": "device",
    "block device": "device",
    "fifo": "device",
    "sparse file": "sparse",
    "continuation of another volume": "volume",
    MACOS_METADATA: "macos-metadata",
}
