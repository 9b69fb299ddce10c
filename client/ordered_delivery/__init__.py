"""The consumer's side of KIP-253: what may be delivered, who tells whom how far it is, what the user is told."""
