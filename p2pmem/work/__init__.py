"""The node's jobs: share, publish, anchor, endorse, verify, review. Steps in order, each done once."""
