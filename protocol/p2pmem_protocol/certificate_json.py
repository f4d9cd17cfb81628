"""The readable form of a certificate. It holds the same values as the CBOR form; reading it is as strict.

Bytes are `0x` and lower-case hexadecimal digits. Names of fields are those of the signed EIP-712 structs, so that a few
lines in any language can check every signature.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

from p2pmem_protocol.certificate import CERTIFICATE_BYTES_MAX, Certificate
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.evidence import Decision, Evidence, Method, Verdict
from p2pmem_protocol.json_nesting import check_nesting
from p2pmem_protocol.limits import UINT32_MAX
from p2pmem_protocol.names import Address, GraphName, NetworkId, VersionKey, check_name, check_subgraph
from p2pmem_protocol.roster import Header, Quorum, SignedHeader
from p2pmem_protocol.seal import Seal, SignedSeal

FORMAT: Final = "p2pmem certificate 1"


def to_json(certificate: Certificate) -> str:
    """The certificate as indented JSON."""
    seal = certificate.seal.seal
    shown = {
        "format": FORMAT,
        "network": _hex(certificate.network),
        "graph": str(certificate.graph),
        "seal": {
            "subgraph": seal.subgraph,
            "asset": seal.name,
            "version": seal.version,
            "root": _hex(seal.root),
            "leaves": seal.leaves,
            "previous": _hex(seal.previous),
            "author": _hex(seal.author),
            "signature": _hex(certificate.seal.signature),
        },
        "quorum": {
            "serial": certificate.quorum.serial,
            "m": certificate.quorum.m,
            "verifiers": [_hex(verifier) for verifier in certificate.quorum.verifiers],
        },
        "verdicts": [_verdict_to_json(verdict) for verdict in certificate.verdicts],
        "rosters": [_header_to_json(signed) for signed in certificate.headers],
    }
    return json.dumps(shown, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str) -> Certificate:
    """Read what `to_json` wrote. Raises `RefusedError` when the form is wrong; nothing is checked yet."""
    if len(text) > 4 * CERTIFICATE_BYTES_MAX:
        raise RefusedError(Reason.OVERSIZE, f"{len(text)} characters of JSON, at most {4 * CERTIFICATE_BYTES_MAX}")
    try:
        check_nesting(text)
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_int=_digits, parse_constant=_no_json)
    except ValueError as error:
        raise RefusedError(Reason.BAD_SHAPE, f"not JSON: {type(error).__name__}") from None
    try:
        # What the other form refuses is refused here, too, for the same reason.
        return Certificate.decode(_certificate(_Fields(value, "a certificate")).encode())
    except MisuseError as error:
        raise RefusedError(Reason.BAD_FIELD, str(error)) from None


def _certificate(fields: _Fields) -> Certificate:
    if fields.text("format") != FORMAT:
        raise RefusedError(Reason.BAD_VERSION, "a format of certificate that is not known here")
    network = NetworkId(fields.raw("network", 32))
    graph = _graph(fields.text("graph"))
    seal = _seal(_Fields(fields.any("seal"), "the seal"), network, graph)
    quorum_fields = _Fields(fields.any("quorum"), "the quorum")
    quorum = Quorum(
        graph.id,
        quorum_fields.uint("serial"),
        quorum_fields.uint("m"),
        tuple(Address(_raw(each, 20)) for each in quorum_fields.list("verifiers")),
    )
    quorum_fields.end()
    verdicts = tuple(
        _verdict(_Fields(each, "a verdict"), network, graph, seal.seal.key) for each in fields.list("verdicts")
    )
    headers = tuple(_header(_Fields(each, "a roster header"), network, graph) for each in fields.list("rosters"))
    fields.end()
    return Certificate(network, graph, seal, quorum, verdicts, headers)


def _graph(text: str) -> GraphName:
    """In the one form that `to_json` writes, of the several that people may type."""
    graph = GraphName.parse(text)
    if str(graph) != text:
        raise RefusedError(Reason.BAD_FIELD, "the graph is not a lower-case address, a slash and a slug")
    return graph


def _seal(fields: _Fields, network: NetworkId, graph: GraphName) -> SignedSeal:
    seal = Seal(
        network=network,
        graph=graph.id,
        subgraph=fields.name("subgraph", check_subgraph),
        name=fields.name("asset", check_name),
        version=fields.uint("version"),
        root=fields.raw("root", 32),
        leaves=fields.uint("leaves"),
        previous=fields.raw("previous", 32),
        author=Address(fields.raw("author", 20)),
    )
    signed = SignedSeal(seal, fields.raw("signature", 65))
    fields.end()
    return signed


def _verdict_to_json(evidence: Evidence) -> dict[str, object]:
    it = evidence.statement
    if not isinstance(it, Verdict):
        raise MisuseError("a certificate shows verdicts and nothing else")
    return {
        "quorum": _hex(it.quorum),
        "decision": int(it.decision),
        "method": int(it.method),
        "reason": it.reason,
        "signer": _hex(it.signer),
        "signature": _hex(evidence.signature),
    }


def _verdict(fields: _Fields, network: NetworkId, graph: GraphName, subject: VersionKey) -> Evidence:
    verdict = Verdict(
        network=network,
        graph=graph.id,
        quorum=fields.raw("quorum", 32),
        subject=subject,
        decision=Decision(fields.uint("decision", 2, 1)),
        method=Method(fields.uint("method", max(Method), min(Method))),
        reason=fields.text("reason"),
        signer=Address(fields.raw("signer", 20)),
    )
    evidence = Evidence(verdict, fields.raw("signature", 65))
    fields.end()
    return evidence


def _header_to_json(signed: SignedHeader) -> dict[str, object]:
    it = signed.header
    return {
        "version": it.version,
        "term": it.term,
        "parent": _hex(it.parent),
        "parentTerm": it.parent_term,
        "owner": _hex(it.owner),
        "quorum": _hex(it.quorum),
        "quorumSerial": it.quorum_serial,
        "members": _hex(it.members),
        "limits": _hex(it.limits),
        "kept": _hex(it.kept),
        "certificates": _hex(it.certificates),
        "signer": _hex(it.signer),
        "signature": _hex(signed.signature),
    }


def _header(fields: _Fields, network: NetworkId, graph: GraphName) -> SignedHeader:
    header = Header(
        network=network,
        name=graph,
        version=fields.uint("version", least=1),
        term=fields.uint("term", least=1),
        parent=fields.raw("parent", 32),
        parent_term=fields.uint("parentTerm"),
        owner=Address(fields.raw("owner", 20)),
        quorum=fields.raw("quorum", 32),
        quorum_serial=fields.uint("quorumSerial"),
        members=fields.raw("members", 32),
        limits=fields.raw("limits", 32),
        kept=fields.raw("kept", 32),
        certificates=fields.raw("certificates", 32),
        signer=Address(fields.raw("signer", 20)),
    )
    signed = SignedHeader(header, fields.raw("signature", 65))
    fields.end()
    return signed


class _Fields:
    """The fields of one JSON object, taken one by one."""

    __slots__ = ("_left", "_what")

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise RefusedError(Reason.BAD_SHAPE, f"{what} is not a JSON object")
        self._left: dict[str, Any] = dict(value)
        self._what = what

    def any(self, name: str) -> object:
        if name not in self._left:
            raise RefusedError(Reason.BAD_SHAPE, f"{self._what} lacks {name!r}")
        return self._left.pop(name)

    def text(self, name: str) -> str:
        value = self.any(name)
        if not isinstance(value, str):
            raise RefusedError(Reason.BAD_FIELD, f"{name!r} of {self._what} is not text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RefusedError(Reason.BAD_TEXT, f"{name!r} of {self._what} holds half a character") from None
        return value

    def name(self, name: str, check: Callable[[str], str]) -> str:
        try:
            return check(self.text(name))
        except MisuseError as error:
            raise RefusedError(Reason.BAD_NAME, f"{name!r} of {self._what}: {error}") from None

    def uint(self, name: str, most: int = UINT32_MAX, least: int = 0) -> int:
        value = self.any(name)
        if type(value) is not int or not least <= value <= most:
            raise RefusedError(Reason.BAD_FIELD, f"{name!r} of {self._what} is not from {least} to {most}")
        return value

    def raw(self, name: str, length: int) -> bytes:
        return _raw(self.any(name), length)

    def list(self, name: str) -> list[object]:
        value = self.any(name)
        if not isinstance(value, list):
            raise RefusedError(Reason.BAD_FIELD, f"{name!r} of {self._what} is not a list")
        return value

    def end(self) -> None:
        if self._left:
            raise RefusedError(Reason.BAD_SHAPE, f"{self._what} has {len(self._left)} unknown fields")


def _raw(value: object, length: int) -> bytes:
    if isinstance(value, str) and value.startswith("0x") and len(value) == 2 + 2 * length:
        try:
            raw = bytes.fromhex(value[2:])
        except ValueError:
            raw = b""
        if _hex(raw) == value:
            return raw
    raise RefusedError(Reason.BAD_FIELD, f"not 0x and {2 * length} lower-case hexadecimal digits")


def _hex(raw: bytes) -> str:
    return "0x" + raw.hex()


def _digits(text: str) -> int | float:
    """A number is digits alone: `-0` would be a second way to write 0. No field takes what is no integer."""
    return float(text) if text.startswith("-") else int(text)


def _no_json(text: str) -> NoReturn:
    raise ValueError(f"{text} is no value of JSON")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise RefusedError(Reason.DUPLICATE_KEY, "a JSON object has one name twice")
    return fields
