"""One file per API: field tables with version ranges, version notes, what is skipped."""
