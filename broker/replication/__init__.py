"""The partitions a broker leads or follows, and the operations parked on them."""
