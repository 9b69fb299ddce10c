"""Message classes and flat codecs, written by ``python -m protocol.generate``."""
