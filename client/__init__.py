"""Producer, Consumer and Admin on AnyIO."""
