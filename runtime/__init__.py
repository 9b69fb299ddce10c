"""The only access to the operating system. Importing this package imports no implementation."""
