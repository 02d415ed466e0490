"""Settings: dataclasses in code, TOML on disk, `key=value` on the command line.

A recipe's configuration is a dataclass of dataclasses, one for each section of the file. Keys are checked
against the fields, values against their types; what is not written in a file has the default that the code
states.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from structattn.recipes.errors import UserError, did_you_mean

Config = TypeVar("Config")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    # TOML's own, text that is not UTF-8, integers of 5,000 digits
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def build(config_class: type[Config], table: Mapping[str, Any], origin: str = "") -> Config:
    """The dataclass filled from a table of the same shape. `origin` is named when something is wrong."""
    return _build(config_class, table, "", origin)


def _build(config_class: type[Config], table: Mapping[str, Any], prefix: str, origin: str) -> Config:
    hints = typing.get_type_hints(config_class)
    named = {field.name for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    where = f"{origin}: " if origin else ""
    values = {}
    for key, value in table.items():
        if key not in named:
            near = did_you_mean(prefix + key, [prefix + name for name in named])
            raise UserError(f'{where}unknown key "{prefix}{key}"{near}')
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UserError(f"{where}{prefix}{key} is a section, not a value")
            values[key] = _build(hints[key], value, f"{prefix}{key}.", origin)
        else:
            values[key] = _checked(value, hints[key], prefix + key, where)
    return config_class(**values)


def _checked(value: Any, expected: Any, key: str, where: str) -> Any:
    """The value as the type that the field has; an integer will do for a float."""
    options = typing.get_args(expected) if isinstance(expected, types.UnionType) else (expected,)
    for option in options:
        if option is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if typing.get_origin(option) is list and isinstance(value, list):
            (item,) = typing.get_args(option)
            return [_checked(one, item, key, where) for one in value]
        is_one = isinstance(option, type) and isinstance(value, option)
        if is_one and isinstance(value, bool) == (option is bool):  # True is an integer to Python, not to us
            return value
    wanted = str(getattr(expected, "__name__", expected) if typing.get_origin(expected) is None else expected)
    raise UserError(f"{where}{key} must be {wanted}, not {value!r}")


def table_of(config: Any) -> dict[str, Any]:
    """The nested table of a configuration; what is None is left out, for TOML has no word for it."""
    return {
        field.name: table_of(value) if dataclasses.is_dataclass(value) else value
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) is not None
    }


def dotted_keys(config_class: type[Any], prefix: str = "") -> Iterator[str]:
    """Every key that a configuration of this class has, with its sections."""
    for key, kind in typing.get_type_hints(config_class).items():
        if dataclasses.is_dataclass(kind):
            yield from dotted_keys(kind, f"{prefix}{key}.")  # type: ignore[arg-type]
        else:
            yield prefix + key


def override(config: Config, assignments: Iterable[str]) -> Config:
    """The configuration with `section.key=value` applied; the section may be left out if that is clear."""
    table = table_of(config)
    known = list(dotted_keys(type(config)))
    for assignment in assignments:
        given, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f'"--set {assignment}" lacks a value: write --set key=value')
        matching = [name for name in known if name == given or name.endswith("." + given)]
        if not matching:
            raise UserError(f'unknown key "{given}"{did_you_mean(given, known)}')
        if len(matching) > 1:
            raise UserError(f'"{given}" could be {" or ".join(matching)}: write one of them in full')
        *sections, key = matching[0].split(".")
        target = table
        for section in sections:
            target = target[section]
        target[key] = _value_of(text)
    return build(type(config), table)


def _value_of(text: str) -> Any:
    """The value as TOML reads it; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def write_toml(config: Any, heading: str = "") -> str:
    """The configuration as TOML text: plain values first, then a section each."""
    lines = [f"# {line}" for line in heading.splitlines()]
    _write_section(table_of(config), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_section(table: Mapping[str, Any], name: str, lines: list[str]) -> None:
    if name:
        lines += ["", f"[{name}]"]
    # JSON's strings, numbers, booleans and lists are TOML's too.
    lines += [
        f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, Mapping)
    ]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write_section(value, f"{name}.{key}" if name else key, lines)
