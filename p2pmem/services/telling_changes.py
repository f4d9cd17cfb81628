"""What a change of members is, in words: everything that was asked for, and everything that is other after it.

Who signs a roster reads these, so nothing may be missing in them. They go over the fields of the values themselves: one
that has no words here is told by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any, Final, TypeAlias

from p2pmem_protocol.errors import lasting
from p2pmem_protocol.names import Address, VersionKey, hex_id
from p2pmem_protocol.roster import Access, Body, Limits, Member, Quorum, Quotas

from p2pmem.face import ChangePreview, Difference, LimitsChange, MemberChange, NewMember
from p2pmem.references import full_reference

_Words: TypeAlias = Callable[[Any], Iterator[str]]

DIFFERENCES_MAX: Final = 1_000
"""A preview names so many at most."""
KEPT_NAMED_MAX: Final = 200
_LISTED: Final = "listed: it counts without a role"


def asked_for(change: MemberChange) -> tuple[str, ...]:
    """One line for each thing that the change asks for: for every field that is not as by default."""
    return tuple(_asked(change, MemberChange(), _ASKED))


def differences(
    before: Body | None,
    after: Body,
    owner_before: Address | None,
    owner: Address,
    named: Callable[[bytes], str] = hex_id,
) -> Iterator[Difference]:
    """What is other in a roster than in the one before it; of a first roster all that it says.

    `named` tells what a listed id is of.
    """
    if owner != owner_before:
        yield Difference("owner", str(owner_before or ""), str(owner))
    for field in fields(Body):
        old = getattr(before, field.name) if before is not None else None
        new = getattr(after, field.name)
        if field.name == "kept":
            yield from _kept(old or (), new, named)
        elif old != new:
            yield from _BODY.get(field.name, _by_name(field.name))(old, new)


def bounded(found: Iterator[Difference]) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """So many as a preview names, and a note when there are more."""
    some = tuple(islice(found, DIFFERENCES_MAX + 1))
    if len(some) <= DIFFERENCES_MAX:
        return some, ()
    return some[:DIFFERENCES_MAX], (f"more than {DIFFERENCES_MAX} things would be other; the first are listed",)


def lines_of(preview: ChangePreview) -> tuple[str, ...]:
    """A preview as lines, for who is shown nothing but hashes by what he signs with."""
    return (
        *(f"asked for: {it}" for it in preview.asked),
        *map(line_of, preview.differences),
        *preview.notes,
        *(f"{it.reference}: now {it.now}; then {it.then}" for it in preview.trust),
    )


def line_of(it: Difference) -> str:
    return f"{it.what}: {it.before or 'none'} now, {it.after or 'none'} then"


# What is asked for


def _asked(change: MemberChange | LimitsChange, default: object, words: dict[str, _Words]) -> Iterator[str]:
    for field in fields(change):
        value = getattr(change, field.name)
        if value != getattr(default, field.name):
            yield from words[field.name](value) if field.name in words else (f"{field.name}: {value}",)


def _set(members: tuple[NewMember, ...]) -> Iterator[str]:
    for it in members:
        label = f", called {it.label!r}" if it.label else ""
        yield f"{it.address} is a member{label}, with the roles {' '.join(it.roles) or 'reader'}"


def _m(m: int) -> Iterator[str]:
    yield f"M is {m}" if m else "M is 0: there is no quorum, and nothing new is verified"


def _leaked(_: bool) -> Iterator[str]:
    yield "the keys of those removed leaked: nothing of theirs counts any more, nor a certificate that rests on it"


_ASKED: Final[dict[str, _Words]] = {
    "set": _set,
    "remove": lambda them: (f"{it} is removed" for it in them),
    "m": _m,
    "leaked": _leaked,
    "limits": lambda limits: _asked(limits, LimitsChange(), _LIMITS_ASKED),
    "drop": lambda them: (f"{it} is no longer kept as verified under an earlier quorum" for it in them),
    "owner": lambda owner: iter((f"{owner} is the owner from now on",)),
    "mend": lambda _: iter(("it goes on from here, above every branch of a fork",)),
}
_LIMITS_ASKED: Final[dict[str, _Words]] = {
    "access": lambda word: iter((f"access is {word}{': anybody reads' if word == 'open' else ''}",)),
    "ttl_default_ms": lambda it: iter((f"a share lives {_life(it)} by default",)),
    "ttl_max_ms": lambda it: iter((f"a share lives {_life(it)} at most",)),
    "acks_min": lambda it: iter((f"so many others must hold what is published: {it}",)),
    "chain": lambda on: iter(("versions are anchored on this node's chain" if on else "no chain is used any more",)),
    "live_bytes": lambda it: iter((f"quota of each member, bytes of what is shared: {it}",)),
    "live_items": lambda it: iter((f"quota of each member, number of what is shared: {it}",)),
    "durable_items": lambda it: iter((f"quota of each member, number of what stays: {it}",)),
    "content_bytes": lambda it: iter((f"the largest content, bytes: {it}",)),
}


# What is other


def _by_name(name: str) -> Callable[[Any, Any], Iterator[Difference]]:
    def tell(before: object, after: object) -> Iterator[Difference]:
        yield Difference(_NAMES.get(name, name), "" if before is None else str(before), str(after))

    return tell


def _members(before: tuple[Member, ...] | None, after: tuple[Member, ...]) -> Iterator[Difference]:
    old, new = ({it.address: it for it in members} for members in (before or (), after))
    for address in sorted(old.keys() | new.keys()):
        was, now = old.get(address), new.get(address)
        if was != now:
            yield Difference(f"member {address}", _member(was), _member(now))


def _member(it: Member | None) -> str:
    if it is None:
        return ""
    return f"{' '.join(it.roles.words)}{f', called {it.label!r}' if it.label else ''}"


def _limits(before: Limits | Quotas | None, after: Limits | Quotas) -> Iterator[Difference]:
    """Field by field: limits, and the quotas in them."""
    for field in fields(after):
        old = getattr(before, field.name) if before is not None else None
        new = getattr(after, field.name)
        if isinstance(new, Quotas):
            yield from _limits(old, new)
        elif old != new:
            yield Difference(_NAMES.get(field.name, field.name), _shown(field.name, old), _shown(field.name, new))


def _shown(name: str, value: object) -> str:
    match value:
        case None:
            return ""
        case Quorum():
            who = f": {' '.join(map(str, value.verifiers))}" if value.verifiers else ""
            return f"{value.m} of {len(value.verifiers)}{who}" if value.m else "none"
        case Access():
            return value.name.lower()
        case int() if name.endswith("_ms"):
            return _life(value)
    return str(value)


def _life(duration_ms: int) -> str:
    """Exactly, since two that differ by little must not look the same."""
    return f"{lasting(duration_ms)} ({duration_ms} ms)"


def _kept(before: tuple[bytes, ...], after: tuple[bytes, ...], named: Callable[[bytes], str]) -> Iterator[Difference]:
    """What is listed of who has no right to it: so many by name, so that they hide nothing else, and the others in
    number. One that is listed no more may count all the same, by a right."""
    for these, was, now in (
        (set(before) - set(after), _LISTED, "not listed"),
        (set(after) - set(before), "not listed", _LISTED),
    ):
        for line in sorted(map(named, sorted(these)[:KEPT_NAMED_MAX])):
            yield Difference(line, was, now)
        if len(these) > KEPT_NAMED_MAX:
            yield Difference(f"and {len(these) - KEPT_NAMED_MAX} more", was, now)


def _certificates(before: tuple[Any, ...] | None, after: tuple[Any, ...]) -> Iterator[Difference]:
    old, new = _by_subject(before or ()), _by_subject(after)
    for subject in sorted(old.keys() | new.keys()):
        was, now = old.get(subject, []), new.get(subject, [])
        if was != now:
            what = f"{full_reference(subject)} kept as verified"
            yield Difference(what, *(" and ".join(_quorums(them)) for them in (was, now)))


def _quorums(certificates: list[Any]) -> dict[str, None]:
    """Of several under one quorum that is told once."""
    return {_shown("", it.quorum): None for it in certificates}


def _by_subject(certificates: tuple[Any, ...]) -> dict[VersionKey, list[Any]]:
    """There may be several of one version, under several quorums."""
    found: dict[VersionKey, list[Any]] = {}
    for it in certificates:
        found.setdefault(it.subject, []).append(it)
    return found


_BODY: Final[dict[str, Callable[[Any, Any], Iterator[Difference]]]] = {
    "members": _members,
    "limits": _limits,
    "certificates": _certificates,
}
_NAMES: Final = {
    "quorum": "quorum",
    "ttl_default_ms": "life of a share by default",
    "ttl_max_ms": "life of a share at most",
    "acks_min": "others that must hold what is published",
    "live_bytes": "quota, bytes of what is shared",
    "live_items": "quota, number of what is shared",
    "durable_items": "quota, number of what stays",
    "content_bytes": "largest content, bytes",
    "cuts": "quota, number of retracts and revokes",
}
