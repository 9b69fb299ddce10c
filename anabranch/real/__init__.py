"""The clients on real sockets and clocks: what ``from anabranch import Producer`` gives.

``anabranch.client`` takes any environment and builds none. Here one is built when the user gives none.
"""
