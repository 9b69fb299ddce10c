"""The clients of other projects: their producers through a resize, and the state of a connection."""
