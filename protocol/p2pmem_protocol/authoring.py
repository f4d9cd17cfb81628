"""What an author's node refuses to sign, before anything is sent: checks that the set itself does not make.

Compare-and-set on the previous root, and "no version may end before a lower one" (rule V1), are not admission tests:
peers would decide them differently by what they happen to hold. So they are checked where the author signs.
"""

from __future__ import annotations

from collections.abc import Collection

from p2pmem_protocol.errors import MisuseError, lasting
from p2pmem_protocol.names import VersionKey, hex_id
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from p2pmem_protocol.view import AssetView, VersionView


class AuthoringError(MisuseError):
    """The author may not sign this now."""


class StaleVersionError(AuthoringError):
    """The seal does not follow the latest version: somebody, perhaps another node of this agent, was faster."""


class OtherSealError(AuthoringError):
    """Another seal of this version is shared or published already; to sign for this one would be a conflict."""


class RetractedVersionError(AuthoringError):
    """The version was taken back; share the content under the next version."""


class EndsTooEarlyError(AuthoringError):
    """A lower version would outlive this one and come back when it ends (rule V1)."""


class EndsTooLateError(AuthoringError):
    """This version would outlive a higher one and come back when that ends (rule V1)."""


def may_seal(latest: Collection[VersionKey], seal: Seal) -> None:
    """Compare-and-set: `seal` follows `latest`, the roots of the highest version that the author's node knows of.

    `latest` is empty for a new asset; it has several roots after a conflict, and the seal names one of them.
    """
    if not latest:
        if seal.version != 1 or seal.previous != NO_PREVIOUS:
            raise StaleVersionError(f"nothing of {seal.name} is known here: seal it as version 1")
        return
    number = max(key.version for key in latest)
    roots = {key.root for key in latest if key.version == number}
    if seal.version != number + 1 or seal.previous not in roots:
        known = ", ".join(sorted(hex_id(root)[:10] for root in roots))
        raise StaleVersionError(
            f"{seal.name} is at version {number} (root {known}): seal version {number + 1} with that as previous root"
        )


def may_share(view: AssetView, seal: Seal, expires_at_ms: int) -> None:
    """Whether the author may share or renew `seal` until `expires_at_ms`. Raises a subclass of `AuthoringError`."""
    _check_version(view, seal)
    key = seal.key
    own = next((version.shares_end_ms for version in view.versions if version.key == key), None)
    end_ms = max(expires_at_ms, own or 0)
    for version in view.versions:
        other_ms = version.shares_end_ms
        if other_ms is None or version.key.version == key.version:
            continue
        if version.key.version < key.version and other_ms > end_ms:
            raise EndsTooEarlyError(
                f"version {version.key.version} is shared for {lasting(other_ms - end_ms)} longer: "
                f"share version {key.version} at least as long"
            )
        if version.key.version > key.version and other_ms < end_ms:
            raise EndsTooLateError(
                f"version {version.key.version} ends {lasting(end_ms - other_ms)} earlier; renew that one first, "
                f"or let version {key.version} end by then"
            )


def may_publish(view: AssetView, seal: Seal) -> None:
    """Whether the author may publish `seal`. A publish is outside rule V1. Raises a subclass of `AuthoringError`."""
    _check_version(view, seal)


def _check_version(view: AssetView, seal: Seal) -> None:
    if any(version.key == seal.key for version in view.versions):
        _check_retracted([version for version in view.versions if version.key == seal.key])
        return
    same = [version for version in view.versions if version.key.version == seal.version]
    _check_retracted(same)
    if same:
        what = "was sealed otherwise" if any(it.key.root == seal.root for it in same) else "has other content"
        raise OtherSealError(f"version {seal.version} of {seal.name} {what} already; seal the next version")
    highest = max((version.key.version for version in view.versions), default=0)
    if seal.version < highest:
        raise StaleVersionError(f"version {highest} of {seal.name} is known already; version {seal.version} comes late")


def _check_retracted(versions: list[VersionView]) -> None:
    for version in versions:
        if version.hidden_by is not None:
            raise RetractedVersionError(
                f"version {version.key.version} was retracted; seal the content as a new version"
            )
