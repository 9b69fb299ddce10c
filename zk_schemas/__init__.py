"""One class per znode: path, encode, decode, validation. Pure code."""
