"""The field tables of the APIs, one file per API, with version ranges and version notes."""
