"""What a node does for its agents and for other members. Each service takes what it uses as arguments."""
