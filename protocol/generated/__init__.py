"""Message classes and flat codecs, written by ``python -m anabranch.protocol.generate``."""
