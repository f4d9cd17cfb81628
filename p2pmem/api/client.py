"""A node's `Face` over HTTP: what the command line, the devnet and programs of others talk through."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast
from urllib.parse import quote

import httpx
from p2pmem_protocol.errors import OutsideError

from p2pmem.api.codec import BadValueError, decode, encode, encode_text, hints, loads
from p2pmem.api.events import PROBLEM_EVENT, EventReader, ServerEvent
from p2pmem.api.problems import UnreachableError, error_of
from p2pmem.api.routes import CALLS, Call
from p2pmem.api.streaming import CONNECT_S, open_streamed
from p2pmem.face import (
    AgentView,
    BackupView,
    CertificateView,
    ChangeEvent,
    ChangePreview,
    ClockView,
    CompactView,
    DiffView,
    DraftView,
    Explanation,
    GraphView,
    HistoryView,
    JobStory,
    JobView,
    JoinRequestView,
    Layer,
    MemberChange,
    NewGraph,
    NodeStatus,
    NotFoundError,
    PreparedView,
    QueryAnswer,
    RecallAnswer,
    RestoreView,
    ReviewDetail,
    ReviewView,
    SignedView,
    SignRequest,
    SignView,
    VersionView,
)
from p2pmem.face_peers import DelegationView, PeerDetail, RevocationView

T = TypeVar("T")

ANSWER_S: Final = 900.0
"""A call that waits for a job may wait ten minutes."""


class HttpFace:
    """A `Face` whose node is behind `url`. Use it as an async context manager.

    Errors are those of the face, as `NodeMisuseError` and its siblings in `p2pmem.api.problems`, with the code that
    the node gave; and `UnreachableError` when no node answers. A cancelled call may have been carried out. Streams
    are async generators: close them with `aclosing` when you leave them before their end.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            # neither a proxy nor a .netrc has a say in what stays on this machine
            trust_env=False,
            # no certificate is ever looked at; to load those that are trusted elsewhere takes longer than a call
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    # The node and its context graphs

    async def status(self) -> NodeStatus:
        return await self._ask(NodeStatus, "status")

    async def found(self, new: NewGraph) -> GraphView:
        return await self._ask(GraphView, "found", new=new)

    async def confirm_clock(self) -> ClockView:
        return await self._ask(ClockView, "confirm_clock")

    async def back_up(self, to: str) -> BackupView:
        return await self._ask(BackupView, "back_up", to=to)

    async def confirm_restore(self, graph: str | None) -> RestoreView:
        return await self._ask(RestoreView, "confirm_restore", graph=graph)

    async def compact(self) -> CompactView:
        return await self._ask(CompactView, "compact")

    async def graphs(self) -> tuple[GraphView, ...]:
        return await self._ask(tuple[GraphView, ...], "graphs")

    async def graph(self, graph: str) -> GraphView:
        return await self._ask(GraphView, "graph", graph=graph)

    async def change_members(self, graph: str, change: MemberChange) -> GraphView:
        return await self._ask(GraphView, "change_members", graph=graph, change=change)

    async def preview_members(self, graph: str, change: MemberChange) -> ChangePreview:
        return await self._ask(ChangePreview, "preview_members", graph=graph, change=change)

    async def prepare_members(self, graph: str, change: MemberChange) -> PreparedView:
        return await self._ask(PreparedView, "prepare_members", graph=graph, change=change)

    async def prepared_members(self, word: str) -> PreparedView:
        return await self._ask(PreparedView, "prepared_members", word=word)

    async def sign_members(self, word: str) -> GraphView:
        return await self._ask(GraphView, "sign_members", word=word)

    async def leave(self, graph: str) -> None:
        await self._request("leave", graph=graph)

    async def invite(self, graph: str, *, roles: tuple[str, ...], uses: int, life_ms: int, ask: bool = False) -> str:
        return await self._ask(str, "invite", graph=graph, roles=roles, uses=uses, life_ms=life_ms, ask=ask)

    async def join(self, invite: str, *, label: str) -> GraphView:
        return await self._ask(GraphView, "join", invite=invite, label=label)

    async def follow(self, graph: str, *, addresses: tuple[str, ...]) -> GraphView:
        return await self._ask(GraphView, "follow", graph=graph, addresses=addresses)

    async def join_requests(self, graph: str) -> tuple[JoinRequestView, ...]:
        return await self._ask(tuple[JoinRequestView, ...], "join_requests", graph=graph)

    async def decide_join(self, request: str, *, approve: bool) -> None:
        await self._request("decide_join", request=request, approve=approve)

    # Drafts, and what becomes of them

    async def delegate(self, agent: str, *, label: str, rights: tuple[str, ...]) -> DelegationView:
        return await self._ask(DelegationView, "delegate", agent=agent, label=label, rights=rights)

    async def accept_delegation(self, word: str) -> DelegationView:
        return await self._ask(DelegationView, "accept_delegation", word=word)

    async def delegations(self) -> tuple[DelegationView, ...]:
        return await self._ask(tuple[DelegationView, ...], "delegations")

    async def revoke(self, subject: str, *, keep: bool = True) -> RevocationView:
        return await self._ask(RevocationView, "revoke", subject=subject, keep=keep)

    async def peers(self) -> tuple[PeerDetail, ...]:
        return await self._ask(tuple[PeerDetail, ...], "peers")

    async def peer(self, peer: str) -> PeerDetail:
        return await self._ask(PeerDetail, "peer", peer=peer)

    async def ban_peer(self, peer: str, *, for_ms: int | None) -> PeerDetail:
        return await self._ask(PeerDetail, "ban_peer", peer=peer, for_ms=for_ms)

    async def unban_peer(self, peer: str) -> None:
        await self._request("unban_peer", peer=peer)

    async def draft(
        self,
        graph: str,
        name: str,
        data: bytes,
        *,
        format: str | None,
        base: str | None,
        subgraph: str,
        replace: bool,
        merge_graphs: bool = False,
        file: str | None = None,
    ) -> DraftView:
        return await self._ask(
            DraftView,
            "draft",
            graph=graph,
            name=name,
            data=data,
            format=format,
            base=base,
            subgraph=subgraph,
            replace=replace,
            merge_graphs=merge_graphs,
            file=file,
        )

    async def drafts(self, graph: str | None) -> tuple[DraftView, ...]:
        return await self._ask(tuple[DraftView, ...], "drafts", graph=graph)

    async def discard(self, graph: str, name: str) -> None:
        await self._request("discard", graph=graph, name=name)

    async def seal(self, graph: str, name: str) -> DraftView:
        return await self._ask(DraftView, "seal", graph=graph, name=name)

    async def share(self, graph: str, name: str, *, ttl_ms: int | None) -> JobView:
        return await self._ask(JobView, "share", graph=graph, name=name, ttl_ms=ttl_ms)

    async def share_data(
        self,
        graph: str,
        name: str,
        data: bytes,
        *,
        format: str | None,
        base: str | None,
        subgraph: str,
        ttl_ms: int | None,
        merge_graphs: bool = False,
        file: str | None = None,
    ) -> JobView:
        return await self._ask(
            JobView,
            "share_data",
            graph=graph,
            name=name,
            data=data,
            format=format,
            base=base,
            subgraph=subgraph,
            ttl_ms=ttl_ms,
            merge_graphs=merge_graphs,
            file=file,
        )

    async def publish(self, graph: str, reference: str) -> JobView:
        return await self._ask(JobView, "publish", graph=graph, reference=reference)

    async def endorse(self, graph: str, reference: str, *, reason: str, withdraw: bool) -> JobView:
        return await self._ask(JobView, "endorse", graph=graph, reference=reference, reason=reason, withdraw=withdraw)

    async def verify(self, graph: str, reference: str, *, deadline_ms: int | None) -> JobView:
        return await self._ask(JobView, "verify", graph=graph, reference=reference, deadline_ms=deadline_ms)

    async def attest(self, graph: str, reference: str) -> JobView:
        return await self._ask(JobView, "attest", graph=graph, reference=reference)

    async def retract(
        self, graph: str, reference: str, *, reason: str, successor: int | None, erase: bool
    ) -> VersionView:
        return await self._ask(
            VersionView, "retract", graph=graph, reference=reference, reason=reason, successor=successor, erase=erase
        )

    async def reviews(self, *, graph: str | None = None) -> tuple[ReviewView, ...]:
        return await self._ask(tuple[ReviewView, ...], "reviews", graph=graph)

    async def review(self, review: str) -> ReviewDetail:
        return await self._ask(ReviewDetail, "review", review=review)

    async def decide_review(self, review: str, *, approve: bool, reason: str) -> JobView:
        return await self._ask(JobView, "decide_review", review=review, approve=approve, reason=reason)

    # Jobs

    async def job(self, job: str, *, wait_ms: int = 0) -> JobView:
        return await self._ask(JobView, "job", job=job, wait_ms=wait_ms)

    async def jobs(
        self, *, state: str | None, limit: int, before: str | None = None, kind: str | None = None
    ) -> tuple[JobView, ...]:
        return await self._ask(tuple[JobView, ...], "jobs", state=state, limit=limit, before=before, kind=kind)

    async def job_story(self, job: str) -> JobStory:
        return await self._ask(JobStory, "job_story", job=job)

    def watch_job(self, job: str, *, since: int = 0) -> AsyncIterator[JobView]:
        return self._events(JobView, "watch_job", job=job, since=since)

    async def cancel_job(self, job: str) -> JobView:
        return await self._ask(JobView, "cancel_job", job=job)

    async def retry_job(self, job: str) -> JobView:
        return await self._ask(JobView, "retry_job", job=job)

    async def resolve_job(self, job: str, *, outcome: str) -> JobView:
        return await self._ask(JobView, "resolve_job", job=job, outcome=outcome)

    # Looking

    async def versions(
        self, graph: str, *, layer: Layer | None, min_trust: str | None, min_m: int = 0
    ) -> tuple[VersionView, ...]:
        return await self._ask(
            tuple[VersionView, ...], "versions", graph=graph, layer=layer, min_trust=min_trust, min_m=min_m
        )

    async def version(self, graph: str, reference: str) -> VersionView:
        return await self._ask(VersionView, "version", graph=graph, reference=reference)

    async def history(self, graph: str, reference: str) -> HistoryView:
        return await self._ask(HistoryView, "history", graph=graph, reference=reference)

    async def diff(self, graph: str, reference: str, *, other: str | None) -> DiffView:
        return await self._ask(DiffView, "diff", graph=graph, reference=reference, other=other)

    async def explain(self, graph: str, reference: str) -> Explanation:
        return await self._ask(Explanation, "explain", graph=graph, reference=reference)

    async def roster(self, graph: str) -> bytes:
        return await self._request("roster", graph=graph)

    async def content(self, graph: str, reference: str) -> bytes:
        return await self._request("content", graph=graph, reference=reference)

    async def certificate(self, graph: str, reference: str) -> CertificateView:
        return await self._ask(CertificateView, "certificate", graph=graph, reference=reference)

    async def proof(self, graph: str, reference: str, statement: str) -> dict[str, object]:
        return await self._ask(dict[str, object], "proof", graph=graph, reference=reference, statement=statement)

    async def recall(
        self, question: str, *, graph: str | None, min_trust: str | None, min_m: int, limit: int
    ) -> RecallAnswer:
        return await self._ask(
            RecallAnswer, "recall", question=question, graph=graph, min_trust=min_trust, min_m=min_m, limit=limit
        )

    async def query(
        self, sparql: str, *, graph: str, layer: Layer | None, min_trust: str | None, at_least: int, min_m: int = 0
    ) -> QueryAnswer:
        return await self._ask(
            QueryAnswer,
            "query",
            sparql=sparql,
            graph=graph,
            layer=layer,
            min_trust=min_trust,
            at_least=at_least,
            min_m=min_m,
        )

    # Signing by wallets outside

    async def agents(self) -> tuple[AgentView, ...]:
        return await self._ask(tuple[AgentView, ...], "agents")

    async def add_agent(self, address: str, *, label: str) -> AgentView:
        return await self._ask(AgentView, "add_agent", address=address, label=label)

    async def sign_prepare(self, request: SignRequest) -> SignView:
        return await self._ask(SignView, "sign_prepare", request=request)

    async def sign_submit(self, id: str, *, signature: str) -> SignedView:
        return await self._ask(SignedView, "sign_submit", id=id, signature=signature)

    def changes(self, since: int) -> AsyncIterator[ChangeEvent]:
        return self._events(ChangeEvent, "changes", since=since)

    # How

    async def _ask(self, wanted: type[T], name: str, /, **arguments: object) -> T:
        call = CALLS[name]
        assert hints(getattr(type(self), name))["return"] == wanted
        data = await self._request(name, **arguments)
        with _honest(self._url):
            body = loads(data)
            if call.wrap:
                body = decode(dict, body).get(call.wrap)
            return cast("T", decode(wanted, body, strict=False))

    async def _request(self, name: str, /, **arguments: object) -> bytes:
        with _reachable(self._url):
            answer = await self._client.send(self._build(CALLS[name], arguments))
        if answer.status_code >= 300:
            _raise_problem(answer.status_code, answer.content)
        return answer.content

    def _build(self, call: Call, arguments: dict[str, object]) -> httpx.Request:
        assert set(arguments) == set(call.arguments), f"{call.name} takes {', '.join(call.arguments)}"
        path = call.path.format(**{name: _in_path(name, str(arguments[name])) for name in call.in_path})
        query = {name: encode_text(arguments[name]) for name in call.in_query if arguments[name] is not None}
        if call.file:
            data = cast("bytes", arguments[call.file])
            headers = {"content-type": "application/octet-stream"}
            return self._client.build_request(call.verb, path, params=query, content=data, headers=headers)
        if call.in_body:
            return self._client.build_request(call.verb, path, json=_body(call, arguments))
        return self._client.build_request(call.verb, path, params=query)

    async def _events(self, wanted: type[T], name: str, /, **arguments: object) -> AsyncIterator[T]:
        target = self._build(CALLS[name], arguments).url.raw_path.decode()
        reader = EventReader()
        async with open_streamed(self._url, target, {"authorization": f"Bearer {self._token}"}) as answer:
            if answer.status != 200:
                _raise_problem(answer.status, await answer.whole())
            while data := await answer.receive():
                for event in reader.feed(data):
                    yield self._value(wanted, event)

    def _value(self, wanted: type[T], event: ServerEvent) -> T:
        with _honest(self._url):
            body = loads(event.data.encode())
            if event.event != PROBLEM_EVENT:
                return cast("T", decode(wanted, body, strict=False))
        status = body.get("status") if isinstance(body, dict) else None
        raise error_of(status if isinstance(status, int) else 500, body)


def _in_path(name: str, text: str) -> str:
    """A word of a path. One that would make it another path names nothing that there is."""
    if text in ("", ".", "..") or "/" in text:
        raise NotFoundError(f"there is no {name.replace('_', ' ')} {text!r}: nothing has such a name")
    return quote(text, safe="")


def _body(call: Call, arguments: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in call.in_body:
        value = encode(arguments[name])
        if call.is_spread(name):
            assert isinstance(value, dict)
            found |= value
        else:
            found[name] = value
    return found


def _raise_problem(status: int, data: bytes) -> None:
    try:
        body = loads(data)
    except BadValueError:
        body = None
    raise error_of(status, body)


@contextmanager
def _reachable(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError:
        raise UnreachableError(f"no node answers at {url}: is `p2pmem run` running?") from None
    except httpx.TimeoutException:
        raise UnreachableError(f"the node at {url} did not answer in time") from None
    except httpx.TransportError as error:
        raise UnreachableError(f"the connection to the node at {url} was lost: {error}") from None


@contextmanager
def _honest(url: str) -> Iterator[None]:
    """What answers may be something else than a node, or a node of another version."""
    try:
        yield
    except BadValueError as error:
        raise OutsideError(f"{url} answers what no node of this version answers: {error}") from None


if TYPE_CHECKING:
    from p2pmem.face import Face

    _conforms: Face = HttpFace("", "")
