"""How a check says that it cannot run."""


class Skip(Exception):
    """This machine cannot run the check; the message says what is needed."""
