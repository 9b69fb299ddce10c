"""A consumer's subscription, its position in each partition, and its fetched records. No IO."""
