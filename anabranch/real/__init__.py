"""The clients with real sockets and clocks, imported by ``from anabranch import Producer``.

``anabranch.client`` requires an environment. The clients here make an environment if the user gives none.
"""
