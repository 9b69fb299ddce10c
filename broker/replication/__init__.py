"""The partitions that a broker leads or follows, and the operations that wait for them."""
