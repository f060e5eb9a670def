"""What the model sees of a task of any length: a window with a fixed budget, a card, lines for what has left it."""

__all__: list[str] = []
