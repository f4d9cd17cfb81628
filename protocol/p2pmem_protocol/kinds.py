"""The kinds of signed things that make up the set of a context graph. Numbers are part of the protocol.

    kind      key                                        lives                     merge
    share     author, asset, version                     until expires_at          same root: the latest expiry counts;
                                                                                    other root: a conflict, both shown
    publish   author, asset, version                     always                    as share
    retract   author, asset, version                     always                    present = retracted
    endorse   signer, author, asset, version, root       with its subject          a withdrawal wins for good
    propose   signer, author, asset, version, root       until its deadline        the furthest deadline counts
    verdict   signer, quorum, author, asset, ver., root  with its subject          approve wins over reject
    ack       signer, root                               until its date            the furthest date counts
    anchor    batch root, chain                          always                    a claim, never believed unchecked
    revoke    signer, subject                            always                    the highest serial counts

A number that is not here is *skipped*, not bad: it belongs to a later release.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Kind(IntEnum):
    SHARE = 2
    PUBLISH = 3
    RETRACT = 4
    ENDORSE = 5
    PROPOSE = 6
    VERDICT = 7
    ACK = 8
    ANCHOR = 9
    REVOKE = 10

    @property
    def word(self) -> str:
        return self.name.lower()


EVIDENCE = frozenset((Kind.ENDORSE, Kind.VERDICT))
DURABLE = frozenset((Kind.PUBLISH, Kind.RETRACT, Kind.ANCHOR, Kind.REVOKE))
EXPIRING = frozenset((Kind.SHARE, Kind.PROPOSE, Kind.ACK))
CONTENT = frozenset((Kind.SHARE, Kind.PUBLISH))
CUTS = frozenset((Kind.RETRACT, Kind.REVOKE))
