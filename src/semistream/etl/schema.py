"""The JSON schema of pipeline files, for editors that complete and check TOML."""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from semistream.core.join import HOWS
from semistream.etl.duplicates import KEEP
from semistream.etl.pipeline import KINDS, Pipeline
from semistream.etl.unmatched import MISSING as RULES
from semistream.joins.registry import list_joins
from semistream.store.file import IO_MODES

_CHOICES: dict[str, typing.Sequence[str]] = {
    "how": HOWS,
    "algorithm": list_joins(),
    "io": IO_MODES,
    "missing": RULES,
    "keep": KEEP,
    "kind": tuple(KINDS),
}
"""Fields that take one of a few words."""

_PLAIN = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}


def pipeline_schema() -> dict[str, Any]:
    """The schema of a pipeline file (JSON Schema, draft 2020-12), made from its records."""
    schema = _object(Pipeline)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A pipeline of semistream",
        **schema,
    }


def _object(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties = {}
    required = []
    for one in fields(kind):
        properties[one.name] = _of(hints[one.name], one.name)
        if one.default is not MISSING and isinstance(one.default, str | int | float | bool):
            properties[one.name]["default"] = one.default
        if one.default is MISSING and one.default_factory is MISSING:
            required.append(one.name)
    found: dict[str, Any] = {
        "type": "object",
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        found["required"] = required
    return found


def _of(hint: Any, name: str) -> dict[str, Any]:
    if isinstance(hint, types.UnionType):
        options = [one for one in typing.get_args(hint) if one is not types.NoneType]
        if len(options) == 1:
            return _of(options[0], name)
        return {"anyOf": [_of(one, name) for one in options]}
    origin = typing.get_origin(hint) or hint
    if origin is tuple:
        item = typing.get_args(hint)[0]
        several = {"type": "array", "items": _of(item, ""), "minItems": 1}
        # A list of names may be one name.
        return {"anyOf": [{"type": "string"}, several]} if item is str else several
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(typing.get_args(hint)[1], "")}
    if is_dataclass(origin) and isinstance(origin, type):
        return _object(origin)
    plain: dict[str, Any] = {"type": _PLAIN[origin]}
    if origin is str and name in _CHOICES:
        plain["enum"] = list(_CHOICES[name])
    return plain
