"""Every call of `/v1`, as one table that the server, the client and the documentation share.

A call is a method of `p2pmem.face.Face`. Its arguments go, by name:

* into the path where the path names them in braces;
* with GET and DELETE, and beside a body that is a file, into the query;
* otherwise into a JSON object, the body. An argument that is a dataclass puts its fields there, not itself.

A context graph's name holds a slash, so graphs and references are never part of a path.

    GET    /v1/status                       status            NodeStatus
    POST   /v1/clock/confirm                confirm_clock     ClockView
    POST   /v1/compact                      compact           CompactView
    POST   /v1/backup                       back_up           BackupView
    POST   /v1/restore/confirm              confirm_restore   RestoreView
    GET    /v1/graphs                       graphs            {"graphs": [GraphView, ...]}
    POST   /v1/graphs                       found             GraphView; the body is NewGraph
    GET    /v1/graph                        graph             GraphView
    POST   /v1/graph/members                change_members    GraphView; the body is graph and MemberChange
    POST   /v1/graph/members/preview        preview_members   ChangePreview; the same body
    POST   /v1/graph/members/prepare        prepare_members   PreparedView, for the owner to sign; the same body
    POST   /v1/graph/members/prepared       prepared_members  PreparedView, of a word
    POST   /v1/graph/members/sign           sign_members      GraphView; signs what a word holds
    POST   /v1/graph/leave                  leave             {}
    POST   /v1/graph/invites                invite            {"invite": "p2pmem1..."}
    POST   /v1/join                         join              GraphView
    POST   /v1/graph/follow                 follow            GraphView
    GET    /v1/join-requests                join_requests     {"requests": [JoinRequestView, ...]}
    POST   /v1/join-requests/decide         decide_join       {}
    POST   /v1/delegations                  delegate          DelegationView
    POST   /v1/delegations/accept           accept_delegation DelegationView
    GET    /v1/delegations                  delegations       {"delegations": [DelegationView, ...]}
    POST   /v1/revoke                       revoke            RevocationView
    GET    /v1/peers                        peers             {"peers": [PeerDetail, ...]}
    GET    /v1/peers/{peer}                 peer              PeerDetail
    POST   /v1/peers/{peer}/ban             ban_peer          PeerDetail
    POST   /v1/peers/{peer}/unban           unban_peer        {}
    POST   /v1/drafts                       draft             DraftView; the body is the file, the rest in the query
    GET    /v1/drafts                       drafts            {"drafts": [DraftView, ...]}
    DELETE /v1/drafts                       discard           {}
    POST   /v1/drafts/seal                  seal              DraftView
    POST   /v1/share                        share             JobView
    POST   /v1/share/data                   share_data        JobView; the body is the file
    POST   /v1/publish                      publish           JobView
    POST   /v1/endorse                      endorse           JobView
    POST   /v1/verify                       verify            JobView
    POST   /v1/attest                       attest            JobView
    POST   /v1/retract                      retract           VersionView
    GET    /v1/reviews                      reviews           {"reviews": [ReviewView, ...]}
    GET    /v1/review                       review            ReviewDetail
    POST   /v1/reviews/decide               decide_review     JobView
    GET    /v1/jobs                         jobs              {"jobs": [JobView, ...], "next": id or null}
    GET    /v1/jobs/{job}                   job               JobView
    GET    /v1/jobs/{job}/story             job_story         JobStory
    GET    /v1/jobs/{job}/events            watch_job         server-sent events, each a JobView
    POST   /v1/jobs/{job}/cancel            cancel_job        JobView
    POST   /v1/jobs/{job}/retry             retry_job         JobView
    POST   /v1/jobs/{job}/resolve           resolve_job       JobView
    GET    /v1/versions                     versions          {"versions": [VersionView, ...]}
    GET    /v1/version                      version           VersionView
    GET    /v1/history                      history           HistoryView
    GET    /v1/diff                         diff              DiffView
    GET    /v1/explain                      explain           Explanation
    GET    /v1/roster                       roster            headers and head, application/cbor
    GET    /v1/content                      content           the sealed bytes, application/n-quads
    GET    /v1/certificate                  certificate       CertificateView
    POST   /v1/proof                        proof             the proof
    POST   /v1/recall                       recall            RecallAnswer
    POST   /v1/query                        query             QueryAnswer
    GET    /v1/agents                       agents            {"agents": [AgentView, ...]}
    POST   /v1/agents                       add_agent         AgentView
    POST   /v1/sign/prepare                 sign_prepare      SignView; the body is SignRequest
    POST   /v1/sign/submit                  sign_submit       SignedView
    GET    /v1/changes                      changes           server-sent events, each a ChangeEvent

An agent's token (`p2pmem agent token`) opens `AGENT_CALLS` alone, and there only what is the agent's own.

Beside the table: `GET /healthz` and `GET /readyz`, which need no token, and the SPARQL 1.1 protocol at `/v1/sparql`.

A call that submits a job answers 202 while the job has not ended, 200 when it has. Every error is a problem of
`p2pmem.api.problems`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, unique
from functools import cached_property
from typing import Any, Final

from p2pmem_protocol.limits import DAY_MS

from p2pmem.api.codec import hints, is_optional
from p2pmem.face import Face, JobView

RECALL_LIMIT: Final = 10
JOBS_LIMIT: Final = 100
INVITE_LIFE_MS: Final = 7 * DAY_MS
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
BODY_BYTES_MAX: Final = 1024 * 1024
_IN_BRACES: Final = re.compile(r"{(\w+)}")


@unique
class Answer(Enum):
    """What kind of answer a call gives."""

    JSON = "application/json"
    CONTENT = "application/n-quads"
    CBOR = "application/cbor"
    EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Call:
    """One row: how a method of `Face` is called over HTTP.

    `wrap` names the field that holds an answer which is no object by itself. `defaults` are for arguments that a
    caller may leave out besides those that may be None. `file` is the argument that is the body itself.
    """

    name: str
    verb: str
    path: str
    answer: Answer = Answer.JSON
    wrap: str = ""
    file: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The method's arguments and their types."""
        types = hints(getattr(Face, self.name))
        names = list(inspect.signature(getattr(Face, self.name)).parameters)[1:]
        return {name: types[name] for name in names}

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        return tuple(_IN_BRACES.findall(self.path))

    @cached_property
    def in_query(self) -> tuple[str, ...]:
        if self.verb == "POST" and not self.file:
            return ()
        return tuple(name for name in self.arguments if name not in (*self.in_path, self.file))

    @cached_property
    def in_body(self) -> tuple[str, ...]:
        return tuple(name for name in self.arguments if name not in (*self.in_path, *self.in_query, self.file))

    @cached_property
    def body_fields(self) -> Mapping[str, str]:
        """Each field that the body may have, and the argument that it belongs to."""
        found: dict[str, str] = {}
        for name in self.in_body:
            inside = [item.name for item in fields(self.arguments[name])] if self.is_spread(name) else [name]
            assert not set(inside) & set(found), "two arguments would share a field"
            found.update(dict.fromkeys(inside, name))
        return found

    def is_spread(self, name: str) -> bool:
        """Whether the argument is a dataclass, whose fields stand in the body by themselves."""
        return is_dataclass(self.arguments[name])

    def has_default(self, name: str) -> bool:
        return name in self.defaults or is_optional(self.arguments[name])

    def default(self, name: str) -> object:
        return self.defaults.get(name)

    @cached_property
    def submits(self) -> bool:
        """Whether the answer is a job that may still run."""
        return self.verb == "POST" and hints(getattr(Face, self.name))["return"] is JobView

    @property
    def body_bytes_max(self) -> int:
        return FILE_BYTES_MAX if self.file else BODY_BYTES_MAX


_TABLE: Final = (
    Call("status", "GET", "/v1/status"),
    Call("confirm_clock", "POST", "/v1/clock/confirm"),
    Call("compact", "POST", "/v1/compact"),
    Call("back_up", "POST", "/v1/backup"),
    Call("confirm_restore", "POST", "/v1/restore/confirm"),
    Call("graphs", "GET", "/v1/graphs", wrap="graphs"),
    Call("found", "POST", "/v1/graphs"),
    Call("graph", "GET", "/v1/graph"),
    Call("change_members", "POST", "/v1/graph/members"),
    Call("preview_members", "POST", "/v1/graph/members/preview"),
    Call("prepare_members", "POST", "/v1/graph/members/prepare"),
    Call("prepared_members", "POST", "/v1/graph/members/prepared"),
    Call("sign_members", "POST", "/v1/graph/members/sign"),
    Call("leave", "POST", "/v1/graph/leave"),
    Call(
        "invite",
        "POST",
        "/v1/graph/invites",
        wrap="invite",
        defaults={"uses": 1, "life_ms": INVITE_LIFE_MS, "ask": False},
    ),
    Call("join", "POST", "/v1/join", defaults={"label": ""}),
    Call("follow", "POST", "/v1/graph/follow"),
    Call("join_requests", "GET", "/v1/join-requests", wrap="requests"),
    Call("decide_join", "POST", "/v1/join-requests/decide"),
    Call("delegate", "POST", "/v1/delegations", defaults={"label": "", "rights": ()}),
    Call("accept_delegation", "POST", "/v1/delegations/accept"),
    Call("delegations", "GET", "/v1/delegations", wrap="delegations"),
    Call("revoke", "POST", "/v1/revoke", defaults={"keep": True}),
    Call("peers", "GET", "/v1/peers", wrap="peers"),
    Call("peer", "GET", "/v1/peers/{peer}"),
    Call("ban_peer", "POST", "/v1/peers/{peer}/ban"),
    Call("unban_peer", "POST", "/v1/peers/{peer}/unban"),
    Call(
        "draft", "POST", "/v1/drafts", file="data", defaults={"subgraph": "", "replace": False, "merge_graphs": False}
    ),
    Call("drafts", "GET", "/v1/drafts", wrap="drafts"),
    Call("discard", "DELETE", "/v1/drafts"),
    Call("seal", "POST", "/v1/drafts/seal"),
    Call("share", "POST", "/v1/share"),
    Call("share_data", "POST", "/v1/share/data", file="data", defaults={"subgraph": "", "merge_graphs": False}),
    Call("publish", "POST", "/v1/publish"),
    Call("endorse", "POST", "/v1/endorse", defaults={"reason": "", "withdraw": False}),
    Call("verify", "POST", "/v1/verify"),
    Call("attest", "POST", "/v1/attest"),
    Call("retract", "POST", "/v1/retract", defaults={"reason": "", "erase": False}),
    Call("reviews", "GET", "/v1/reviews", wrap="reviews"),
    Call("review", "GET", "/v1/review"),
    Call("decide_review", "POST", "/v1/reviews/decide", defaults={"reason": ""}),
    Call("jobs", "GET", "/v1/jobs", wrap="jobs", defaults={"limit": JOBS_LIMIT}),
    Call("job", "GET", "/v1/jobs/{job}", defaults={"wait_ms": 0}),
    Call("job_story", "GET", "/v1/jobs/{job}/story"),
    Call("watch_job", "GET", "/v1/jobs/{job}/events", answer=Answer.EVENTS, defaults={"since": 0}),
    Call("cancel_job", "POST", "/v1/jobs/{job}/cancel"),
    Call("retry_job", "POST", "/v1/jobs/{job}/retry"),
    Call("resolve_job", "POST", "/v1/jobs/{job}/resolve"),
    Call("versions", "GET", "/v1/versions", wrap="versions", defaults={"min_m": 0}),
    Call("version", "GET", "/v1/version"),
    Call("history", "GET", "/v1/history"),
    Call("diff", "GET", "/v1/diff"),
    Call("explain", "GET", "/v1/explain"),
    Call("roster", "GET", "/v1/roster", answer=Answer.CBOR),
    Call("content", "GET", "/v1/content", answer=Answer.CONTENT),
    Call("certificate", "GET", "/v1/certificate"),
    Call("proof", "POST", "/v1/proof"),
    Call("recall", "POST", "/v1/recall", defaults={"min_m": 0, "limit": RECALL_LIMIT}),
    Call("query", "POST", "/v1/query", defaults={"at_least": 0, "min_m": 0}),
    Call("agents", "GET", "/v1/agents", wrap="agents"),
    Call("add_agent", "POST", "/v1/agents", defaults={"label": ""}),
    Call("sign_prepare", "POST", "/v1/sign/prepare"),
    Call("sign_submit", "POST", "/v1/sign/submit"),
    Call("changes", "GET", "/v1/changes", answer=Answer.EVENTS, defaults={"since": 0}),
)
AGENT_CALLS: Final = frozenset(
    (
        *("draft", "drafts", "discard", "seal", "share", "share_data", "publish", "endorse", "verify"),
        *("job", "jobs", "job_story", "watch_job", "cancel_job", "retry_job"),
        *("graphs", "graph", "recall", "versions", "version", "content", "diff", "explain", "certificate", "proof"),
    )
)
"""What an agent of the node may call. To speak for a job whose outcome is unknown is left to the operator, and so is
what tells of other agents' drafts: `history`, `changes`, and queries, which may ask `_meta`."""

CALLS: Final[Mapping[str, Call]] = {call.name: call for call in _TABLE}
