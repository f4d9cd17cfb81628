"""Values of `p2pmem.face` to JSON and back, led by their type hints.

    dataclass           object of its fields            Enum            its value
    tuple[T, ...]       array                           T | None        T or null
    str int float bool  the same                        object          any JSON value
    tuple[A, B]         array of that length

Integers stay within what a JavaScript number holds exactly. A request is read strictly: a field that is unknown, and
one that is missing and has no default, are refused by name. An answer may hold fields of a newer node, so they are
passed over.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.json_nesting import NestedTooDeepError, check_nesting

INTEGER_MAX: Final = 2**53 - 1
_SHOWN_CHARS_MAX: Final = 60
_KINDS: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}


class BadValueError(MisuseError):
    """JSON, or a parameter, that is not what the call takes. Nothing was done."""


# To JSON


def encode(value: object) -> object:
    """What `json.dumps` takes, from a value of `p2pmem.face`. TypeError for anything else: a mistake of ours."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_key(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of {type(key).__name__} has no form in JSON")
    return key


def dumps(value: object, *, indent: int | None = None) -> str:
    """The JSON text of a value, its fields in their order."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(encode(value), ensure_ascii=False, allow_nan=False, separators=separators, indent=indent)


# From JSON


def loads(data: bytes, what: str = "the body") -> object:
    """Read JSON text in UTF-8. Refuses a key that comes twice, numbers that are none, and what nests too deep.

    `what` is what messages call it.
    """
    try:
        text = data.decode("utf-8")
        check_nesting(text)
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadValueError(f"{what} is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BadValueError(f"{what} is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except NestedTooDeepError:
        raise BadValueError(f"{what} nests too deep") from None
    except ValueError as error:
        if isinstance(error, BadValueError):
            raise
        raise BadValueError(f"{what} holds a number that is too long") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise BadValueError(f"the field {_shown(key)} comes twice")
        found[key] = value
    return found


def _no_constant(word: str) -> object:
    raise BadValueError(f"{word} is no number in JSON")


def decode(wanted: Any, value: object, where: str = "", *, strict: bool = True) -> Any:
    """A value of the type `wanted` from JSON. `where` names it in errors. Raises `BadValueError`."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return _decode_optional(arguments, value, where, strict=strict)
    if origin is tuple:
        return _decode_tuple(arguments, value, where, strict=strict)
    if wanted is object:
        return _sound(value, where)
    if wanted is dict or origin is dict:
        return _sound(_of_kind(dict, value, where), where)
    if is_dataclass(wanted) and isinstance(wanted, type):
        return decode_fields(wanted, value, where, strict=strict)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return _decode_enum(wanted, value, where)
    return _decode_plain(wanted, value, where)


def decode_fields(wanted: type[Any], value: object, where: str, *, strict: bool) -> Any:
    """A dataclass from an object of its fields."""
    given = _of_kind(dict, value, where)
    known: dict[str, Any] = hints(cast("Hashable", wanted))
    items: dict[str, Field[Any]] = {item.name: item for item in fields(wanted)}
    unknown = sorted(set(given) - set(items))
    if unknown and strict:
        raise BadValueError(f"there is no field {_shown(_inside(where, unknown[0]))}; there are {', '.join(items)}")
    found: dict[str, object] = {}
    for name, item in items.items():
        if name in given:
            found[name] = decode(known[name], given[name], _inside(where, name), strict=strict)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise BadValueError(f"the field {_inside(where, name)} is missing")
    return wanted(**found)


@lru_cache(maxsize=512)
def hints(of: Any) -> dict[str, Any]:
    """Resolved type hints, kept."""
    return get_type_hints(of)


def is_optional(wanted: Any) -> bool:
    return get_origin(wanted) in (Union, UnionType) and NoneType in get_args(wanted)


def decode_text(wanted: Any, text: str, where: str) -> Any:
    """A value from a parameter of a URL: text, a whole number, `true` or `false`, or a word of an enum."""
    if is_optional(wanted):
        (wanted,) = (argument for argument in get_args(wanted) if argument is not NoneType)
    if wanted is int:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdigit() or len(digits) > 16:
            raise BadValueError(f"{where} is {_shown(text)}: a whole number is needed")
        return _decode_plain(int, int(text), where)
    if wanted is bool:
        if text not in ("true", "false"):
            raise BadValueError(f"{where} is {_shown(text)}: true and false are possible")
        return text == "true"
    return decode(wanted, text, where)


def encode_text(value: object) -> str:
    """What `decode_text` reads."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)


def _decode_optional(arguments: tuple[Any, ...], value: object, where: str, *, strict: bool) -> Any:
    if value is None and NoneType in arguments:
        return None
    rest = [argument for argument in arguments if argument is not NoneType]
    assert len(rest) == 1, "the faces use no union but with None"
    return decode(rest[0], value, where, strict=strict)


def _decode_tuple(arguments: tuple[Any, ...], value: object, where: str, *, strict: bool) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise BadValueError(f"{where or 'the body'} is not an array")
    if len(arguments) == 2 and arguments[1] is ...:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise BadValueError(f"{where or 'the body'} has {len(value)} items, not {len(arguments)}")
    pairs = enumerate(zip(arguments, value, strict=True))
    return tuple(decode(wanted, item, f"{where}[{number}]", strict=strict) for number, (wanted, item) in pairs)


def _decode_enum(wanted: type[Enum], value: object, where: str) -> Enum:
    for member in wanted:
        if member.value == value and type(member.value) is type(value):
            return member
    words = ", ".join(str(member.value) for member in wanted)
    raise BadValueError(f"{where or 'the value'} is {_shown(value)}: {words} are possible")


def _decode_plain(wanted: Any, value: object, where: str) -> Any:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= INTEGER_MAX else value
    _of_kind(wanted, value, where)
    if isinstance(value, str | int):
        _sound(value, where)
    return value


def _of_kind(wanted: Any, value: object, where: str) -> Any:
    assert wanted in _KINDS, f"no rule for {wanted}"
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise BadValueError(f"{where or 'the body'} is {_shown(value)}: {_KINDS[wanted]} is needed")
    return value


def _sound(value: object, where: str) -> object:
    """The value itself, when no number in it is beyond JSON's and no text has half a character."""
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadValueError(f"{where or 'the text'} holds half of a surrogate pair")
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise BadValueError(f"{where or 'the number'} is beyond {INTEGER_MAX}")
    if isinstance(value, dict):
        for key, item in value.items():
            _sound(key, where)
            _sound(item, _inside(where, key))
    if isinstance(value, list):
        for number, item in enumerate(value):
            _sound(item, f"{where}[{number}]")
    return value


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN_CHARS_MAX else value[: _SHOWN_CHARS_MAX - 3] + "...")
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return json.dumps(value)[:_SHOWN_CHARS_MAX]
