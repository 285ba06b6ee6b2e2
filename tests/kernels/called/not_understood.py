"""What no call is known for: arguments that nothing names, an error, a class whose argument is unknown."""


def unknown(q, k, state, mesh, plan):
    return q, k


def raises(q, k, positions):
    raise ValueError("not so")


class Built:
    def __init__(self, registry):
        pass
