"""JSON and JSON lines: described with indentation, checked for values and encodings that some readers refuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tartools.errors import printable
from tartools.samples.kinds.kind import HEAD_BYTES, MAX_TEXT_COLUMNS, Description, Finding, PayloadKind
from tartools.samples.kinds.texts import MAX_TEXT_LINES, cut, cut_text, describe_text, guess_type
from tartools.samples.payloads import parse_json
from tartools.tar import Member

JSON_LIMIT = 1 << 20  # bytes; longer JSON is shown as plain text
MAX_JSON_LINES_COUNTED = 10_000  # lines of JSON that are counted
ENCODINGS = {"utf-8-sig": "a byte order mark"}  # Python's name -> description


def _is_json_suffix(suffix: str, _head: bytes) -> bool:
    """True if *suffix*, the suffix of a field in lower case, is "json"; JSON lines are described as text."""
    return suffix == "json"


def describe_document(member: Member, head: bytes, _decode: bool) -> Description:
    """Return the description of the JSON *member*: "JSON" and its lines, indented; "JSON: 5" for one short line.

    Up to 12 lines of 100 characters are shown. If it has more than 1 MiB, it is described as text; if it can't be
    parsed, `what` begins "not JSON", with the reason, and the lines are text. The kind is "", unless it has more than
    1 MiB.
    *head*: its first 64 KiB. Holds: the value, and the lines that are shown.
    """
    if member.size > JSON_LIMIT:
        return describe_text(member, head)
    import json

    payload = member.read()
    try:
        lines = first_lines(json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(parse_json(payload)))
    except (ValueError, RecursionError) as error:
        shown = cut_text(payload[:HEAD_BYTES], whole=len(payload) <= HEAD_BYTES) or guess_type(payload)
        return Description(f"not JSON ({printable(str(error))[:MAX_TEXT_COLUMNS]}), {shown.what}", shown.lines)
    if len(lines) == 1 and len(lines[0]) <= MAX_TEXT_COLUMNS:
        return Description(f"JSON: {printable(lines[0])}")
    return Description("JSON", cut(lines, whole=len(lines) < MAX_TEXT_LINES + MAX_JSON_LINES_COUNTED))


def first_lines(parts: Iterable[str]) -> list[str]:
    """Return the lines of the text in *parts*, which are read no further than the one with newline 10,012.

    Nested JSON can have very many lines: up to `MAX_TEXT_LINES` are shown, and `MAX_JSON_LINES_COUNTED` are counted.
    """
    text, ends = [], 0
    for part in parts:
        text.append(part)
        ends += part.count("\n")
        if ends >= MAX_TEXT_LINES + MAX_JSON_LINES_COUNTED:
            break
    return "".join(text).split("\n")


def check_json(member: Member) -> Iterator[Finding]:
    """Yield findings, (code, reason), about the JSON *member*: NaN and Infinity, and another encoding than UTF-8.

    The codes are "json-constant" and "json-encoding", each at most once. Raises: ValueError if it is not JSON;
    StorageError if the file has changed, already when it is called.
    """
    return _check_documents([member.read()])


def check_json_lines(member: Member) -> Iterator[Finding]:
    """Yield findings, (code, reason), about the JSON lines *member*: NaN and Infinity, another encoding than UTF-8.

    The codes are "json-constant" and "json-encoding", each at most once, for the first line that has it. Blank lines
    are skipped. Raises, before it yields anything: ValueError if a line is not JSON; StorageError if the file has
    changed.
    """
    with member.open() as file:
        yield from _check_documents(line for line in file if line.strip())


def _check_documents(documents: Iterable[bytes]) -> Iterator[Finding]:
    """Yield findings, (code, reason), about *documents*: the first NaN or Infinity, and the first encoding but UTF-8.

    Some readers refuse these. ("json-constant", "NaN"); ("json-encoding", "UTF-16" or "a byte order mark").
    Raises, before it yields anything: ValueError if one of *documents* is not JSON.
    """
    import json

    constants: list[str] = []
    encoding = ""
    for document in documents:
        parse_json(document, constants)
        detected = json.detect_encoding(document)
        encoding = encoding or ("" if detected == "utf-8" else detected)
    if constants:
        yield "json-constant", constants[0]
    if encoding:
        yield "json-encoding", ENCODINGS.get(encoding, encoding.upper())


JSON_KIND = PayloadKind(
    name="JSON",
    code="broken-json",
    recognize=_is_json_suffix,
    describe=describe_document,
    checks={"json": check_json, "jsonl": check_json_lines},
)
