"""The members of the federation: the roster, who is connected, who sits out."""
