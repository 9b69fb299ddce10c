"""The only door to the operating system. Importing this package imports no implementation."""
