"""What handlers share: the context of a request, and the steps that several APIs take."""
