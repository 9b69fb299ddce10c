"""One file for each API that brokers forward or send, named after it. Its versions are in ``protocol/messages``."""
