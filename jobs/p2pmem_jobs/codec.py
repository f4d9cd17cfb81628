"""Typed values as text: what arguments, results of steps and results of jobs may be, and how they are stored.

None, bool, int, finite float, str, bytes, enums, dataclasses, and lists, tuples, dicts with text keys, and `| None` of
them. The declared type decides: a dataclass comes back as that dataclass. Where nothing is declared only plain values
pass, because nothing else would come back as it went in. Both ways are strict: a value that does not fit is refused,
with the path to the part that does not.

The text is JSON with sorted keys and no spaces, so that equal values are equal texts. Bytes are {"$bytes": base64}.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, Literal

from .errors import NotSerialisableError
from .texts import is_storable

DEPTH_MAX = 32
INT_BITS_MAX = 4_096  # far below what Python refuses to write as digits
TEXT_BYTES_MAX = 1024 * 1024

# A JSON value
Json = None | bool | int | float | str | list[Any] | dict[str, Any]
_BYTES = "$bytes"
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)


class _Undeclared:
    """The declared type of values for which none is declared."""


UNDECLARED: Any = _Undeclared


def encode(value: object, declared: Any = UNDECLARED) -> str:
    """The text of a value. Errors: `NotSerialisableError`."""
    text = _ENCODER.encode(_encode(value, declared, "value", 0))
    if len(text) > TEXT_BYTES_MAX // 4 and len(text.encode()) > TEXT_BYTES_MAX:
        raise NotSerialisableError(
            f"the value is larger than {TEXT_BYTES_MAX} bytes; store it elsewhere and pass its key"
        )
    return text


def decode(text: str | bytes, declared: Any = UNDECLARED, where: str = "value") -> Any:
    """The value of a text, or of its UTF-8.

    Errors: `NotSerialisableError`, with `where`, when it does not fit the type (any longer), or is damaged.
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode())
    except ValueError:
        raise NotSerialisableError(f"{where} cannot be read: the file is damaged there. Restore a backup") from None
    return _decode(value, declared, where)


def may_be_none(declared: Any) -> bool:
    """Whether None is a value of the type."""
    return declared in (UNDECLARED, Any, object, None, type(None)) or _is_optional(declared)


def check_declared(declared: Any, where: str) -> None:
    """Refuses a type of which values cannot be stored, before there is any value."""
    _check(declared, where, ())


def _plain(value: object, where: str, depth: int) -> Json:
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        return _text(value, where)
    if type(value) is int:
        return _int(value, where)
    if type(value) is float:
        return _finite(value, where)
    if type(value) is bytes:
        return {_BYTES: base64.b64encode(value).decode()}
    if type(value) is list:
        return [_encode(item, UNDECLARED, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    if type(value) is dict:
        return _encode_dict(value, UNDECLARED, where, depth)
    raise NotSerialisableError(
        f"{where} is a {type(value).__name__}: without a declared type only plain values (None, bool, int, float, str, "
        "bytes, list, dict) can be stored. Declare the type (an annotation, or returns=)"
    )


def _text(value: str, where: str) -> str:
    if not is_storable(value):
        raise NotSerialisableError(f"{where} holds half of a character (a lone surrogate), which cannot be stored")
    return str(value)


def _int(value: int, where: str) -> int:
    if value.bit_length() > INT_BITS_MAX:
        raise NotSerialisableError(f"{where} is a number of more than {INT_BITS_MAX} bits; store it as bytes")
    return value


def _float(value: float, where: str) -> float:
    try:
        return _finite(float(value), where)
    except OverflowError:
        raise NotSerialisableError(f"{where} is an int that is too large for a float") from None


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise NotSerialisableError(f"{where} is {value}, which is no number that can be stored")
    return value


def _encode_dict(value: dict[Any, Any], item_type: Any, where: str, depth: int) -> Json:
    for key in value:
        if type(key) is not str or key.startswith("$") or not is_storable(key):
            raise NotSerialisableError(f"{where} has the key {key!r}; keys are whole texts that do not begin with '$'")
    return {key: _encode(item, item_type, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}


def _encode(value: object, declared: Any, where: str, depth: int) -> Json:
    if depth > DEPTH_MAX:
        raise NotSerialisableError(f"{where} is nested deeper than {DEPTH_MAX}")
    if declared in (UNDECLARED, Any, object):
        return _plain(value, where, depth)
    if declared in (None, type(None), bool, int, str, bytes):
        if type(value) is not (type(None) if declared is None else declared):
            raise _wrong(value, declared, where)
        return _plain(value, where, depth)
    if declared is float:
        if type(value) not in (int, float):
            raise _wrong(value, declared, where)
        return _float(typing.cast(float, value), where)
    if isinstance(declared, type) and issubclass(declared, Enum):
        if not isinstance(value, declared):
            raise _wrong(value, declared, where)
        return _plain(value.value, where, depth)
    if dataclasses.is_dataclass(declared):
        if type(value) is not declared:
            raise _wrong(value, declared, where)
        return {
            name: _encode_field(getattr(value, name), kind, where, name, depth)
            for name, kind in field_types(typing.cast(type, declared)).items()
        }
    return _encode_generic(value, declared, where, depth)


def _encode_field(value: Any, declared: Any, where: str, name: str, depth: int) -> Json:
    """Most fields are short and of plain types, and need no closer look."""
    kind = type(value)
    if kind is declared:
        if kind is bytes:
            return {_BYTES: base64.b64encode(value).decode()}
        if kind is bool or (kind is int and value.bit_length() <= INT_BITS_MAX) or (kind is str and value.isascii()):
            plain: bool | int | str = value
            return plain
    return _encode(value, declared, f"{where}.{name}", depth + 1)


def _encode_generic(value: object, declared: Any, where: str, depth: int) -> Json:
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if _is_optional(declared):
        return None if value is None else _encode(value, _optional_of(declared), where, depth)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in inner):
            raise _wrong(value, declared, where)
        return _plain(value, where, depth)
    if origin is list and type(value) is list:
        return [_encode(item, inner[0], f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    if origin is dict and type(value) is dict:
        return _encode_dict(value, inner[1], where, depth)
    if origin is tuple and type(value) is tuple:
        kinds = _tuple_types(inner, len(value), where)
        return [
            _encode(item, kind, f"{where}[{n}]", depth + 1)
            for n, (item, kind) in enumerate(zip(value, kinds, strict=True))
        ]
    if origin in (list, dict, tuple):
        raise _wrong(value, declared, where)
    raise _cannot(declared, where)


def _decode(value: Any, declared: Any, where: str) -> Any:
    if declared in (UNDECLARED, Any, object):
        return _decode_plain(value, where)
    if declared is bytes:
        return _decode_bytes(value, where)
    if declared in (None, type(None), bool, int, str):
        if type(value) is not (type(None) if declared is None else declared):
            raise _wrong(value, declared, where)
        return value
    if declared is float:
        if type(value) not in (int, float):
            raise _wrong(value, declared, where)
        return float(value)
    if isinstance(declared, type) and issubclass(declared, Enum):
        try:
            return declared(_decode_plain(value, where))
        except ValueError:
            raise _wrong(value, declared, where) from None
    if dataclasses.is_dataclass(declared):
        return _decode_dataclass(value, typing.cast(Callable[..., Any], declared), where)
    return _decode_generic(value, declared, where)


def _decode_plain(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_decode_plain(item, where) for item in value]
    if isinstance(value, dict):
        if _BYTES in value:
            return _decode_bytes(value, where)
        return {key: _decode_plain(item, where) for key, item in value.items()}
    return value


def _decode_bytes(value: Any, where: str) -> bytes:
    if not isinstance(value, dict) or list(value) != [_BYTES] or not isinstance(value[_BYTES], str):
        raise _wrong(value, bytes, where)
    try:
        return base64.b64decode(value[_BYTES], validate=True)
    except binascii.Error:
        raise _wrong(value, bytes, where) from None


def _decode_dataclass(value: Any, declared: Callable[..., Any], where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(value, declared, where)
    fields = field_types(typing.cast(type, declared))
    unknown = value.keys() - fields.keys()
    if unknown:
        raise NotSerialisableError(f"{where} has the fields {sorted(unknown)}, which {_name(declared)} does not have")
    given = {name: _decode(item, fields[name], f"{where}.{name}") for name, item in value.items()}
    try:
        return declared(**given)
    except (TypeError, ValueError) as error:
        raise NotSerialisableError(f"{where} is no {_name(declared)} any longer: {error}") from error


def _decode_generic(value: Any, declared: Any, where: str) -> Any:
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if _is_optional(declared):
        return None if value is None else _decode(value, _optional_of(declared), where)
    if origin is Literal:
        plain = _decode_plain(value, where)
        if not any(plain == choice and type(plain) is type(choice) for choice in inner):
            raise _wrong(value, declared, where)
        return plain
    if origin is list and isinstance(value, list):
        return [_decode(item, inner[0], f"{where}[{n}]") for n, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: _decode(item, inner[1], f"{where}[{key!r}]") for key, item in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = _tuple_types(inner, len(value), where)
        return tuple(
            _decode(item, kind, f"{where}[{n}]") for n, (item, kind) in enumerate(zip(value, kinds, strict=True))
        )
    if origin in (list, dict, tuple):
        raise _wrong(value, declared, where)
    raise _cannot(declared, where)


@lru_cache(maxsize=1024)
def field_types(declared: type) -> dict[str, Any]:
    """The types of the fields of a dataclass that its constructor takes."""
    try:
        hints = typing.get_type_hints(declared)
    except NameError as error:
        raise NotSerialisableError(
            f"the annotations of {_name(declared)} cannot be resolved ({error}); "
            "define it, and what it names, in a module"
        ) from error
    fields = dataclasses.fields(declared)
    if not all(field.init for field in fields):
        raise NotSerialisableError(f"{_name(declared)} has fields that its constructor does not take")
    return {field.name: hints[field.name] for field in fields}


def _check(declared: Any, where: str, inside: tuple[Any, ...]) -> None:
    if declared in inside:
        return  # a type that holds itself; values are bounded by their depth
    if declared in (UNDECLARED, Any, object, None, type(None), bool, int, float, str, bytes):
        return
    if isinstance(declared, type) and issubclass(declared, Enum):
        return
    if dataclasses.is_dataclass(declared):
        for name, kind in field_types(typing.cast(type, declared)).items():
            _check(kind, f"{where}.{name}", (*inside, declared))
        return
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if _is_optional(declared):
        _check(_optional_of(declared), where, inside)
    elif origin is list or (origin is dict and inner[0] is str):
        _check(inner[-1], where, inside)
    elif origin is tuple:
        for kind in inner:
            if kind is not Ellipsis:
                _check(kind, where, inside)
    elif origin is not Literal:
        raise _cannot(declared, where)


def _is_optional(declared: Any) -> bool:
    inner = typing.get_args(declared)
    return typing.get_origin(declared) in (typing.Union, types.UnionType) and len(inner) == 2 and type(None) in inner


def _optional_of(declared: Any) -> Any:
    return next(kind for kind in typing.get_args(declared) if kind is not type(None))


def _tuple_types(inner: tuple[Any, ...], length: int, where: str) -> tuple[Any, ...]:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return (inner[0],) * length
    if len(inner) != length:
        raise NotSerialisableError(f"{where} has {length} parts, and its type has {len(inner)}")
    return inner


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", None) or str(declared)


def _wrong(value: object, declared: Any, where: str) -> NotSerialisableError:
    return NotSerialisableError(f"{where} is a {type(value).__name__}, and should be {_name(declared)}")


def _cannot(declared: Any, where: str) -> NotSerialisableError:
    return NotSerialisableError(
        f"{where} has the type {_name(declared)}, which cannot be stored. Use None, bool, int, float, str, bytes, "
        "enums, dataclasses, and list[X], tuple[X, ...], dict[str, X], X | None of them"
    )
