"""Decisions of ordered resize (KIP-253): pure, called by controller, broker and client."""
