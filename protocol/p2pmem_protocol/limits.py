"""Every limit of the protocol in one place. Peers must agree on these: they decide what is admissible.

Limits of one node (connections, queues, rates) are not here; they belong to the node.
"""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

# Bytes
BODY_BYTES_MAX: Final = 64 * 1024
ITEM_BYTES_MAX: Final = BODY_BYTES_MAX + 1_024
CONTENT_INLINE_BYTES_MAX: Final = 60 * 1024
CONTENT_BYTES_MAX: Final = 16 * 1024 * 1024
STATEMENTS_MAX: Final = 200_000
DEPTH_MAX: Final = 16

# Names
SLUG_CHARS_MAX: Final = 64
NAME_CHARS_MAX: Final = 128
SUBGRAPH_CHARS_MAX: Final = 128
LABEL_CHARS_MAX: Final = 64
REASON_CHARS_MAX: Final = 1_000

# Time. 2^53 - 1 is what a JavaScript number can hold exactly; the year 9999 is as late as a date is written.
TIME_MS_MAX: Final = 253_402_300_799_999
FUTURE_MS_MAX: Final = 5 * MINUTE_MS
TTL_DEFAULT_MS: Final = 7 * DAY_MS
TTL_MS_MAX: Final = 30 * DAY_MS
DEADLINE_MS_MAX: Final = 30 * DAY_MS
ACK_MS_MAX: Final = 366 * DAY_MS
CREDENTIAL_MS_MAX: Final = 90 * DAY_MS
CUT_KEPT_ASIDE_MS: Final = 24 * HOUR_MS
RECONCILE_LEAD_MS: Final = 60 * SECOND_MS

# Rosters
MEMBERS_MAX: Final = 1_000
VERIFIERS_MAX: Final = 64
KEPT_IDS_MAX: Final = 100_000
CERTIFICATES_KEPT_MAX: Final = 10_000
ROSTER_PART_BYTES_MAX: Final = 8 * 1024 * 1024

# Quotas of a graph that says nothing else, per author
QUOTA_LIVE_BYTES: Final = 256 * 1024 * 1024
QUOTA_LIVE_ITEMS: Final = 100_000
QUOTA_DURABLE_ITEMS: Final = 20_000
QUOTA_CUTS: Final = 20_000

UINT32_MAX: Final = 2**32 - 1
UINT64_MAX: Final = 2**64 - 1
ANCHOR_ASSETS_MAX: Final = 256
PROOF_HASHES_MAX: Final = 32
