"""What a consumer reads, where it stands in each partition, and what it has fetched. No IO."""
