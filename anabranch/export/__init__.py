"""Copies the files of a topic out of a running cluster, or out of the directory of a stopped broker."""
