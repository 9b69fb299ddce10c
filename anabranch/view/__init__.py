"""What a cluster's answers say about it, as records: topics, groups, lags, waits and plans. Prints nothing."""
