"""The anabranch command line."""
