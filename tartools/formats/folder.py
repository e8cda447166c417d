"""A folder of files as planned samples: chooses the files, and groups them to samples."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tartools.errors import SampleError, StorageError, printable, several
from tartools.formats.plan import PlannedMember, PlannedSample, group_parts
from tartools.samples.account import Account
from tartools.samples.encoding import split_codec, text_payload
from tartools.samples.filekeys import Dots, replace_early_dots
from tartools.samples.filetypes import NUMBER_SUFFIXES, suffix_of
from tartools.storage.names import local_url
from tartools.storage.url import Url
from tartools.tar import join_path, split_path

SUFFIX_SPELLINGS = {
    "jpeg": "jpg",
    "jpe": "jpg",
    "tiff": "tif",
    "text": "txt",
    "htm": "html",
    "yml": "yaml",
    "mpeg": "mpg",
}
SYSTEM_FILES = (b".ds_store", b"thumbs.db", b"desktop.ini")  # in any case; macOS also makes ._NAME
SYSTEM_FOLDERS = (b"@eadir", b"#recycle", b"__macosx", b"$recycle.bin", b"system volume information", b"lost+found")


class Folder(NamedTuple):
    """The folder `path`, and the choice of its files.

    `class_field`: field for the class of a sample, the name of its directory; a field of numbers, such as cls, gets the
        number of the class, and cls.txt the name; any other field gets the name. None: no class.
    `exclude`: globs of fnmatch, of files and folders that are left out. A glob with a slash matches a path relative to
        the folder, in which * matches slashes, too; any other the last part of a path.
    `tables`: paths of files, relative to the folder, that are no part of samples, since they are read otherwise.
    `dots`: "first" or "last": the dot of a file name at which a key ends; None: the first, with a warning where that
        looks wrong.
    `follow`: True to read the files and folders that symbolic links name.
    """

    path: str
    class_field: str | None = None
    exclude: Sequence[str] = ()
    dots: Dots = None
    follow: bool = False
    tables: Sequence[bytes] = ()


class Tree(NamedTuple):
    """The content of a folder and its folders.

    `files`: relative paths of regular files, as bytes. `specials`: (path, kind in words: "fifo"), both str, of special
    files and of links that are not followed or can't be; these paths begin with that of the folder. `left_out`:
    relative paths, as bytes, of excluded files and folders, of hidden folders (.NAME; hidden files are kept), and of
    files and folders that systems add (`is_left_out`); folders end in a slash, and their content is not listed.
    """

    files: list[bytes]
    specials: list[tuple[str, str]]
    left_out: list[bytes]


def plan_folder(folder: Folder, account: Account, skip_special: bool) -> list[PlannedSample]:
    """Return the samples in the tree of files below *folder*, sorted by the bytes of key and field.

    A member has the path of its file, relative to the folder; with `dots` "last", "_" replaces the dots of the base
    name before the last one. Its URL is that file, which is not read yet. With `class_field`, each sample also has its
    class, unless its file has no field. Hidden folders, excluded files and folders, and files and folders that systems
    add, are left out with a warning by *account*; `tables` without a warning. Special files, and links that are not
    followed or can't be, are reported as an omission; *skip_special*: they are left out silently. A folder without
    files gives [] and a warning. *account* also warns of samples that may be two (`warn_of_twins`,
    `warn_of_repeated_kinds`).

    Holds: all paths. Raises: StorageError for a directory that cannot be read; SampleError if a sample has a field
    twice, or, with `dots` "last", if files such as a.1.jpg and a_1.txt would get one key.
    """
    tree = list_tree(folder, account)
    if folder.tables:
        tree.files[:] = [path for path in tree.files if path not in folder.tables]
    left_out = [os.fsdecode(path) for path in sorted(tree.left_out)]
    report_left_out(printable(folder.path), left_out, [] if skip_special else tree.specials, "files", account)
    names = dict(zip(tree.files, tree.files, strict=True))
    if not names:
        account.warn(f"{printable(folder.path)}: no files, so the archive has no samples")
    if folder.dots == "last":
        names = {path: replace_early_dots(path) for path in tree.files}
        check_distinct_keys(names, folder.path)
    base = local_url(os.path.join(folder.path, ""))
    texts = os.fsdecode(b"\0".join(names)).split("\0")
    parts = [
        PlannedMember(name, b"", Url(base + text)) for name, text in zip(names.values(), texts, strict=bool(names))
    ]
    if folder.class_field is not None:
        parts += plan_class_members(folder.path, folder.class_field, names, account)
    parts.sort(key=lambda part: split_path(part.path))
    samples = list(group_parts(parts, folder.path))
    joined = [sample for sample in samples if len(sample.parts) > 1]
    warn_of_twins([[part.path for part in parts] for _, parts in joined], account)
    if folder.dots is None:
        warn_of_repeated_kinds(joined, account)
    return samples


def plan_class_members(folder: str, field: str, names: dict[bytes, bytes], account: Account) -> Iterator[PlannedMember]:
    """Yield the members that say the class of each sample of *folder*, a path: the name of the directory that it is in.

    *field*: the field for the class; each sample gets one member or two, as `class_members` makes them. Samples come in
    no order. *names*: path of each file, relative to the folder -> its name in the archive. The class of files in no
    directory is the name of the folder, with a warning by *account*. Files without a field get no class.
    """
    top = os.path.basename(os.path.abspath(folder))
    keys = {key for key, field in map(split_path, names.values()) if field}
    if above := [os.fsdecode(path) for path in sorted(names) if b"/" not in path and split_path(names[path])[1]]:
        suffix = f" and {len(above) - 1:,} more" if above[1:] else ""
        reason = f"in no class folder: the class is the name of the whole folder, {top!r}"
        account.warn(f"{above[0]!r}{suffix} {reason}")
    labels = {key: os.path.basename(os.path.dirname(key)) or os.fsencode(top) for key in keys}
    numbers = number_classes(field, labels.values(), account)
    for key, label in labels.items():
        for path, payload in class_members(key, field, label, numbers):
            yield PlannedMember(path, payload)


def number_classes(field: str, labels: Iterable[bytes], account: Account) -> dict[bytes, int]:
    """Return the number of each class in *labels*, by name; {} unless the suffix of *field* is for numbers, as cls is.

    Numbers count from 0 in the order of the names' bytes, and *account* warns which name has which. If all names are
    whole numbers (no leading zeros, up to 18 digits), they stand for themselves, without a warning. *labels*: names of
    classes, which may repeat.
    """
    if suffix_of(split_codec(field)[0]) not in NUMBER_SUFFIXES:
        return {}
    names = sorted(set(labels))
    if all(re.fullmatch(b"0|[1-9][0-9]{0,17}", name) for name in names):
        return {name: int(name) for name in names}
    listed = ", ".join(f"{number} {printable(os.fsdecode(name))}" for number, name in enumerate(names))
    account.warn(f"{field}: {listed}")
    return {name: number for number, name in enumerate(names)}


def class_members(key: bytes, field: str, label: bytes, numbers: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return (path, payload) of the members that say the class *label* of the sample *key*.

    With *numbers* of classes, *field* has its number, and a field with .txt behind (cls.txt) its name; with {}, *field*
    has its name. The payload of *field* is compressed if it ends in the suffix of a codec; the name of the class for
    cls.gz is in cls.txt, not compressed.
    """
    texts = {field: label}
    if numbers:
        texts = {field: b"%d" % numbers[label], split_codec(field)[0] + ".txt": label}
    paths = [(join_path(key, os.fsencode(name)), text) for name, text in texts.items()]
    return [(path, text_payload(path, text)) for path, text in paths]


def report_left_out(
    where: str, left_out: Sequence[str], items: Sequence[tuple[str, str]], noun: str, account: Account
) -> None:
    """Warn of files *left_out* of *where*, and report *items*, (name, kind) of links and special files, as an omission.

    Each message names the first and counts the others; there is none for an empty sequence. *where*: the folder or zip
    file, as messages call it. *noun*: "files" or "members", for the message.
    """
    if left_out:
        end = f" and {len(left_out) - 1:,} more" if len(left_out) > 1 else ""
        account.warn(f"{where}: left out {printable(left_out[0])}{end}")
    if items:
        name, kind = items[0]
        end = f"; nor are {len(items) - 1} more such {noun}" if len(items) > 1 else ""
        advice = "--follow reads the files that links name, " if kind == SYMBOLIC_LINK and noun == "files" else ""
        account.omit(
            f"{printable(name)}: a {kind} is not followed and not stored{end} ({advice}--skip-special accepts that)"
        )


SYMBOLIC_LINK = "symbolic link"


class _FolderToList(NamedTuple):
    """A folder of the tree that `list_tree` has yet to list.

    `path`: relative to the top; b"" for the top itself. `above`: (device, inode) of the folders that contain it, to
    find links that form a loop; empty if links are not followed.
    """

    path: bytes
    above: frozenset[tuple[int, int]]


def list_tree(folder: Folder, account: Account) -> Tree:
    """Return the tree below *folder*: `files` and `left_out` unordered, `specials` sorted by path.

    With `follow`, a link to a folder above it is one of `specials`. `tables` are among the files. *account* warns of a
    glob that matches nothing.
    Raises: StorageError for a directory that cannot be read.
    """
    from fnmatch import translate

    globs = {glob: re.compile(translate(glob.removeprefix("./").rstrip("/"))) for glob in folder.exclude}
    unused = dict.fromkeys(globs)
    tree = Tree([], [], [])
    pending = [_FolderToList(b"", frozenset())]
    while pending:
        inside, above = pending.pop()
        where = os.path.join(os.fsencode(folder.path), inside) if inside else os.fsencode(folder.path)
        prefix = inside + b"/" if inside else b""
        try:
            if folder.follow:
                status = os.stat(where)
                if (status.st_dev, status.st_ino) in above:
                    tree.specials.append((os.fsdecode(where), "link to a folder above it"))
                    continue
                above |= {(status.st_dev, status.st_ino)}
            with os.scandir(where) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    matches = (
                        [glob for glob, pattern in globs.items() if _matches_glob(glob, pattern, path)] if globs else ()
                    )
                    for glob in matches:
                        unused.pop(glob, None)
                    follow = folder.follow and not is_broken_link(entry)
                    is_folder = entry.is_dir(follow_symlinks=follow)
                    if matches or is_left_out(entry.name, is_folder):
                        tree.left_out.append(path + b"/" * is_folder)
                    elif is_folder:
                        pending.append(_FolderToList(path, above))
                    elif entry.is_file(follow_symlinks=follow):
                        tree.files.append(path)
                    else:
                        tree.specials.append((os.fsdecode(entry.path), kind_of_entry(entry, folder.follow)))
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=os.fsdecode(where)) from error
    for glob in unused:
        account.warn(f"{printable(folder.path)}: nothing matches --exclude-files {glob!r}")
    tree.specials.sort()
    return tree


def _matches_glob(glob: str, pattern: re.Pattern[str], path: bytes) -> bool:
    """True if *glob* matches *path*: all of it if *glob* has a slash, else its last part.

    "./" at the begin of *glob* and slashes at its end don't count. *pattern*: the glob without these, compiled.
    """
    is_path_glob = "/" in glob.removeprefix("./").rstrip("/")
    return bool(pattern.match(os.fsdecode(path if is_path_glob else os.path.basename(path))))


def is_left_out(name: bytes, is_folder: bool) -> bool:
    """True if `tarcreate --folder` leaves out *name*: a folder .NAME, or a file or folder that systems add.

    Systems add the names in SYSTEM_FILES and SYSTEM_FOLDERS, in any case, and files called ._NAME. *is_folder*: True if
    it is the name of a folder.

    >>> [is_left_out(name, True) for name in (b".git", b"@eaDir", b"cat")], is_left_out(b".hid.jpg", False)
    ([True, True, False], False)
    """
    if is_folder:
        return (name.startswith(b".") and name not in (b".", b"..")) or name.lower() in SYSTEM_FOLDERS
    return name.startswith(b"._") or name.lower() in SYSTEM_FILES


def is_broken_link(entry: os.DirEntry[bytes]) -> bool:
    """True if *entry* is a symbolic link that can't be followed, such as one to nothing or to itself."""
    try:
        entry.stat()
    except OSError:
        return entry.is_symlink()
    return False


def kind_of_entry(entry: os.DirEntry[bytes], follow: bool) -> str:
    """Return the kind of *entry*, neither a regular file nor a folder: "symbolic link", "fifo", "socket" or "device".

    *follow*: True if links are followed: then the kind is that of the link's target, or "broken symbolic link".
    """
    try:
        mode = entry.stat(follow_symlinks=follow).st_mode
    except OSError:
        return "broken symbolic link"
    kinds = ((stat.S_ISLNK, SYMBOLIC_LINK), (stat.S_ISFIFO, "fifo"), (stat.S_ISSOCK, "socket"))
    return next((kind for test, kind in kinds if test(mode)), "device")


def check_distinct_keys(names: dict[bytes, bytes], folder: str) -> None:
    """Raise SampleError if two files get one key although their paths differ before the field: a.1.jpg and a_1.txt.

    *names*: path of each file -> its name in the archive, in which dots before the last one became underscores.
    *folder*: the folder of the files, for the message.
    """
    stems: dict[bytes, tuple[bytes, bytes]] = {}
    for path in sorted(names):
        key, field = split_path(names[path])
        stem = path[: len(path) - len(field) - 1] if field else path
        earlier_stem, first = stems.setdefault(key, (stem, path))
        if earlier_stem != stem:
            both = " and ".join(repr(os.fsdecode(name)) for name in (first, path))
            raise SampleError(
                f"with --dots last, {both} would both have the key {os.fsdecode(key)!r}; rename one of them", url=folder
            )


def warn_of_twins(samples: Iterable[Sequence[bytes]], account: Account) -> None:
    """Warn if a sample has two members whose fields are equal but for case or the spelling of a type: a.JPG and a.jpeg.

    The last suffix of a field is compared by type: a.left.jpg and a.left.jpeg are twins, too; a.left.jpg and
    a.right.jpg are none. Spellings: `SUFFIX_SPELLINGS`. There is one warning by *account* for all *samples*, each given
    as the paths of its members; it names the first twins and counts the samples.
    """
    twins: list[str] = []
    for paths in samples:
        kinds: dict[str, bytes] = {}
        for path in paths:
            start, dot, suffix = os.fsdecode(split_path(path)[1]).lower().rpartition(".")
            first = kinds.setdefault(start + dot + SUFFIX_SPELLINGS.get(suffix, suffix), path)
            if first is not path:
                twins.append(f"{os.fsdecode(first)!r} and {os.fsdecode(path)!r}")
                break
    if twins:
        end = f" ({several(len(twins) - 1, 'more sample')} like it)" if len(twins) > 1 else ""
        account.warn(f"{twins[0]} become one sample, since only their suffixes differ{end}: rename one if they are two")


def warn_of_repeated_kinds(samples: Sequence[PlannedSample], account: Account) -> None:
    """Warn if a sample has two fields with a dot that end in one suffix, such as 1.jpg and 2.jpg, ignoring its case.

    They may be files of different samples. There is one warning by *account* for all *samples*.
    """
    twins: list[tuple[bytes, bytes, bytes]] = []
    for key, parts in samples:
        kinds: dict[bytes, bytes] = {}
        for field in (split_path(part.path)[1] for part in parts):
            if b"." in field and (first := kinds.setdefault(field.rpartition(b".")[2].lower(), field)) != field:
                twins.append((key, first, field))
                break
    if twins:
        example, *both = map(os.fsdecode, twins[0])
        end = f" ({several(len(twins) - 1, 'more sample', 'more samples')} like it)" if len(twins) > 1 else ""
        account.warn(
            f"the sample {example!r} gets two fields of one kind, {both[0]!r} and {both[1]!r}{end}: a key ends at the "
            "first dot of the file name (--dots last: at the last one; --dots first accepts this)"
        )
