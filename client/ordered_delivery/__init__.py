"""The consumer's side of KIP-253: limits of delivery, the exchange of positions, and the user's callbacks."""
