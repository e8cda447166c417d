"""The table of schemes: one record for each scheme of URLs, from which code and messages follow.

A new scheme is a row here. `storage` reads and writes by it, `errors` shows URLs in messages by it.
"""

from typing import NamedTuple

IN_NAME, QUERY, PROVIDER = "name", "query", "provider"  # what a ? in a URL is, or begins


class Scheme(NamedTuple):
    """How URLs of a scheme are read, written, listed and shown.

    Attributes:
      module: the module of `tartools.storage`, imported when it is first needed; "" for an unknown scheme. Modules that
        begin with `objects.` are object stores: they speak a protocol, and `objects` reads and writes their objects.
      question: meaning of a ? in a URL: IN_NAME (part of the name), QUERY (never shown: it may be a signature), or
        PROVIDER (`?provider=aws` at the end).
      is_listed: True if the store lists objects; then wildcards expand.
      is_one_server: True if requests for all URLs of the scheme go to one endpoint, from the environment or the default
        of the store; False if a URL names its server, or there is none.
    """

    module: str
    question: str = IN_NAME
    is_listed: bool = False
    is_one_server: bool = False


SCHEMES = {
    "-": Scheme("local"),  # stdin or stdout
    "": Scheme("local"),  # a plain path
    "file": Scheme("local"),
    "pipe": Scheme("pipe"),
    "s3": Scheme("objects.s3", is_listed=True, is_one_server=True),
    "gs": Scheme("objects.gs", is_listed=True, is_one_server=True),
    "ais": Scheme("objects.ais", PROVIDER, is_listed=True, is_one_server=True),
    "aws": Scheme("objects.ais", is_listed=True, is_one_server=True),
    "gcp": Scheme("objects.ais", is_listed=True, is_one_server=True),
    "hf": Scheme("objects.hf", is_listed=True, is_one_server=True),
    "http": Scheme("objects.web", QUERY),
    "https": Scheme("objects.web", QUERY),
    "azure": Scheme("objects.azure", is_listed=True, is_one_server=True),
    "sftp": Scheme("objects.sftp", is_listed=True),
    "scp": Scheme("objects.sftp", is_listed=True),
    "ssh": Scheme("objects.sftp", is_listed=True),
    "hdfs": Scheme("fallback", QUERY),  # smart_open reads and writes this and the next ones; it cuts queries off
    "webhdfs": Scheme("fallback", QUERY),
    "ftp": Scheme("fallback", QUERY),
    "ftps": Scheme("fallback", QUERY),
}
UNKNOWN_SCHEME = Scheme("", QUERY)  # read by GOPEN_<SCHEME>, if that is set
STORES_PACKAGE = "objects."
# An archive that was split: its URL is made of those of its parts (`storage.split`), and can't be typed.
SPLIT, SPLIT_PREFIX = "split", "split:\0"
SPLIT_SCHEME = Scheme("split")


def scheme_record(scheme: str) -> Scheme:
    """Return the record of *scheme* from SCHEMES or SPLIT_SCHEME; UNKNOWN_SCHEME if there is none.

    >>> scheme_record("https").question, scheme_record("foo").module
    ('query', '')
    """
    return SPLIT_SCHEME if scheme == SPLIT else SCHEMES.get(scheme, UNKNOWN_SCHEME)


def listed_schemes() -> str:
    """Return the schemes whose stores list objects, in the order of SCHEMES, joined by commas, for a message.

    >>> listed_schemes()
    's3:, gs:, ais:, aws:, gcp:, hf:, azure:, sftp:, scp:, ssh:'
    """
    return ", ".join(f"{name}:" for name, record in SCHEMES.items() if record.is_listed)
