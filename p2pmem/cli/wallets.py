"""Agents whose keys are in wallets outside: typed data out, a signature in."""

from __future__ import annotations

import argparse
import json
from typing import Final

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address

from p2pmem.api.codec import decode, dumps, loads
from p2pmem.api.problems import Exit
from p2pmem.cli.command import Command, Context
from p2pmem.cli.files import read_text, write_new
from p2pmem.cli.views_trust import show_agents, show_prepared
from p2pmem.face import NotFoundError, SignRequest

REQUEST_BYTES_MAX: Final = 1024 * 1024


async def agent_list(context: Context) -> Exit:
    found = await context.face.agents()
    context.out.answer({"agents": found}, show_agents(found))
    return Exit.OK


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="of the wallet")
    parser.add_argument("--label", default="", help="how you call it")


async def agent_add(context: Context) -> Exit:
    found = await context.face.add_agent(context.args.address, label=context.args.label)
    context.out.answer(found, show_agents((found,)))
    return Exit.OK


def _token_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="of the agent")


async def agent_token_(context: Context) -> Exit:
    from p2pmem.api.guard import agent_token
    from p2pmem.home import read_token

    agent = str(Address.parse(context.args.address))
    if agent not in {it.address for it in await context.face.agents()}:
        raise NotFoundError(
            f"{agent} is no agent of this node, so a token for it would open nothing: `p2pmem agent list` shows its "
            "agents, `p2pmem agent add` takes one in"
        )
    made = agent_token(read_token(context.home), agent)
    context.out.answer({"agent": agent, "token": made}, made)
    return Exit.OK


def _prepare_arguments(parser: argparse.ArgumentParser) -> None:
    from pathlib import Path

    parser.add_argument("action", metavar="ACTION", help="found, roster, seal, share, publish, endorse, propose, ...")
    parser.add_argument("agent", metavar="ADDRESS", help="whose signature it is to be")
    parser.add_argument(
        "--fields", metavar="JSON", default="{}", help="what the action takes, a JSON object; @FILE reads it from there"
    )
    parser.add_argument("--graph", metavar="GRAPH", help="the context graph; the only one where there is one")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the typed data to a new file")


async def sign_prepare(context: Context) -> Exit:
    args = context.args
    text = read_text(args.fields[1:], REQUEST_BYTES_MAX) if args.fields.startswith("@") else args.fields
    fields = loads(text.encode(), "--fields")
    if not isinstance(fields, dict):
        raise MisuseError('--fields is a JSON object, such as {"reference": "x@1"}')
    if args.action not in ("found", "carry", "act_for") and "prepared" not in fields:
        fields.setdefault("graph", await context.graph())
    request = decode(SignRequest, {**fields, "action": args.action, "agent": args.agent})
    view = await context.face.sign_prepare(request)
    if args.output is not None:
        write_new(args.output, f"{dumps(view.typed_data, indent=2)}\n".encode())
        shown = show_prepared(view, str(args.output))
    else:
        shown = f"{show_prepared(view)}\n{json.dumps(view.typed_data)}"
    context.out.answer(view, shown)
    context.out.warn(view.warnings)
    return Exit.OK


def _submit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="as `p2pmem sign prepare` said it")
    parser.add_argument("signature", metavar="SIGNATURE", help="65 bytes in hexadecimal")


async def sign_submit(context: Context) -> Exit:
    done = await context.face.sign_submit(context.args.id, signature=context.args.signature)
    context.out.answer(done, f"{done.action} {done.reference} is signed and on its way".replace("  ", " "))
    return Exit.OK


COMMANDS: Final = (
    Command("agent list", "list the agents that speak through this node", agent_list),
    Command(
        "agent add",
        "speak for an agent whose key is in a wallet outside",
        agent_add,
        _add_arguments,
        "The node prepares what it is to sign and lists its reviews. The key never comes here.",
    ),
    Command(
        "agent token",
        "print the token of one agent, which opens less than the node's own",
        agent_token_,
        _token_arguments,
        "With it, over HTTP, an agent drafts, shares, publishes, endorses and asks for verification as itself, reads\n"
        "and recalls where it takes part, and sees and cancels its own jobs; nothing else. It is valid as long as the\n"
        "file `token` of the node is the same.",
    ),
    Command(
        "sign prepare",
        "make a statement for a wallet outside to sign",
        sign_prepare,
        _prepare_arguments,
        "The typed data is what eth_signTypedData_v4 takes. Fields are those of POST /v1/sign/prepare.",
    ),
    Command("sign submit", "hand in the signature of a statement that was prepared", sign_submit, _submit_arguments),
)
