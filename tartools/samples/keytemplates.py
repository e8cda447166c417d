"""Templates of keys: the syntax of `str.format`, with names of fields or columns, which may have dots in them."""

from __future__ import annotations

from collections.abc import Collection


def parse_template(template: str, reserved: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return *template* with placeholders for `str.format`, and a dict: placeholder -> name of the field.

    Each field in braces gets a placeholder of its own: "field0", "field1" and so on, also for a name that comes twice.
    *reserved*: names in the template that are no fields; they stay, also with an index behind them, as in "{key[0]}".
    Braces inside a format, as in "{a:{b}}", are not replaced. Raises: ValueError for a template that `str.format` can't
    parse, such as "{a" (a wrong format, as in "{a:?}", is found only by `str.format`).

    >>> parse_template("{index:03d}-{seg.png}", ["index"])
    ('{index:03d}-{field0}', {'field0': 'seg.png'})
    """
    from string import Formatter

    format_text = ""
    fields: dict[str, str] = {}
    for literal, name, spec, conversion in Formatter().parse(template):
        format_text += literal.replace("{", "{{").replace("}", "}}")
        if name is None:
            continue
        # a field gets a placeholder of ours: `str.format` would take seg.png for an attribute of seg
        if name.partition("[")[0] not in reserved:
            fields[f"field{len(fields)}"] = name
            name = f"field{len(fields) - 1}"
        format_text += f"{{{name}{'!' if conversion else ''}{conversion or ''}{':' if spec else ''}{spec}}}"
    return format_text, fields
