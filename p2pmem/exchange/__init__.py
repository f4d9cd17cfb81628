"""Moving envelopes between members: sessions' frames (gossip), and rounds of reconciliation (the guarantee)."""
